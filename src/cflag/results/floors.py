"""Giving a run up early: scores after each task below which it is not worth going on (`cflag tune`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cflag.errors import PrunedError
from cflag.files import write_json
from cflag.problems.score import ACCURACY, Score
from cflag.results.display import Quiet
from cflag.results.folder import RunFolder
from cflag.results.metrics import read_metrics


class Floors(Quiet):
    """Shows nothing, and ends a run after the first task whose score so far is below its floor."""

    def __init__(self, folder: RunFolder, floors: Sequence[float]) -> None:
        self.folder, self.floors = folder, floors

    def start(self, name: str, tasks: int, rounds: int, done: int, own: int = 0, score: Score = ACCURACY) -> None:
        """Look at the rounds that are done: the process may have been killed just before it would have given up."""
        for record in read_metrics(self.folder.metrics)[:done]:
            self.update(record)

    def update(self, record: dict[str, Any]) -> None:
        """Look at a finished round; one that is not a task's last was not measured."""
        score, task = record["accuracy"], record["task"]
        if score is None or task > len(self.floors) or not score < self.floors[task - 1]:
            return
        said = {"task": task, "score": score, "floor": self.floors[task - 1]}
        write_json(self.folder.pruned_file, said)
        raise PrunedError(f"given up after task {task}: {score:.3f} is below {said['floor']:.3f}")
