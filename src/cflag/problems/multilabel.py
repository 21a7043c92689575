"""Any number of labels per sample: a yes or no for each, and the F1 of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from cflag.errors import DataError
from cflag.problems.base import Problem, Table, ratio
from cflag.problems.score import Score
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

F1 = Score("f1", "F1", "F1", "%", 100.0, 1, bounds=(0.0, 1.0))
EXACT = Score("exact", "exact", "share of samples with all labels right", "%", 100.0, 1, bounds=(0.0, 1.0))


@register("problem", "multilabel", "any number of labels per sample: binary cross entropy, F1")
class MultiLabel(Problem):
    """Labels are (n, k) zeros and ones; a model answers with k scores, and says yes where one is above zero.

    Tasks may have labels of their own: then a sample is of every task of which it has a label, and what it says of
    closed ones is neither learned nor tested.
    """

    scores: ClassVar[tuple[Score, ...]] = (F1, EXACT)
    splits = True

    def labels(self, y: Tensor, where: str) -> Tensor:
        """Return zeros and ones, a row per sample."""
        if y.dim() != 2 or not y.shape[1]:
            raise DataError(f"{where} labels have shape {tuple(y.shape)}, expected (n, k) zeros and ones")
        if not bool(((y == 0) | (y == 1)).all()):
            raise DataError(f"{where} labels hold other values than 0 and 1")
        return y.to(torch.uint8)

    def outputs(self, y: Sequence[Tensor]) -> int:
        """One output for each label."""
        return y[0].shape[1]

    def check_range(self, y: Tensor, outputs: int, where: str) -> None:
        """Refuse rows of another length."""
        if y.shape[1] != outputs:
            raise DataError(f"{where} labels have {y.shape[1]} columns, expected {outputs}")

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the binary cross entropy, its mean over a sample's open outputs."""
        open_ = ~outputs.isneginf()
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            torch.where(open_, outputs, 0.0), y.to(outputs.dtype), open_.to(outputs.dtype), reduction="none"
        )
        return each.sum(1) / open_.sum(1).clamp(min=1)

    def pair(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return labels as floating-point numbers."""
        return outputs, y.to(outputs.dtype)

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Count, among open outputs, yes that is right, yes that is wrong, no that is wrong; and rows all right."""
        said, true, open_ = outputs > 0, y > 0, ~outputs.isneginf()
        right, wrong, missed = said & true, said & ~true & open_, ~said & true & open_
        exact = ~(wrong | missed).any(1)
        return torch.stack([right.sum(1), wrong.sum(1), missed.sum(1), exact], 1)

    def width(self, outputs: int) -> int:
        """Four counts."""
        return 4

    def score(self, name: str, sums: Table, samples: Table) -> Table:
        """F1 = 2 TP / (2 TP + FP + FN) over all samples and labels; or the share of samples without a mistake."""
        if name == EXACT.name:
            return ratio(sums[..., 3], samples)
        return ratio(2 * sums[..., 0], 2 * sums[..., 0] + sums[..., 1] + sums[..., 2])

    def possible(self, sums: Table, samples: Table) -> bool:
        """Counts are not negative, and no more samples can be right than there are."""
        return bool((sums >= 0).all() and (sums[..., 3] <= samples).all())

    def belongs(self, y: Tensor, classes: Sequence[int]) -> NDArray[np.bool_]:
        """Those with a label of a task's are its samples; where a task has all, those without any are, too."""
        if len(classes) == y.shape[1]:
            return np.ones(len(y), np.bool_)
        found: NDArray[np.bool_] = (y[:, list(classes)] > 0).any(1).numpy()
        return found

    def groups(self, y: Tensor, train: Tensor) -> NDArray[np.int64]:
        """The first label that a sample has; those without any are a group, too."""
        found: NDArray[np.int64] = torch.where((y > 0).any(1), (y > 0).int().argmax(1), y.shape[1]).numpy()
        return found
