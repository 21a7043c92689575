"""What a scenario makes of a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cflag.data.options import BenchmarkOptions
from cflag.data.source import Source
from cflag.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def _unchanged(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Task:
    """One task: its classes (as output numbers) and what happens to its inputs."""

    classes: tuple[int, ...]
    transform: Callable[[Tensor], Tensor] = _unchanged
    marked: bool = False
    """Whether samples say themselves that they are of this task, by its number; else their classes do."""


@dataclass(frozen=True)
class TaskSequence:
    """The tasks in the order in which they are learned."""

    tasks: tuple[Task, ...]
    by_task: bool
    """Whether a sample's task is known when it is answered, so that the task's own outputs alone compete."""


def check_known(source: Source, options: BenchmarkOptions) -> None:
    """Refuse more tasks than the source's samples are of; those of tasks beyond `tasks` are left out."""
    assert source.train.task is not None
    known = int(source.train.task.max()) + 1
    if options.tasks > known:
        raise UserError(f"tasks = {options.tasks} is more than the {known} that {source.name} has")


Scenario = Callable[[Source, BenchmarkOptions], TaskSequence]
"""What is registered as a scenario."""
