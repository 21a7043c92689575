"""Accuracy against ε: a preset with several noise levels, samples or clients protected.

python -m benchmarks.privacy [--preset digits] [--seeds 1234,1235,1236] [--out runs/privacy] [UNIT ...]

Repeat the command to go on with what was stopped.

Noise repeats, so that the table can be made again; a run that is to protect somebody must not be repeatable.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from cflag import Result, resume, run


@dataclass(frozen=True)
class Row:
    """One line of the table: a unit, a method and a noise level; 0 is a run that protects nobody."""

    unit: str
    method: str
    noise: float

    def settings(self) -> dict[str, Any]:
        """Return what the run differs in from the preset."""
        if not self.noise:
            return {**SHORT[self.unit], "method": self.method}
        private = {"unit": self.unit, "clip": CLIP, "noise": self.noise, "repeatable_noise": True}
        own = {self.method: {"measure_gamma": False}} if self.method.startswith("cflag") else {}
        return {**SHORT[self.unit], "method": self.method, "privacy": private, **own}

    @property
    def name(self) -> str:
        """The folder of its runs."""
        return f"{self.unit}-{self.method}-{self.noise:g}"


CLIP = 1.0
SHORT: dict[str, dict[str, Any]] = {
    "sample": {"rounds": 3, "epochs": 2},
    "client": {"rounds": 3, "epochs": 2, "clients": 40, "partition": "iid", "min_samples": 4},
}
"""Few rounds, as each costs privacy; many clients where one of them is to be hidden among the others."""
NOISES = {"sample": (0, 1, 2, 4, 8), "client": (0, 0.5, 1, 2, 4)}
METHODS = ("cflag-sgd",)
ROWS = [Row(unit, method, noise) for unit in NOISES for method in METHODS for noise in NOISES[unit]]


def result_of(row: Row, preset: str, seed: int, out: Path) -> Result:
    """Return a run's result; run it where it is not there yet."""
    folder = out / f"{row.name}-{seed}"
    if (folder / "config.toml").exists():
        return resume(folder)
    return run(preset, out=folder, workers=1, seed=seed, **row.settings())


def line(row: Row, results: Sequence[Result]) -> str:
    """Return one line of the table."""

    def cell(values: list[float]) -> str:
        return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")

    accuracy = cell([100 * result.average_accuracy for result in results])
    forgotten = cell([100 * result.forgetting for result in results])
    epsilon = f"{fmean(result.costs['epsilon'] for result in results):.2f}" if row.noise else "∞"
    return f"| {row.unit} | `{row.method}` | {row.noise or 'none'} | {epsilon} | {accuracy} | {forgotten} |"


def main() -> None:
    """Run what is not there yet, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("units", nargs="*", default=list(NOISES), metavar="UNIT")
    parser.add_argument("--preset", default="digits")
    parser.add_argument("--seeds", default="1234,1235,1236")
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    print("| unit | method | noise z | ε | Acc % | Forget % |\n|---|---|---:|---:|---:|---:|")
    for row in (row for row in ROWS if row.unit in args.units):
        print(line(row, [result_of(row, args.preset, seed, args.out) for seed in seeds]), flush=True)


if __name__ == "__main__":
    main()
