"""The process of a client's SuperNode: it listens on a private socket instead of a port."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import uvicorn
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

from cflag.engines.flower.processes.waits import shorten


def run_supernode(socket: str, poll: float) -> None:
    """Run Flower's SuperNode with the arguments of this process; this replaces the server under it."""
    config = partial(uvicorn.Config, uds=socket, ws="none")
    flower_supernode.__globals__["uvicorn"] = SimpleNamespace(Server=uvicorn.Server, Config=config)
    flowers = start_client_internal._pull_and_store_message
    vars(start_client_internal)["_pull_and_store_message"] = partial(receive_whole, flowers)
    shorten(poll)
    flower_supernode()


def receive_whole(
    flowers: Callable[..., int | None],
    /,
    *,
    pull_object: Callable[..., Any],
    confirm_message_received: Callable[..., Any],
    **rest: Any,
) -> int | None:
    """Receive a message whole or not at all.

    Where its run ends meanwhile, Flower leaves half a message behind, and the client waits for the rest of it.
    """
    pull, confirm = failing(pull_object), failing(confirm_message_received)
    return flowers(pull_object=pull, confirm_message_received=confirm, **rest)


def failing(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let a call fail like any other where its run has ended; Flower then cleans up."""

    def called(*args: Any) -> Any:
        try:
            return call(*args)
        except RunNotRunningException:
            raise InterruptedError("its run has ended") from None

    return called
