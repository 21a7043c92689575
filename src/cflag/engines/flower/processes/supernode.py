"""The process of a client's SuperNode: it listens on a private socket instead of a port."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import uvicorn
from flwr.supernode.cli import flower_supernode

from cflag.engines.flower.processes.waits import shorten


def run_supernode(socket: str, poll: float) -> None:
    """Run Flower's SuperNode with the arguments of this process; this replaces the server under it."""
    config = partial(uvicorn.Config, uds=socket, ws="none")
    flower_supernode.__globals__["uvicorn"] = SimpleNamespace(Server=uvicorn.Server, Config=config)
    shorten(poll)
    flower_supernode()
