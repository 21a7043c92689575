"""c_flag: the ServerApp, which carries the experiment from task to task."""

from cflag.commands.server_app import server as app

__all__ = ["app"]
