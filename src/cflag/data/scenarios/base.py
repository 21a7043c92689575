"""What a scenario makes of a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cflag.data.options import BenchmarkOptions
from cflag.data.source import Source


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


Scenario = Callable[[Source, BenchmarkOptions], TaskSequence]
"""What is registered as a scenario."""
