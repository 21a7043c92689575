"""What each mean bears: accuracy against the number of clients that lie, for six lies. docs/robust.md shows it.

python -m benchmarks.liars FILE.csv [--processes 2]      run what is not in the file yet; it can be stopped at any time
python -m benchmarks.liars FILE.csv --into docs          the tables of docs/robust.md and its figure, from the file
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev

import torch

from benchmarks.lies import LIES, lying
from cflag import Experiment, load_config
from cflag.engines.local import LocalEngine
from cflag.errors import DivergedError

CLIENTS = 10
MEANS = ("mean", "clipped", "trimmed", "median", "krum")
METHODS = ("cflag", "replay")
ZETAS = (1e5, 0.3)
SEEDS = (1234, 1235, 1236)
COUNTS = (1, 2, 3)
COUNTED = "against"
"""The lie that is told by each number of clients; the others are told by the most."""
CHANCE = 0.5
"""The accuracy of a run that diverged: two classes a task."""
BEGIN, END = "<!-- liars: made by benchmarks.liars -->", "<!-- end of liars -->"


@dataclass(frozen=True)
class Cell:
    """One run: whose mean, against whom."""

    method: str
    zeta: float
    mean: str
    lie: str
    liars: int
    seed: int


def cells() -> Iterator[Cell]:
    """Yield all runs."""
    for seed, method, zeta, mean in product(SEEDS, METHODS, ZETAS, MEANS):
        yield Cell(method, zeta, mean, "none", 0, seed)
        for lie in LIES:
            for liars in COUNTS if lie == COUNTED else COUNTS[-1:]:
                yield Cell(method, zeta, mean, lie, liars, seed)


def accuracy(cell: Cell) -> float:
    """Run Split-Digits, the first clients lying; return the mean accuracy over tasks at the end."""
    torch.set_num_threads(1)
    config = load_config(
        "digits", method=cell.method, clients=CLIENTS, rounds=5, zeta=cell.zeta, seed=cell.seed,
        mean={"kind": cell.mean, "liars": max(COUNTS)}, workers=1,
    )  # fmt: skip
    experiment = Experiment(config)
    host = lying(experiment.host(), range(cell.liars), cell.lie)
    session = experiment.session(LocalEngine(host, 1, mean=config.mean))
    try:
        for done in range(config.tasks * config.rounds):
            session.play(done)
        counts = session.evaluate(range(config.tasks)).sum(0).double()
    except DivergedError:
        return CHANCE
    return float((counts[:, 0] / counts[:, 2]).mean())


def read(path: Path) -> dict[Cell, float]:
    """Return what a file has."""
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        return {
            Cell(row["method"], float(row["zeta"]), row["mean"], row["lie"], int(row["liars"]), int(row["seed"])):
            float(row["accuracy"])
            for row in csv.DictReader(file)
        }  # fmt: skip


def run(path: Path, processes: int) -> None:
    """Run what is missing, a line for each run as it ends."""
    done = read(path)
    todo = [cell for cell in cells() if cell not in done]
    with open(path, "a", newline="") as file, get_context("fork").Pool(processes) as pool:
        lines = csv.writer(file, lineterminator="\n")
        if not done:
            lines.writerow([*(f.name for f in fields(Cell)), "accuracy"])
        for count, (cell, value) in enumerate(pool.imap_unordered(_measured, todo), 1):
            lines.writerow([*astuple(cell), f"{value:.4f}"])
            file.flush()
            print(f"{count} of {len(todo)}: {cell} {value:.3f}", flush=True)


def _measured(cell: Cell) -> tuple[Cell, float]:
    return cell, accuracy(cell)


def complete(known: dict[Cell, float]) -> list[int]:
    """Return the seeds all of whose runs are there."""
    return [seed for seed in SEEDS if all(cell in known for cell in cells() if cell.seed == seed)]


def average(known: dict[Cell, float], method: str, zeta: float, mean: str, lie: str, liars: int) -> float:
    """Return the mean over seeds."""
    lie = lie if liars else "none"
    return fmean(known[Cell(method, zeta, mean, lie, liars, seed)] for seed in complete(known))


def table(known: dict[Cell, float], method: str, zeta: float) -> Iterator[str]:
    """Yield the lines of one table: each mean without liars, under each lie of three, and the worst of these."""
    heads = ["no liar", *LIES, "worst"]
    yield f"**{method}, {'IID' if zeta > 1e3 else f'ζ = {zeta:g}'}**\n"
    yield f"| mean | {' | '.join(heads)} |"
    yield f"|---|{'---:|' * len(heads)}"
    for mean in MEANS:
        under = [average(known, method, zeta, mean, lie, COUNTS[-1]) for lie in LIES]
        values = [average(known, method, zeta, mean, "none", 0), *under, min(under)]
        yield f"| `{mean}` | {' | '.join(f'{100 * v:.1f}' for v in values)} |"
    yield ""


def spread(known: dict[Cell, float]) -> float:
    """Return the mean over cells of the standard deviation over seeds."""
    seeds = complete(known)
    keys = {(c.method, c.zeta, c.mean, c.lie, c.liars) for c in cells()}
    return fmean(stdev(known[Cell(*key, seed)] for seed in seeds) for key in keys) if len(seeds) > 1 else 0.0


def draw(known: dict[Cell, float], path: Path) -> None:
    """Draw accuracy against the number of liars."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shape = (len(METHODS), len(ZETAS))
    figure, axes = plt.subplots(*shape, figsize=(9, 6), sharex=True, sharey=True, layout="constrained")
    for (method, zeta), axis in zip(product(METHODS, ZETAS), axes.flat, strict=True):
        for mean in MEANS:
            values = [100 * average(known, method, zeta, mean, COUNTED, k) for k in (0, *COUNTS)]
            axis.plot((0, *COUNTS), values, marker="o", label=mean)
        axis.set_title(f"{method}, {'IID' if zeta > 1e3 else f'ζ = {zeta:g}'}")
        axis.set_xticks((0, *COUNTS))
        axis.grid(alpha=0.3)
    figure.supxlabel(f"liars among {CLIENTS} clients, who answer '{COUNTED}' the others")
    figure.supylabel("accuracy, %")
    axes.flat[0].legend()
    figure.savefig(path, dpi=110)


def write(known: dict[Cell, float], docs: Path) -> None:
    """Put tables and figure where docs/robust.md has them."""
    lines = [line for method, zeta in product(METHODS, ZETAS) for line in table(known, method, zeta)]
    page = docs / "robust.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    noise = f"a cell's standard deviation over them is {100 * spread(known):.1f} points on average"
    lines.append(f"*Accuracy in %, mean of {len(complete(known))} seeds; {noise}.*")
    page.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]), encoding="utf-8")
    draw(known, docs / "images" / "liars.png")


def main(args: Sequence[str] | None = None) -> None:
    """Run what is missing, or write what is there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--into", type=Path, metavar="DOCS")
    given = parser.parse_args(args)
    if given.into is None:
        run(given.file, given.processes)
    else:
        write(read(given.file), given.into)


if __name__ == "__main__":
    main()
