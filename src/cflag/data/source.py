"""A source is a data set: samples with labels, train and test."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cflag.errors import DataError
from cflag.problems.base import find


@dataclass(frozen=True)
class Split:
    """One half of a source: `x` is (n, ...), `y` holds n labels, `subject` (where known) n people.

    What a label is depends on the source's problem: a class, a number or a row of them, a class for every step.
    """

    x: Tensor
    y: Tensor
    subject: Tensor | None = None
    picture: Tensor | None = None
    """What features in `x` were made of, where memories are to keep that."""
    task: Tensor | None = None
    """Which task each sample is of, from 0, where the source says so: `scenario = "domain"`."""

    def __len__(self) -> int:
        return len(self.y)

    def chosen(self, index: Tensor) -> Split:
        """Return some of the samples."""
        return Split(**{name: t[index] for name, t in vars(self).items() if t is not None})


@dataclass(frozen=True)
class Source:
    """A data set in memory.

    Images are uint8 (n, channels, height, width) and stay so until a batch is used; then they are divided by
    255 and normalised per channel with `mean` and `std`. Anything else is floating point and only normalised.
    """

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    origin: str = ""
    """Of features, the digest of the backbone that made them."""
    problem: str = "classes"
    """What its labels are: `cflag list problems`. `classes` is then the number of outputs that a model needs."""

    def __post_init__(self) -> None:
        problem = find(self.problem)
        for half, split in (("train", self.train), ("test", self.test)):
            where = f"{self.name}: {half}"
            if len(split.x) != len(split.y) or not len(split.y):
                raise DataError(f"{where} has {len(split.x)} samples and {len(split.y)} labels")
            labels = problem.labels(split.y, where)
            _check_tensors(where, split)
            problem.check_range(labels, self.classes, where)
            if labels is not split.y:  # in the type that the loss takes
                object.__setattr__(self, half, replace(split, y=labels))
        if self.train.y.shape[1:] != self.test.y.shape[1:]:
            shapes = tuple(self.train.y.shape[1:]), tuple(self.test.y.shape[1:])
            raise DataError(f"{self.name}: labels have shape {shapes[0]} in train and {shapes[1]} in test")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @classmethod
    def from_tensors(
        cls,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        name: str = "custom",
        tasks: tuple[Tensor, Tensor] | None = None,
        problem: str = "classes",
    ) -> Source:
        """Make a source of your own tensors: (x, y) for train and for test, labels 0..classes-1.

        `tasks` are the tasks of the train and of the test samples, from 0, for `scenario = "domain"`. With another
        `problem`, labels are what that says: `problem = "regression"` takes numbers.
        """
        for half in (train, test):
            if len(half) != 2 or not all(isinstance(part, Tensor) for part in half):
                raise DataError(f"{name}: give (x, y) as two tensors for train and for test")
            if not half[1].numel():
                raise DataError(f"{name}: there are no labels; give some for train and for test")
        kind, halves = find(problem), ("train", "test")
        y = [kind.labels(part[1], f"{name}: {half}") for part, half in zip((train, test), halves, strict=True)]
        ids = (None, None) if tasks is None else tuple(part.long() for part in tasks)
        learned, held_out = (Split(part[0], y[k], task=ids[k]) for k, part in enumerate((train, test)))
        return cls(name, learned, held_out, kind.outputs(y), problem=problem)


def _check_tensors(where: str, split: Split) -> None:
    """Refuse what would only fail, or silently go wrong, somewhere deep in training."""
    if split.task is not None and (split.task.shape != split.y.shape[:1] or bool((split.task < 0).any())):
        raise DataError(f"{where} tasks have shape {tuple(split.task.shape)}, expected a number from 0 per sample")
    if split.x.is_floating_point() and not bool(torch.isfinite(split.x).all()):
        raise DataError(f"{where} samples hold values that are not finite")
