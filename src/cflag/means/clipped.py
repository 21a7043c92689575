"""The weighted mean of answers none of which is longer than the median one: a liar can shout no louder than others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from cflag.means.base import RobustMean, median
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@register("mean", "clipped")
class Clipped(RobustMean):
    """Σ p_i c_i answer_i, with c_i < 1 for answers that are longer than `clip` median lengths."""

    def combine(self, rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Return the weighted mean of the shortened rows."""
        lengths = [length(row) for row in rows]
        bound = self.options.clip * median(lengths)
        total = torch.zeros_like(rows[0])
        for row, weight, its in zip(rows, weights, lengths, strict=True):
            total.add_(row, alpha=weight * min(1.0, bound / its) if its else 0.0)
        return total


def length(row: Tensor) -> float:
    """Return the Euclidean norm, in double precision: squares of single ones may be too large."""
    return float(torch.linalg.vector_norm(row, dtype=torch.float64))
