"""The coordinate-wise median: every client has one vote, however many samples it claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cflag.means.base import RobustMean, by_coordinate
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@register("mean", "median")
class Median(RobustMean):
    """In each coordinate the middle value, or the mean of the two middle ones."""

    def combine(self, rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Return the median of each coordinate."""
        return by_coordinate(rows, middle)


def middle(block: Tensor) -> Tensor:
    """Return the medians of the columns; in double precision no sum of two values is rounded or too large."""
    ordered, count = block.sort(dim=0).values, len(block)
    low, high = ordered[(count - 1) // 2], ordered[count // 2]
    return (low.double() / 2 + high.double() / 2).to(block.dtype)
