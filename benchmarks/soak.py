"""Run long, wide and deep, and see that nothing grows: memory, open files, the run folder, the time of a round.

python -m benchmarks.soak [PART ...] [--out DIR]      (or: make soak)

`all` is one run with 10,000 rounds, 2,000 clients and 100 tasks, which changes clients' states 200,000 times; the
other parts have one large number each. A part compares the first tenth of its run, once memories are full, with the
last: of times the median, of the rest the largest. A task's last round is apart: it tests everything and changes every
client. Two things grow, as they are what a run is for, and are left out of the folder's size: a line of metrics per
round, a test per task.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.faults import CFLAG, descendants
from cflag.config import flatten, merge, resolve
from cflag.data.source import Source
from cflag.experiment import Experiment
from cflag.problems.score import ACCURACY, Score
from cflag.results.display import Quiet

SAMPLES = 200
"""Looks at memory and folder in a part."""
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
TINY: dict[str, Any] = {
    "method": "cflag",
    "source": "custom",
    "scenario": "permuted",
    "partition": "iid",
    "steps": 1,
    "batch": 4,
    "width": 4,
    "min_samples": 1,
    "workers": 1,
    "memory": {"per_task": 2, "sample": 2, "limit_samples": 4},
}
"""C-FLAG with a model of a hundred parameters; its memory is full after two tasks."""
FILLED = 2
PARTS: dict[str, dict[str, int]] = {
    "all": {"clients": 2000, "tasks": 100, "rounds": 100, "clients_per_round": 10},
    "rounds": {"clients": 50, "tasks": 20, "rounds": 500, "clients_per_round": 3},
    "tasks": {"clients": 50, "tasks": 100, "rounds": 5, "clients_per_round": 3},
    "clients": {"clients": 2000, "tasks": 20, "rounds": 10, "clients_per_round": 10},
}
FLEET = 300
"""Questions that the real deployment is asked."""


@dataclass
class Sample:
    """What was there after a round."""

    done: int
    cpu: float
    """Seconds that the processes have computed so far: on a busy machine they say more than the clock does."""
    mb: float
    descriptors: int
    files: int
    folder_bytes: int
    checkpoint_bytes: int


@dataclass
class Meter(Quiet):
    """Follows a run and notes what it takes."""

    folder: Path
    rounds: int
    """Of a task."""
    total: int
    processes: Callable[[], list[int]] = lambda: [os.getpid()]
    samples: list[Sample] = field(default_factory=list)
    plain: list[tuple[int, float]] = field(default_factory=list)
    """The times of rounds, each with the rounds done then."""
    last: list[tuple[int, float]] = field(default_factory=list)
    """The same of tasks' last rounds."""
    lines: list[tuple[int, float]] = field(default_factory=list)
    """The bytes of their lines in the metrics; of plain rounds."""
    done: int = 0
    _time: float = 0.0

    def start(self, name: str, tasks: int, rounds: int, done: int, own: int = 0, score: Score = ACCURACY) -> None:
        """The clock starts."""
        self._time = time.perf_counter()

    def update(self, record: dict[str, Any]) -> None:
        """A round is finished; looking around is not part of the next one."""
        self.done += 1
        ends = self.done % self.rounds == 0
        (self.last if ends else self.plain).append((self.done, time.perf_counter() - self._time))
        if not ends:
            self.lines.append((self.done, len(json.dumps(record))))
        if self.done * SAMPLES // self.total > (self.done - 1) * SAMPLES // self.total:
            self.samples.append(self.look())
        self._time = time.perf_counter()

    def look(self) -> Sample:
        """Count what there is now."""
        pids = self.processes()
        found = [path for path in self.folder.rglob("*") if not path.name.startswith(("test-", "metrics"))]
        sizes = [status.st_size for status in map(_status, found) if status is not None]
        mb = sum(_resident(pid) for pid in pids)
        count = sum(_descriptors(pid) for pid in pids)
        checkpoints = [path for path in found if path.name.startswith("server.")]
        size = max((status.st_size for status in map(_status, checkpoints) if status is not None), default=0)
        return Sample(self.done, sum(map(_computed, pids)), mb, count, len(sizes), sum(sizes), size)


def _status(path: Path) -> os.stat_result | None:
    """Return what the system knows of a file; None for a folder, and for a file that has just been replaced."""
    try:
        return path.stat() if path.is_file() else None
    except OSError:
        return None


def _resident(pid: int) -> float:
    """Return a process's memory in MB; 0 where it has just ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20
    except OSError:
        return 0.0


def _computed(pid: int) -> float:
    """Return the seconds that a process has computed; 0 where it has just ended."""
    try:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])) / TICKS
    except OSError:
        return 0.0


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


@dataclass(frozen=True)
class Row:
    """One quantity in the first and the last tenth of a run."""

    part: str
    what: str
    first: float
    last: float


def rows(part: str, meter: Meter) -> list[Row]:
    """Compare the first tenth of a run, once memories are full, with its last."""
    total = max(1, meter.done)
    begin = FILLED * meter.rounds if 4 * FILLED * meter.rounds <= total else 0

    def tenths(values: Sequence[tuple[int, float]], of: Callable[[list[float]], float]) -> tuple[float, float]:
        first = [value for done, value in values if begin < done <= begin + total / 10] or [values[0][1]]
        return of(first), of([value for done, value in values if done > 0.9 * total])

    found = [Row(part, "seconds per round", *tenths(meter.plain, median))]
    pairs = list(pairwise(meter.samples))
    computed = [(b.done, (b.cpu - a.cpu) / (b.done - a.done)) for a, b in pairs]
    found.append(Row(part, "seconds computed per round, all rounds", *tenths(computed, fmean)))
    if meter.last:
        found.append(Row(part, "seconds of a task's last round", *tenths(meter.last, median)))
    found.append(Row(part, "bytes of a line of metrics", *tenths(meter.lines, max)))
    names = {
        "memory, MB": "mb",
        "open files": "descriptors",
        "files in the run folder, no tests": "files",
        "bytes of the server's checkpoint": "checkpoint_bytes",
        "bytes of it, no metrics, no tests": "folder_bytes",
    }
    for what, name in names.items():
        found.append(Row(part, what, *tenths([(s.done, getattr(s, name)) for s in meter.samples], max)))
    return found


def source(clients: int) -> Source:
    """Return four samples for each client, and at most 500 that are held out."""
    count = 4 * clients
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(count) % 4
    return Source.from_tensors((x, y), (x[:500], y[:500]))


def soak_local(part: str, folder: Path, **settings: int) -> Meter:
    """Run on the local engine in this process; a test after each task."""
    values = {**TINY, **settings, "eval_every": settings["rounds"]}
    experiment = Experiment(resolve(merge({}, flatten(values))), source(settings["clients"]))
    meter = Meter(folder, settings["rounds"], settings["rounds"] * settings["tasks"])
    experiment.run(folder, meter)
    return meter


def soak_fleet(folder: Path, questions: int) -> Meter:
    """Run a real deployment with two clients and one question a round; count in all its processes."""
    values = {"method": "finetune", "clients": 2, "tasks": 1, "rounds": questions, "steps": 1, "width": 4}
    words = [part for k, v in {**values, "eval_every": questions}.items() for part in ("--set", f"{k}={v}")]
    command = [*CFLAG, "deploy", "digits", *words, "--out", str(folder), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    meter = Meter(folder, questions, questions, lambda: [process.pid, *descendants(process.pid)])
    with _following(folder / "metrics.jsonl", meter):
        if process.wait() != 0:
            raise RuntimeError(f"{folder}: the deployment failed")
    return meter


@contextmanager
def _following(metrics: Path, meter: Meter) -> Iterator[None]:
    """Tell a meter of each line that another process writes."""
    ended = threading.Event()

    def follow() -> None:
        meter.start("", 1, 1, 0)
        seen = 0
        while not ended.wait(0.02):
            lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
            for line in lines[seen:]:
                if line.endswith("\n"):
                    meter.update(json.loads(line))
                    seen += 1

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def show(found: Sequence[Row], seconds: dict[str, float]) -> None:
    """Print the table."""
    table = Table(box=box.MARKDOWN)
    for name in ("part", "what", "first tenth", "last tenth", "last / first"):
        table.add_column(name, justify="left" if name in ("part", "what") else "right")
    for row in found:
        digits = ".4f" if "seconds" in row.what else ",.0f"
        ratio = row.last / row.first if row.first else float("nan")
        table.add_row(row.part, row.what, f"{row.first:{digits}}", f"{row.last:{digits}}", f"{ratio:.2f}")
    Console(width=120).print(table)
    print("; ".join(f"{part}: {spent:.0f} s" for part, spent in seconds.items()))


def main() -> None:
    """Run the parts, one after the other; the local ones each in a process of its own, so that memory is theirs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS, "fleet"], metavar="PART", help=f"{[*PARTS, 'fleet']}")
    parser.add_argument("--out", type=Path, help="an existing folder for the runs (default: a temporary one)")
    parser.add_argument("--shorter", type=int, default=1, metavar="N", help="an Nth of the rounds")
    parser.add_argument("--json", action="store_true", help="run one part here and print what it found")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="cflag-soak-", dir=args.out))
    found: list[Row] = []
    seconds: dict[str, float] = {}
    for part in args.parts or [*PARTS, "fleet"]:
        started = time.monotonic()
        if args.json or part == "fleet":
            few = max(1, args.shorter)
            if part == "fleet":
                meter = soak_fleet(home / part, FLEET // few)
            else:
                meter = soak_local(part, home / part, **{**PARTS[part], "rounds": max(2, PARTS[part]["rounds"] // few)})
            found += rows(part, meter)
        else:
            command = [sys.executable, "-m", "benchmarks.soak", part, "--json", "--shorter", str(args.shorter)]
            done = subprocess.run([*command, "--out", str(home)], check=True, stdout=subprocess.PIPE)
            found += [Row(**row) for row in json.loads(done.stdout)]
        seconds[part] = time.monotonic() - started
        if not args.json:
            show(found, seconds)
    if args.json:
        print(json.dumps([vars(row) for row in found]))


if __name__ == "__main__":
    main()
