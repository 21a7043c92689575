"""Break a real deployment on this machine in every way we know, and report what is lost.

python -m benchmarks.faults [NAME ...] [--out DIR]      (or: make faults)

Each fault is injected into a `cflag deploy` of Split-Digits with three clients, TLS and node authentication. The last
columns compare with a local run: the difference in final accuracy, and whether all numbers are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from cflag import run
from cflag.files import load_state
from cflag.results.folder import RunFolder

CFLAG = [sys.executable, "-m", "cflag"]
SETTINGS: dict[str, Any] = {"clients": 3, "tasks": 2, "rounds": 3}
LIMIT = 600.0
"""Seconds after which a fault's run counts as hanging."""


@dataclass
class Outcome:
    """What a fault did to a run."""

    fault: str
    times: int
    """How often it was injected."""
    lost: int
    """Rounds that some client missed."""
    data: str
    """The clients that lost data, or "none"."""
    difference: float
    """Final accuracy minus that of the local run."""
    same: bool
    """Whether all numbers are those of the local run."""
    seconds: float


class Deployment:
    """A `cflag deploy` whose processes can be killed."""

    def __init__(self, path: Path, *options: str, **settings: Any) -> None:
        self.path = path
        self.options = options
        self.settings = {**SETTINGS, "deadline": 15.0, "patience": 300.0, **settings}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the deployment, or resume it if its folder exists."""
        words = [f"{key}={json.dumps(value)}" for key, value in self.settings.items()]
        begin = ["digits", "--out", str(self.path), *(part for word in words for part in ("--set", word))]
        which = ["--resume", str(self.path)] if (self.path / "config.toml").is_file() else begin
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path.parent / f"{self.path.name}.log", "ab") as log:
            self.process = subprocess.Popen([*CFLAG, "deploy", *which, *self.options], stdout=log, stderr=log)

    def wait(self) -> int:
        """Wait for its end; return the exit code."""
        assert self.process is not None
        return self.process.wait(LIMIT)

    def stop(self) -> None:
        """Stop it, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def records(self) -> list[dict[str, Any]]:
        """Return the metrics of the rounds so far."""
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def after(self, rounds: int) -> None:
        """Wait until so many rounds are done and the next one has begun."""
        end = time.monotonic() + LIMIT
        while len(self.records()) < rounds:
            if time.monotonic() > end or (self.process is not None and self.process.poll() is not None):
                raise RuntimeError(f"{self.path}: round {rounds} was not reached; see {self.path}.log")
            time.sleep(0.05)
        time.sleep(0.3)

    def pid(self, name: str) -> int:
        """Return the process id of a part, such as "client 1"."""
        pids: dict[str, int] = json.loads((self.path / "processes.json").read_text())
        return pids[name]

    def kill(self, name: str) -> None:
        """Kill a part with SIGKILL."""
        os.kill(self.pid(name), signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill all its processes at once, as a power cut does."""
        assert self.process is not None
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def log(self) -> str:
        """Return the command's output."""
        return (self.path.parent / f"{self.path.name}.log").read_text(errors="replace")

    def memories(self) -> list[dict[str, Any]]:
        """Return each client's final state, memory included."""
        folders = [self.path / "deployment" / f"client-{k}" for k in range(self.settings["clients"])]
        return [load_state(max(folder.glob("*/client-*.safetensors"))) for folder in folders]


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            child = int(stat.parent.name)
            found += [child, *descendants(child)]
    return found


def none(fleet: Deployment) -> int:
    """No fault, for comparison."""
    fleet.start()
    assert fleet.wait() == 0
    return 0


def client(fleet: Deployment) -> int:
    """A client is killed in the middle of a round; the others go on, and it comes back a minute later."""
    fleet.start()
    fleet.after(1)
    fleet.kill("client 1")
    assert fleet.wait() == 0
    return 1


def client_needed(fleet: Deployment) -> int:
    """The same with min_clients = all: the server waits for the client, and no answer is missing."""
    return client(fleet)


def supernode(fleet: Deployment) -> int:
    """Only a client's SuperNode is killed."""
    fleet.start()
    fleet.after(1)
    for pid in descendants(fleet.pid("client 2")):
        os.kill(pid, signal.SIGKILL)
    assert fleet.wait() == 0
    return 1


def superlink(fleet: Deployment) -> int:
    """The SuperLink is killed in the middle of a round, twice."""
    fleet.start()
    for rounds in (1, 3):
        fleet.after(rounds)
        fleet.kill("SuperLink")
    assert fleet.wait() == 0
    return 2


def server(fleet: Deployment) -> int:
    """The server's process is killed in the middle of a round, twice."""
    fleet.start()
    for rounds in (1, 4):
        fleet.after(rounds)
        fleet.kill("server")
    assert fleet.wait() == 0
    return 2


def machine(fleet: Deployment) -> int:
    """All processes are killed at once, as in a power cut; `cflag deploy --resume` goes on."""
    fleet.start()
    fleet.after(2)
    fleet.kill_all()
    fleet.start()
    assert fleet.wait() == 0
    return 1


def too_few(fleet: Deployment) -> int:
    """A needed client stays away too long: the run stops, keeps its checkpoint, and goes on with --resume."""
    fleet.start()
    fleet.after(2)
    fleet.kill("client 0")
    assert fleet.wait() == 1
    assert "min_clients = 3" in fleet.log()
    time.sleep(60)  # the SuperLink still holds the key of the client that was killed
    fleet.settings["patience"] = 300.0
    config = fleet.path / "config.toml"
    config.write_text(config.read_text().replace("patience = 20.0", "patience = 300.0"))
    fleet.start()
    assert fleet.wait() == 0
    return 1


Fault = Callable[[Deployment], int]
FAULTS: dict[str, tuple[Fault, list[str], dict[str, Any]]] = {
    "none": (none, [], {}),
    "client killed": (client, [], {"rounds": 40, "eval_every": 40}),
    "client killed, all needed": (client_needed, [], {"min_clients": 3}),
    "SuperNode killed": (supernode, [], {"min_clients": 3}),
    "SuperLink killed": (superlink, [], {"min_clients": 3}),
    "SuperLink killed, no database": (superlink, ["--no-database"], {"min_clients": 3}),
    "server killed": (server, [], {}),
    "power cut": (machine, [], {"min_clients": 3}),
    "too few clients": (too_few, [], {"min_clients": 3, "patience": 20.0}),
}


def inject(name: str, folder: Path) -> Outcome:
    """Inject one fault and compare the run with one of the local engine."""
    fault, options, settings = FAULTS[name]
    where = folder / name.replace(" ", "-").replace(",", "")
    fleet = Deployment(where / "fleet", *options, **settings)
    began = time.monotonic()
    times = fault(fleet)
    seconds = time.monotonic() - began
    own = {k: v for k, v in fleet.settings.items() if k not in ("deadline", "patience", "min_clients")}
    plain = run("digits", out=where / "local", workers=1, **own)
    result = json.loads((fleet.path / "result.json").read_text())
    lost = sum(bool(record.get("missing")) for record in fleet.records())
    difference = result["average_accuracy"] - plain.average_accuracy
    same = numbers(fleet.path) == numbers(where / "local")
    return Outcome(name, times, lost, _data_lost(fleet, where / "local"), difference, same, seconds)


def numbers(folder: Path) -> tuple[list[dict[str, Any]], bytes]:
    """Return what must not depend on the engine: the metrics without times, and the model."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    plain = [{k: v for k, v in line.items() if k not in ("seconds", "missing", "cohort")} for line in lines]
    return plain, (folder / "model.safetensors").read_bytes()


def _data_lost(fleet: Deployment, plain: Path) -> str:
    """Name the clients whose final state differs from the same client's on the local engine."""
    run = RunFolder(plain)
    run.states.restore(load_state(run.generations.files()[0])["states"], [])
    whole = {number: place.load() for number, place in run.states.index.items()}
    wrong = [str(number) for number, memory in enumerate(fleet.memories()) if not same_state(memory, whole[number])]
    return f"client {', '.join(wrong)}" if wrong else "none"


def same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two saved states agree in all but the day: every value and every element of every tensor."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.dtype == b.dtype and torch.equal(a, b)
        return bool(a == b)

    return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one if key != "dates")


def main() -> int:
    """Inject the named faults, or all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FAULTS)} (default: all)")
    parser.add_argument("--out", type=Path, help="working folder (default: a temporary one)")
    args = parser.parse_args()
    folder = args.out or Path(tempfile.mkdtemp(prefix="cflag-faults-"))
    console = Console(width=110)
    console.print(f"working in {folder}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("fault", "injected", "rounds lost", "data lost", "accuracy diff. %", "same numbers", "time s"):
        table.add_column(column, justify="left" if column == "fault" else "right")
    wrong = 0
    for name in args.names or FAULTS:
        outcome = inject(name, folder)
        wrong += outcome.data != "none"
        same, difference = "yes" if outcome.same else "no", f"{100 * outcome.difference:+.1f}"
        row = (name, str(outcome.times), str(outcome.lost), outcome.data, difference, same, f"{outcome.seconds:.0f}")
        console.print("  ".join(row), highlight=False)
        table.add_row(*row)
    console.print(table)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
