"""SLDA: a linear discriminant from running sums (Hayes and Kanan, 2020), exact over clients.

The original updates its covariance sample by sample; sums over a task's samples and over clients give the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from cflag.errors import UserError
from cflag.methods.space import SearchSpace
from cflag.methods.sums import Sums, class_means
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SldaSettings:
    """How much of the covariance is replaced by its mean variance."""

    shrink: float = 0.3

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        if not 0 < self.shrink <= 1:
            raise UserError(f"{table}.shrink = {self.shrink} must be above 0 and at most 1")


@register("method", "slda", "streaming linear discriminant: no training, one question a task")
class Slda(Sums):
    """Gaussian classes with one covariance for all: scores μᵀΣ⁻¹x − ½ μᵀΣ⁻¹μ."""

    Settings = SldaSettings
    settings: SldaSettings
    squares = True
    search_space: ClassVar[SearchSpace] = {"shrink": (1e-3, 0.5)}

    def classifier(self, counts: Tensor, sums: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Σ = (Σ x xᵀ − Σ_c n_c μ_c μ_cᵀ) / n, shrunk towards a multiple of the identity."""
        means, total = class_means(counts, sums), counts.sum()
        covariance = (squares - (counts[:, None] * means).T @ means) / total
        shrink, identity = self.settings.shrink, torch.eye(len(covariance), dtype=covariance.dtype)
        covariance = (1 - shrink) * covariance + shrink * covariance.diagonal().mean() * identity
        weights = torch.linalg.solve(covariance, means.T).T
        return weights, -0.5 * (weights * means).sum(1)
