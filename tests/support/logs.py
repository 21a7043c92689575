"""What a logger should have been told."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from cflag.results.display import Quiet

Points = dict[str, list[tuple[int, float]]]


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def expected(folder: Path) -> Points:
    """What a log should have, made of metrics.jsonl alone."""
    series: Points = {}
    total: dict[str, float] = {}
    for step, record in enumerate(records(folder), 1):
        plain = {"loss/current": "loss", "loss/memory": "memory_loss", "accuracy/mean": "accuracy"}
        plain |= {"forgetting/gamma": "gamma", "seconds": "seconds"}
        values = {name: record.get(key) for name, key in plain.items()}
        for k, accuracy in enumerate(record["accuracies"]):
            values[f"accuracy/task_0{k + 1}"] = accuracy
        for rate in ("alpha", "beta", "lambda", "capped"):
            values[f"rates/{rate}"] = mean(record["clients"][rate]) if rate in record["clients"] else None
        for cost in ("gradients_current", "gradients_memory", "bytes_up", "bytes_down"):
            total[cost] = total.get(cost, 0) + record[cost]
            values[f"cost/{cost}"] = total[cost]
        for name, value in values.items():
            if value is not None:
                series.setdefault(name, []).append((step, value))
    return series


class Notes(Quiet):
    """Hears what is said of logging, and breaks in a round."""

    def __init__(self, stop_at: int = 0) -> None:
        self.told: list[str] = []
        self.stop_at = stop_at

    def update(self, record: dict[str, Any]) -> None:
        self.stop_at -= 1
        if not self.stop_at:
            raise ValueError("broken")

    def note(self, text: str) -> None:
        if text.startswith("logging"):  # the method may have something to say, too
            self.told.append(text)
