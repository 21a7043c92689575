"""What a checkpoint costs by population and cohort: `python -m benchmarks.checkpoints` prints a table.

Every client of the population has a state (a memory of 32 samples of 64 numbers); in each round a random cohort changes
and is saved with the server's checkpoint, as a run does it with two workers' logs, here in one process. `--fast` leaves
the largest population out.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from cflag.results.generations import Generations
from cflag.states.store import StateStore

POPULATIONS = (1_000, 10_000, 100_000)
COHORTS = (10, 100, 1_000)
ROUNDS = 12
WORKERS = 2
RUN = "0123456789abcdef"
STATE: dict[str, Any] = {
    "memory.x": torch.zeros(32, 64),
    "memory.y": torch.zeros(32, dtype=torch.long),
    "memory.task": torch.zeros(32, dtype=torch.long),
    "dates": {"0": "2025-01-01"},
}
SERVER = {"params": torch.zeros(10_000), "done": 0}


def save(store: StateStore, generations: Generations, round_: int, cohort: Sequence[int]) -> None:
    """Write one checkpoint down."""
    stamp = f"{RUN}.1-{round_}"
    for k, tail in enumerate(store.tails(stamp, WORKERS)):
        store.take(tail, *tail.write((client, STATE) for client in cohort[k::WORKERS]))
    store.compact(stamp)
    generations.save(stamp, {**SERVER, "states": store.named()})
    store.checkpointed()


def measure(population: int, cohort: int, folder: Path) -> tuple[list[float], list[int], int, float]:
    """Return each checkpoint's milliseconds, the bytes it adds, files in the end, and seconds to find all states again.

    Bytes are those of the server's checkpoint and of all that logs grow by, copies included.
    """
    drawn, store, generations = random.Random(1), StateStore(folder), Generations(folder)
    save(store, generations, 1, range(population))
    times, sizes = [], []
    for round_ in range(2, ROUNDS + 2):
        chosen = sorted(drawn.sample(range(population), cohort))
        before, started = _logs(folder), time.perf_counter()
        save(store, generations, round_, chosen)
        times.append(1000 * (time.perf_counter() - started))
        sizes.append(max(_logs(folder) - before, 0) + generations.files()[0].stat().st_size)
    started = time.perf_counter()
    StateStore(folder).restore(store.named(), generations.before())
    return times, sizes, len(list(folder.iterdir())), time.perf_counter() - started


def _logs(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def main() -> None:
    """Measure each pair."""
    table = Table("clients", "cohort", "median ms", "mean ms", "largest ms", "kB a checkpoint", "files", "s to resume")
    for population in POPULATIONS[:-1] if "--fast" in sys.argv else POPULATIONS:
        for cohort in COHORTS:
            with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
                times, sizes, files, resumed = measure(population, cohort, Path(folder))
            row = [population, cohort, f"{median(times):.1f}", f"{fmean(times):.1f}", f"{max(times):.1f}"]
            table.add_row(*map(str, row), f"{median(sizes) / 1000:.0f}", str(files), f"{resumed:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
