"""`cflag client`: one client of a fleet, for as long as its machine runs.

Two processes: Flower's SuperNode, which talks to the server, and this one, which has the data and answers.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cflag.engines.flower.environment import STAY
from cflag.engines.flower.processes.fleet import Process, flower_process, free_port, quiet_flower, supernode_poll
from cflag.errors import UserError

AGAIN = 5.0
"""Seconds before a SuperNode that ended is started again: after a crash the server refuses its key for a minute."""


@dataclass(frozen=True)
class NodeOptions:
    """Which client this is, where its server, key, state and data are."""

    superlink: str
    ca: Path
    key: Path
    number: int
    state: Path
    data: str = ""
    device: str = "cpu"
    poll: float = 0.1

    def check(self) -> None:
        """Refuse what cannot work before anything is started."""
        for path in (self.ca, self.key):
            if not path.is_file():
                raise UserError(f"{path}: there is no such file; 'cflag keys' makes it")
        if self.number < 0:
            raise UserError(f"--number {self.number}: clients are numbered from 0")


def run_client(options: NodeOptions) -> None:
    """Serve until stopped: the SuperNode is started again whenever it ends."""
    from cflag.engines.flower.client.executor import execute
    from cflag.engines.flower.processes.waits import shorten
    from cflag.process import keep_freed_memory
    from cflag.stopping import stop_requests

    options.check()
    shorten(options.poll)
    options.state.mkdir(mode=0o700, parents=True, exist_ok=True)  # replay memories are samples
    keep_freed_memory()
    with _alone(options.state), stop_requests() as stopped:
        address, secret = f"127.0.0.1:{free_port()}", secrets.token_bytes(32)
        node = _supernode(options, address, secret)
        threading.Thread(target=_keep_alive, args=(node, stopped), daemon=True).start()
        try:
            execute(address, secret, lambda: not stopped())
        finally:
            node.stop()


def _supernode(options: NodeOptions, address: str, secret: bytes) -> Process:
    """Return the SuperNode; only a process that knows the secret can take messages from it."""
    file = options.state / "supernode.secret"
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(secret)
    config = {"partition-id": options.number, "state-dir": str(options.state.absolute()), "device": options.device}
    config |= {"key": str(options.key.absolute())}
    config |= {"data-dir": options.data} if options.data else {}
    host, port = address.split(":")
    command = [*flower_process("supernode"), "--superlink", options.superlink, "--root-certificates", str(options.ca)]
    command += ["--auth-supernode-private-key", str(options.key), "--isolation", "process"]
    command += ["--superexec-auth-secret-file", str(file), "--host", host, "--port", port]
    command += ["--node-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())]
    env = {**quiet_flower(options.state / "flower"), **supernode_poll(options.poll)}
    node = Process("SuperNode", command, options.state / "supernode.log", env)
    node.env.pop(STAY, None)  # this client may outlive the deployment; its SuperNode must not outlive this client
    return node


def _keep_alive(node: Process, stopped: object) -> None:
    node.start()
    while callable(stopped) and not stopped():
        if not node.alive:
            time.sleep(AGAIN)
            if stopped():
                return
            node.start()
        time.sleep(0.2)


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Keep a second client out of the same state."""
    with open(state / ".lock", "w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{state} is in use by another client") from None
        yield
