"""A class for every step of a sequence: cross entropy over steps, and the share of steps that are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from cflag.errors import DataError
from cflag.problems.base import Problem, Table, ratio, whole_classes
from cflag.problems.score import Score
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

PADDING = -100
"""The label of a step that is none; torch's own `ignore_index`."""
TOKENS = Score("accuracy", "Acc", "accuracy over steps", "%", 100.0, 1, bounds=(0.0, 1.0))


@register("problem", "sequence", "a class for every step: cross entropy over steps, accuracy over steps")
class SequenceLabels(Problem):
    """Labels are (n, T) whole numbers from 0, −100 for padding; a model answers (T, classes) for each sample.

    A sample's loss is the mean over its own steps, so that samples count the same whatever their length.
    """

    scores: ClassVar[tuple[Score, ...]] = (TOKENS,)
    one_of_many = True

    def labels(self, y: Tensor, where: str) -> Tensor:
        """Return whole numbers, one per step."""
        if y.dim() != 2 or not y.shape[1]:
            raise DataError(f"{where} labels have shape {tuple(y.shape)}, expected (n, T): one for each step")
        return whole_classes(y, where)

    def outputs(self, y: Sequence[Tensor]) -> int:
        """One output for each class up to the largest."""
        return max(1, max(int(half.max()) for half in y) + 1)

    def check_range(self, y: Tensor, outputs: int, where: str) -> None:
        """Refuse classes that there are not."""
        odd = y[(y != PADDING) & ((y < 0) | (y >= outputs))]
        if len(odd):
            raise DataError(f"{where} labels hold {int(odd[0])}, expected 0..{outputs - 1}, or {PADDING} for padding")

    def answers(self, outputs: int, label: tuple[int, ...]) -> tuple[int, ...]:
        """A row of outputs for every step."""
        return (*label, outputs)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the cross entropy, its mean over a sample's steps; none is nothing."""
        each = torch.nn.functional.cross_entropy(*self.pair(outputs, y), ignore_index=PADDING, reduction="none")
        return each.sum(1) / (y != PADDING).sum(1).clamp(min=1)

    def pair(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return classes before steps."""
        return outputs.transpose(1, 2), y

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Count right steps, and steps."""
        return torch.stack([(outputs.argmax(2) == y).sum(1), (y != PADDING).sum(1)], 1)

    def width(self, outputs: int) -> int:
        """Two counts."""
        return 2

    def score(self, name: str, sums: Table, samples: Table) -> Table:
        """Return right steps over steps."""
        return ratio(sums[..., 0], sums[..., 1])

    def possible(self, sums: Table, samples: Table) -> bool:
        """Right steps are between none and all."""
        return bool((sums >= 0).all() and (sums[..., 0] <= sums[..., 1]).all())

    def groups(self, y: Tensor, train: Tensor) -> NDArray[np.int64]:
        """The most frequent class of each sequence, the lowest of several."""
        classes = max(1, int(max(y.max(), train.max())) + 1)
        counts = torch.stack([(y == label).sum(1) for label in range(classes)], 1)
        found: NDArray[np.int64] = counts.argmax(1).numpy()
        return found
