"""One class per sample: cross entropy, and the share of right answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from cflag.errors import DataError
from cflag.problems.base import Problem, Table, ratio, whole_classes
from cflag.problems.score import ACCURACY, Score
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@register("problem", "classes", "one class per sample: cross entropy, accuracy")
class Classes(Problem):
    """Labels are (n,) whole numbers from 0; a model answers with a score for each class."""

    scores: ClassVar[tuple[Score, ...]] = (ACCURACY,)
    splits = True
    one_of_many = True

    def labels(self, y: Tensor, where: str) -> Tensor:
        """Return whole numbers, one per sample."""
        if y.dim() != 1:
            raise DataError(f"{where} labels have shape {tuple(y.shape)}, expected one number per sample")
        return whole_classes(y, where)

    def outputs(self, y: Sequence[Tensor]) -> int:
        """One output for each class up to the largest."""
        return max(int(half.max()) for half in y) + 1

    def check_range(self, y: Tensor, outputs: int, where: str) -> None:
        """Refuse classes that there are not."""
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= outputs:
            raise DataError(f"{where} labels span {low}..{high}, expected 0..{outputs - 1}")

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the cross entropy over the open outputs."""
        return torch.nn.functional.cross_entropy(outputs, y, reduction="none")

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return its mean, as torch sums it."""
        return torch.nn.functional.cross_entropy(outputs, y)

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Count right answers."""
        return (outputs.argmax(1) == y)[:, None]

    def width(self, outputs: int) -> int:
        """One count."""
        return 1

    def score(self, name: str, sums: Table, samples: Table) -> Table:
        """Return right answers over samples."""
        return ratio(sums[..., 0], samples)

    def possible(self, sums: Table, samples: Table) -> bool:
        """Right answers are between none and all."""
        return bool((sums >= 0).all() and (sums[..., 0] <= samples).all())

    def belongs(self, y: Tensor, classes: Sequence[int]) -> NDArray[np.bool_]:
        """Those of a task's classes are its samples."""
        return np.isin(y.numpy(), classes)

    def groups(self, y: Tensor, train: Tensor) -> NDArray[np.int64]:
        """Each class is a group."""
        found: NDArray[np.int64] = y.numpy()
        return found
