"""A source is a data set: samples with labels, train and test."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cflag.errors import DataError


@dataclass(frozen=True)
class Split:
    """One half of a source: `x` is (n, ...), `y` holds n labels, `subject` (where known) n people."""

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
    class_names: tuple[str, ...] = ()
    """What the classes are called, in the order of their labels; empty where nobody knows."""

    def __post_init__(self) -> None:
        for half, split in (("train", self.train), ("test", self.test)):
            _check_tensors(f"{self.name}: {half}", split)
            if len(split.x) != len(split.y) or not len(split.y):
                raise DataError(f"{self.name}: {half} has {len(split.x)} samples and {len(split.y)} labels")
            low, high = int(split.y.min()), int(split.y.max())
            if low < 0 or high >= self.classes:
                raise DataError(f"{self.name}: {half} labels span {low}..{high}, expected 0..{self.classes - 1}")

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
    ) -> Source:
        """Make a source of your own tensors: (x, y) for train and for test, labels 0..classes-1.

        `tasks` are the tasks of the train and of the test samples, from 0, for `scenario = "domain"`.
        """
        for half in (train, test):
            if len(half) != 2 or not all(isinstance(part, Tensor) for part in half):
                raise DataError(f"{name}: give (x, y) as two tensors for train and for test")
        classes = int(torch.cat([train[1].flatten(), test[1].flatten()]).max()) + 1
        ids = (None, None) if tasks is None else tuple(part.long() for part in tasks)
        learned, held_out = (Split(x, y.long(), task=i) for (x, y), i in zip((train, test), ids, strict=True))
        return cls(name, learned, held_out, classes)


def _check_tensors(where: str, split: Split) -> None:
    """Refuse what would only fail, or silently go wrong, somewhere deep in training."""
    if split.y.dim() != 1:
        raise DataError(f"{where} labels have shape {tuple(split.y.shape)}, expected one number per sample")
    if split.task is not None and (split.task.shape != split.y.shape or bool((split.task < 0).any())):
        raise DataError(f"{where} tasks have shape {tuple(split.task.shape)}, expected a number from 0 per sample")
    if split.x.is_floating_point() and not bool(torch.isfinite(split.x).all()):
        raise DataError(f"{where} samples hold values that are not finite")
