"""Where a run's time goes: rounds, tests, checkpoints. `python -m benchmarks.shares` prints a table.

Runs two presets as they are, on random images in place of CIFAR-10, and counts the seconds inside three functions.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import cflag.experiment
from cflag.config import load_raw, merge, resolve
from cflag.data.source import Source
from cflag.engines.local import LocalEngine
from cflag.experiment import Experiment

PARTS = {
    "rounds": (LocalEngine, "converse"),
    "tests": (LocalEngine, "evaluate"),
    "checkpoints": (cflag.experiment, "save_checkpoint"),
}


def timed(function: Callable[..., Any], part: str, spent: dict[str, float]) -> Callable[..., Any]:
    """Wrap a function so that its seconds are added up."""

    def counting(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[part] += time.perf_counter() - started

    return counting


def shares(preset: str, source: Source | None) -> dict[str, float]:
    """Run a preset; return the seconds of its parts and of the whole run without loading the data."""
    raw = merge(load_raw(preset), [("source", "custom")] if source else [])
    experiment = Experiment(resolve(raw), source)
    spent = dict.fromkeys(PARTS, 0.0)
    plain = {part: getattr(cls, name) for part, (cls, name) in PARTS.items()}
    for part, (cls, name) in PARTS.items():
        setattr(cls, name, timed(plain[part], part, spent))
    started = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            experiment.run(Path(folder) / "run")
    finally:
        for part, (cls, name) in PARTS.items():
            setattr(cls, name, plain[part])
    return {**spent, "whole": time.perf_counter() - started}


def images(classes: int = 10, train: int = 5000, test: int = 1000) -> Source:
    """Return random images with CIFAR-10's shape and counts."""

    def half(count: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(classes).repeat(count)
        return torch.randint(0, 256, (len(y), 3, 32, 32), dtype=torch.uint8), y

    return Source.from_tensors(half(train), half(test))


def main() -> None:
    """Print the shares of two presets."""
    table = Table("run", "whole", *PARTS, "the rest")
    for name, given in (("digits", None), ("cifar10-smoke", images())):
        spent = shares(name, given)
        whole = spent.pop("whole")
        rest = whole - sum(spent.values())
        table.add_row(name, f"{whole:.1f} s", *(f"{100 * s / whole:.0f} %" for s in (*spent.values(), rest)))
    Console().print(table)


if __name__ == "__main__":
    main()
