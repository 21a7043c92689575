"""c_flag: the ClientApp, which answers the questions of a round; samples stay with it."""

from cflag.engines.flower.client.app import client as app

__all__ = ["app"]
