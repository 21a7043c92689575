"""The lines of metrics.jsonl: what every round has; a method's own names come beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPENT = ("gradients_current", "gradients_memory", "bytes_up", "bytes_down", "seconds")
"""What a round cost."""
ROUND = ("task", "round", "loss", "memory_loss", "accuracy", "accuracies", "cohort", "missing", "clients", *SPENT)
"""The names that are the core's in a line; what a method's server logs has others."""
CLIENT = ("loss", "memory_loss")
"""The same in `clients`."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics; none where no round is finished."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
