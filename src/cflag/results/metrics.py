"""The lines of metrics.jsonl: what every round has; a method's own names come beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cflag.errors import UserError
from cflag.files import WHAT_TO_DO, checksum

SPENT = ("gradients_current", "gradients_memory", "bytes_up", "bytes_down", "seconds")
"""What a round cost."""
ROUND = (
    "task",
    "round",
    "loss",
    "memory_loss",
    "accuracy",
    "accuracies",
    "cohort",
    "missing",
    "clients",
    "prequential",
    "noticed",
    "epsilon",
    *SPENT,
)
"""The names that are the core's in a line; what a method's server logs has others."""
CLIENT = ("task", "loss", "memory_loss")
"""The same in `clients`."""


def task_starts(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Return the rounds, over the whole run, in which everybody begins a task, but for the first; and the task's name.

    Where clients have clocks of their own, nobody does.
    """
    if any("task" in record["clients"] for record in records):
        return []
    return [(t, f"task {r['task']}") for t, r in enumerate(records, 1) if r["round"] == 1 and t > 1]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics; none where no round is finished."""
    if not path.exists():
        return []
    return [read_line(line, path) for line in path.read_bytes().splitlines()]


def read_line(line: bytes, path: Path) -> dict[str, Any]:
    """Return what a line of the metrics says, or say that it cannot be read."""
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise UserError(f"{path} is damaged: a line of it is not JSON ({error}); {WHAT_TO_DO}") from None
    return record


def chained(before: str, line: bytes) -> str:
    """Return the checksum of all lines so far, from that of the lines before: each is read once, however many come."""
    return checksum(before.encode() + line)
