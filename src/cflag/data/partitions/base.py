"""What a partition gets, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cflag.data.options import BenchmarkOptions
from cflag.data.source import Split
from cflag.rng import stream

Indices = NDArray[np.int64]
OWN = "own"
"""The partition by folders, which one machine may have all of: DATA/client-0, DATA/client-1, ..."""


@dataclass(frozen=True)
class Half:
    """A task's samples in one half of the source."""

    name: Literal["train", "test"]
    split: Split
    """The source's half, with the samples of all tasks."""
    indices: Indices
    """Which of them belong to the task, in ascending order."""

    @property
    def labels(self) -> Indices:
        """The class of each of the task's samples."""
        return self.split.y.numpy()[self.indices]


@dataclass(frozen=True)
class Deal:
    """A task to deal. Train and test are dealt alike: a client is tested on the distribution it learns from."""

    train: Half
    test: Half
    classes: tuple[int, ...]
    """The task's classes, in ascending order."""
    task: int
    options: BenchmarkOptions

    def rng(self, half: Half) -> np.random.Generator:
        """Return the random stream for dealing one half."""
        return stream(self.options.seed, f"deal {half.name}", self.task)


Dealt = tuple[list[Indices], list[Indices]]
"""Each client's train samples and each client's test samples, as indices into the halves of the source."""

Partition = Callable[[Deal], Dealt]
"""What is registered as a partition."""


def alike(partition: Partition) -> Partition:
    """Mark a partition to which clients are all alike, so that it can deal a task among some of them."""
    setattr(partition, "alike", True)  # noqa: B010 (a function has no such attribute, says mypy)
    return partition


def own_data(partition: Partition) -> Partition:
    """Mark a partition for clients that each bring data of their own, so that no machine has all of it."""
    setattr(partition, "own_data", True)  # noqa: B010 (a function has no such attribute, says mypy)
    return partition


def has_own_data(partition: Partition) -> bool:
    """Tell whether a partition is for clients that bring data of their own."""
    return hasattr(partition, "own_data")
