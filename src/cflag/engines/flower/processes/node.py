"""`cflag client`: one client of a fleet, for as long as its machine runs.

Two processes: Flower's SuperNode, which talks to the server, and this one, which has the data and answers.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cflag.engines.flower import require_flower
from cflag.engines.flower.processes.fleet import Process, alone, flower_process, quiet_flower, supernode_poll
from cflag.engines.flower.processes.keys import refuse_open
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
    model: str = ""
    poll: float = 0.1

    def check(self) -> None:
        """Refuse what cannot work before anything is started."""
        for path in (self.ca, self.key):
            if not path.is_file():
                raise UserError(f"{path}: there is no such file; 'cflag keys' makes it")
        refuse_open(self.key)
        if self.number < 0:
            raise UserError(f"--number {self.number}: clients are numbered from 0")


def run_client(options: NodeOptions) -> None:
    """Serve until stopped: the SuperNode is started again whenever it ends."""
    with require_flower():
        from cflag.engines.flower.client.executor import execute
        from cflag.engines.flower.private import private_socket
        from cflag.engines.flower.processes.waits import shorten
    from cflag.process import keep_freed_memory
    from cflag.stopping import stop_requests

    options.check()
    shorten(options.poll)
    options.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(PermissionError):  # one that was there before, too: replay memories are samples
        options.state.chmod(0o700)
    keep_freed_memory()
    with alone(options.state, "client"), private_socket() as socket, stop_requests() as stopped:
        node = _supernode(options, socket)
        threading.Thread(target=_keep_alive, args=(node, stopped), daemon=True).start()
        try:
            execute(socket, lambda: not stopped())
        finally:
            node.stop()


def _supernode(options: NodeOptions, socket: str) -> Process:
    """Return the SuperNode; only a process of this user can take messages from it."""
    config = {"partition-id": options.number, "state-dir": str(options.state.absolute()), "device": options.device}
    config |= {"key": str(options.key.absolute())}
    config |= {"data-dir": options.data} if options.data else {}
    config |= {"model": options.model} if options.model else {}
    command = [*flower_process("supernode"), socket, "--superlink", options.superlink]
    command += ["--root-certificates", str(options.ca), "--auth-supernode-private-key", str(options.key)]
    command += ["--isolation", "process", "--node-config", " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())]
    env = {**quiet_flower(options.state / "flower"), **supernode_poll(options.poll)}
    return Process("SuperNode", command, options.state / "supernode.log", env)


def _keep_alive(node: Process, stopped: object) -> None:
    node.start()
    while callable(stopped) and not stopped():
        if not node.alive:
            time.sleep(AGAIN)
            if stopped():
                return
            node.start()
        time.sleep(0.2)
