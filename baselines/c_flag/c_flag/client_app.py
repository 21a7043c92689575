"""c_flag: the ClientApp, which answers questions and keeps its samples."""

from cflag.engines.flower.client.app import client as app

__all__ = ["app"]
