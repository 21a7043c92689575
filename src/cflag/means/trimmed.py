"""The coordinate-wise trimmed mean: the largest and smallest values are left out; the others count alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cflag.means.base import MeanOptions, RobustMean, by_coordinate
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@register("mean", "trimmed")
class Trimmed(RobustMean):
    """In each coordinate the mean of what is left when a share is cut off at either end."""

    def combine(self, rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Return the trimmed mean of each coordinate."""
        cut = cut_of(len(rows), self.options)
        return by_coordinate(rows, lambda block: inner_mean(block, cut))


def cut_of(count: int, options: MeanOptions) -> int:
    """Return how many values are cut off at either end: the share, at least the liars, and never all."""
    return min(max(options.liars, int(options.trim * count + 1e-9)), (count - 1) // 2)


def inner_mean(block: Tensor, cut: int) -> Tensor:
    """Return the means of the columns without their `cut` largest and smallest values."""
    inner = block.sort(dim=0).values[cut : len(block) - cut]
    return inner.double().mean(0).to(block.dtype)
