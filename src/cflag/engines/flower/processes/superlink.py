"""The process of a SuperLink that strangers cannot use.

Flower serves three interfaces on one port: Fleet for clients, Control to start runs and register keys, Runtime for the
server's app. The last two ask nobody who they are. Here the port answers registered clients' Fleet calls alone, and
everything is served once more behind a private socket, for the process that started this one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import sqlite3
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.superlink.cli import flower_superlink
from flwr.superlink.config_loader import get_objectstore_linkstate_factories
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet.router import router as fleet
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cflag.engines.flower.processes.keys import read_public_key, read_public_keys
from cflag.errors import UserError

CALLS = frozenset(route.path for route in fleet.routes if isinstance(route, Route))
DATABASE = "--database"
LOOK = 1.0
"""Seconds between two looks at which keys are registered."""
LARGEST = 2**30
"""Bytes of a request. Flower sends large tensors in pieces of 5 MB."""


def run_superlink(socket: str, keys: Path, arguments: Sequence[str]) -> None:
    """Run Flower's SuperLink with these arguments of this process; this replaces the server under it."""
    read_public_keys(keys)  # refuses what is none, before anything is started
    if DATABASE in arguments:
        make_database(Path(arguments[arguments.index(DATABASE) + 1]))

    def serve(app: FastAPI, host: str, port: int, **options: Any) -> None:
        state = app.state.linkstate_factory.state()
        known = Registered(keys, lambda new: register(state, new))
        common = {"log_config": options["log_config"], "access_log": options["access_log"], "ws": "none"}
        tls = {name: options[name] for name in ("ssl_keyfile", "ssl_certfile")}
        outside = uvicorn.Config(Gate(app, known), host, port, **common, **tls)
        inside = uvicorn.Config(app, uds=socket, lifespan="off", **common)
        with asyncio.Runner(loop_factory=outside.get_loop_factory()) as runner:
            runner.run(_serve(uvicorn.Server(outside), uvicorn.Server(inside)))

    flower_superlink.__globals__["uvicorn"] = SimpleNamespace(run=serve)
    flower_superlink()


def make_database(path: Path) -> None:
    """Make the database whole or not at all: Flower cannot go on with one if it was killed while it made it."""
    if path.exists():
        return
    parts = [path.with_name(f"{path.name}.{name}") for name in ("begun", "whole")]
    for part in parts:
        for old in path.parent.glob(f"{part.name}*"):
            old.unlink()
    get_objectstore_linkstate_factories(str(parts[0]), NoOpFederationManager())[1].state()
    with closing(sqlite3.connect(parts[0])) as database:
        database.execute("VACUUM INTO ?", (str(parts[1]),))
    parts[1].rename(path)


async def _serve(outside: uvicorn.Server, inside: uvicorn.Server) -> None:
    """Serve both until a signal ends the second, which passes it on; who finds the socket finds the port open, too."""
    port = asyncio.create_task(outside.serve())
    while not outside.started and not port.done():
        await asyncio.sleep(0.05)
    if not port.done():
        await inside.serve()
        outside.should_exit = True
    await port


def register(state: LinkState, keys: Collection[bytes]) -> None:
    """Tell the SuperLink which keys may connect; its database may know them."""
    for key in keys:
        if state.get_node_id_by_public_key(key) is None:
            state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, HEARTBEAT_DEFAULT_INTERVAL)


class Registered:
    """The keys in a folder. A client that joins later has its own put there while the SuperLink runs.

    A key that is taken out of the folder counts until the SuperLink is started again.
    """

    def __init__(self, folder: Path, tell: Callable[[Collection[bytes]], None]) -> None:
        self.folder = folder
        self.tell = tell
        """Tells Flower of new keys."""
        self._keys: frozenset[bytes] = frozenset()
        self._seen: object = None
        self._again = 0.0
        self._look()

    def __contains__(self, key: object) -> bool:
        """Whether a key may connect; for an unknown one the folder is looked at, at most once a second."""
        if key not in self._keys and time.monotonic() >= self._again:
            self._look()
        return key in self._keys

    def _look(self) -> None:
        self._again = time.monotonic() + LOOK
        files = [(path, path.stat()) for path in sorted(self.folder.glob("*.pub"))]
        seen = [(path.name, stat.st_size, stat.st_mtime_ns) for path, stat in files]
        if seen == self._seen:
            return
        self._seen, found = seen, set[bytes]()
        for path, _ in files:
            with suppress(UserError, OSError):  # one that is still being copied is read when it is whole
                found.add(read_public_key(path))
        new = frozenset(found) - self._keys
        self.tell(new)
        self._keys |= new


class Gate:
    """Lets through the Fleet calls of clients with these keys; of anything else not even the body is read.

    Flower then checks that the caller has the private key, too.
    """

    def __init__(self, app: ASGIApp, keys: Container[bytes]) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        refusal = None if scope["type"] == "lifespan" else self._refusal(scope)
        await (self.app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in CALLS:
            return PlainTextResponse("not found", 404)
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        if _public_key(headers) not in self.keys:
            return PlainTextResponse("not a registered client", 401)
        length = headers.get("content-length", b"")
        if not length.isdigit() or int(length) > LARGEST:
            return PlainTextResponse("too large", 413)
        return None


def _public_key(headers: Mapping[str, bytes]) -> bytes:
    try:
        return base64.b64decode(headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, b""), validate=True)
    except binascii.Error:
        return b""
