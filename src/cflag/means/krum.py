"""Multi-Krum (Blanchard et al., 2017): the mean of those answers that have the nearest neighbours; all count alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from cflag.means.base import MeanOptions, RobustMean, blocks, by_coordinate
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@register("mean", "krum")
class Krum(RobustMean):
    """Each part of an answer by itself: the mean of the n − f − 2 rows with the smallest scores, ties included.

    A row's score is the sum of its squared distances to the n − f − 2 nearest others, with f = `liars`.
    """

    @classmethod
    def least(cls, options: MeanOptions) -> int:
        """n ≥ 2f + 3, as in the paper."""
        return 2 * options.liars + 3

    def combine(self, rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Return the mean of the chosen rows."""
        chosen = [rows[k] for k in choose(rows, max(1, len(rows) - self.options.liars - 2))]
        return by_coordinate(chosen, lambda block: block.double().mean(0).to(block.dtype))


def choose(rows: Sequence[Tensor], near: int) -> list[int]:
    """Return the positions of the `near` rows with the smallest sums of squared distances to their `near` nearest."""
    square = squared_distances(rows)
    scores = square.fill_diagonal_(torch.inf).sort(dim=1).values[:, :near].sum(1)
    return torch.nonzero(scores <= scores.sort().values[near - 1]).flatten().tolist()


def squared_distances(rows: Sequence[Tensor]) -> Tensor:
    """Return (n, n) squared distances, from differences: those of close rows are lost in a difference of squares."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows[0].device)
    for block in blocks(rows):
        wide = block.double()
        total += torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total
