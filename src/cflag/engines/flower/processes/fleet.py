"""The processes of a deployment on this machine: how they are started, stopped and kept apart."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cflag.engines.flower.environment import SUPERNODE_POLL
from cflag.errors import CflagError, UserError
from cflag.process import STARTER

APP = Path(__file__).parent.parent / "app"
"""The app as `flwr run` takes it; the code in it is the installed package's."""
STARTS = 60.0
"""Seconds a SuperLink has to start."""


class Process:
    """A child process with a log file of its own; it can be started again."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.env = {**os.environ, **env}
        self.popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it in a session of its own, so that Ctrl-C in the terminal does not reach it: its starter stops it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as file:
            self.popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**self.env, STARTER: str(os.getpid())},
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.popen is not None and self.popen.poll() is None

    def stop(self) -> None:
        """End it and all it started: first SIGTERM, then SIGKILL."""
        if self.popen is None:
            return
        for number, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(self.popen.pid, number)
                self.popen.wait(seconds)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self.popen.wait()

    def ask_to_stop(self) -> None:
        """Send SIGTERM, and do not wait."""
        if self.popen is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGTERM)

    def last_words(self) -> str:
        """Return the end of its log in one line."""
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""
        return " ".join(text.split())[-400:]


def superlink(folder: Path, private: str, host: str, port: int, keys: Path, *extra: str) -> Process:
    """Return a SuperLink that works in this folder: a port for clients, and a private socket for everything else."""
    files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key"}
    command = [*flower_process("superlink"), private, str(keys / "clients"), "--host", host, "--port", str(port)]
    command += [part for option, name in files.items() for part in (option, str(keys / name))]
    command += ["--enable-supernode-auth", "--isolation", "process", *extra]
    return Process("SuperLink", command, folder / "superlink.log", quiet_flower(folder / "flower"))


def wait_until_open(process: Process, path: str) -> bool:
    """Wait until a process listens on a socket; return False where it ended instead."""
    end = time.monotonic() + STARTS
    while time.monotonic() < end:
        if not process.alive:
            return False
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
            return True
        time.sleep(0.1)
    raise CflagError(f"the {process.name} does not answer after {STARTS:.0f} s; see {process.log}")


@contextmanager
def alone(folder: Path, what: str, patience: float = 10.0) -> Iterator[None]:
    """Keep a second process out of a folder; one that was killed may have left some that need a moment to end."""
    end = time.monotonic() + patience
    with open(folder / ".lock", "w") as file:
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > end:
                    raise UserError(f"{folder} is in use by another {what}") from None
                time.sleep(0.1)
        yield


def flower_process(name: str) -> list[str]:
    """Return the command of a part of a fleet, which ends with this process."""
    return [sys.executable, "-m", "cflag.flower_process", name]


def tool(name: str) -> str:
    """Return the path of a command that was installed beside this Python."""
    return str(Path(sys.executable).parent / name)


def quiet_flower(home: Path) -> dict[str, str]:
    """Return the environment of Flower's parts: no telemetry, no update checks, short polling."""
    return {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def supernode_poll(seconds: float) -> dict[str, str]:
    """Return the environment for a SuperNode that looks for messages this often; 0 leaves Flower's own 3 s."""
    return {SUPERNODE_POLL: str(seconds)} if seconds > 0 else {}
