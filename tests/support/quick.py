"""A short run, and what two runs must have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cflag import run

QUICK: dict[str, Any] = {"tasks": 2, "rounds": 2, "batch": 64, "width": 8}


def without_times(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def same(one: Path, other: Path) -> None:
    assert without_times(one) == without_times(other)
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    results = [json.loads((p / "result.json").read_text()) for p in (one, other)]
    for result in results:
        result["costs"].pop("seconds")
        result["costs"].pop("peak_mb")
        result["config"].pop("workers")
    assert results[0] == results[1]


def same_with_any_workers(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Run with one, two and three workers, which must have everything in common; return the metrics."""
    for workers in (1, 2, 3):
        run("digits", out=folder / str(workers), **{**QUICK, **settings, "workers": workers})
        same(folder / "1", folder / str(workers))
    return without_times(folder / "1")
