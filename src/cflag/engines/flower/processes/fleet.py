"""The processes of a deployment on this machine: a SuperLink, a client's SuperNode, and Flower's own command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from cflag.engines.flower.environment import STAY, SUPERNODE_POLL
from cflag.errors import CflagError
from cflag.process import STARTER

APP = Path(__file__).parent.parent / "app"
"""The folder that `flwr run` takes."""
FEDERATION = "cflag"
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

    def last_words(self) -> str:
        """Return the end of its log in one line."""
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""
        return " ".join(text.split())[-400:]


class Flwr:
    """Flower's command line, talking to one SuperLink."""

    def __init__(self, home: Path, address: str, ca: Path | None) -> None:
        self.env = quiet_flower(home)
        home.mkdir(parents=True, exist_ok=True)
        connection = {"address": address, **({"root-certificates": str(ca)} if ca else {"insecure": True})}
        settings = {"superlink": {"default": FEDERATION, FEDERATION: connection}}
        (home / "config.toml").write_text(tomli_w.dumps(settings))

    def call(self, *args: str, federation_config: str = "") -> dict[str, Any]:
        """Run a command and return its JSON; `flwr` ends with 0 even where it fails, so only that counts."""
        extra = ["--federation-config", federation_config] if federation_config else []
        done = subprocess.run(
            [tool("flwr"), *args, *extra, "--format", "json"], env={**os.environ, **self.env}, capture_output=True
        )
        text = done.stdout.decode(errors="replace")
        start = text.find("{")
        try:
            answer: dict[str, Any] = json.loads(text[start:]) if start >= 0 else {}
        except json.JSONDecodeError:
            answer = {}
        if not answer.get("success"):
            why = answer.get("error-message") or " ".join((text + done.stderr.decode(errors="replace")).split())[-400:]
            raise CflagError(f"flwr {args[0]}: {why}")
        return answer

    def submit(self, out: Path, federation_config: str = "") -> str:
        """Submit the run whose folder this is; return Flower's id for it."""
        config = f'out="{out.absolute()}"'
        answer = self.call("run", str(APP), FEDERATION, "-c", config, federation_config=federation_config)
        return str(answer["run-id"])

    def failure(self, run: str) -> str | None:
        """Return why a run ended that should not have; None while it has not."""
        (found,) = self.call("list", FEDERATION, "--run-id", run)["runs"]
        return str(found["status-details"]) if str(found["status"]).startswith("finished") else None


def superlink(folder: Path, host: str, port: int, keys: Path | None, keep: bool = False, *extra: str) -> Process:
    """Return a SuperLink that works in this folder; without keys it is for this machine alone."""
    secure = ["--insecure"]
    if keys is not None:
        files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key"}
        secure = ["--enable-supernode-auth", *(part for k, v in files.items() for part in (k, str(keys / v)))]
    command = [*flower_process("superlink"), "--host", host, "--port", str(port), *secure]
    command += ["--disable-runtime-dependency-installation", *extra]
    env = {**quiet_flower(folder / "flower"), **({STAY: "1"} if keep else {})}
    return Process("SuperLink", command, folder / "superlink.log", env)


def wait_until_open(process: Process, host: str, port: int) -> None:
    """Wait until a process listens."""
    end = time.monotonic() + STARTS
    while time.monotonic() < end:
        if not process.alive:
            raise CflagError(f"the {process.name} did not start: {process.last_words()} (see {process.log})")
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise CflagError(f"the {process.name} does not answer on {host}:{port} after {STARTS:.0f} s; see {process.log}")


def flower_process(name: str) -> list[str]:
    """Return the command of a SuperLink, SuperNode or client that ends with this process."""
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
