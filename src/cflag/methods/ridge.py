"""Ridge: least squares on one-hot labels from running sums, as in analytic continual learning (Zhuang et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cflag.methods.base import require_positive
from cflag.methods.space import Around, SearchSpace
from cflag.methods.sums import Sums
from cflag.registry import register


@dataclass(frozen=True)
class RidgeSettings:
    """The weight of ‖W‖², in mean squared features."""

    strength: float = 0.1

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "strength")


@register("method", "ridge", "ridge regression on one-hot labels: no training, one question a task")
class Ridge(Sums):
    """(Σ x xᵀ + λ n I) Wᵀ = Σ x yᵀ: after every task exactly what all data at once would give."""

    Settings = RidgeSettings
    settings: RidgeSettings
    squares = True
    search_space: ClassVar[SearchSpace] = {"strength": Around(4.0)}

    def prepared(self, x: Tensor) -> Tensor:
        """Return features with a one in front, for the offset."""
        return torch.cat([torch.ones(len(x), 1, dtype=x.dtype, device=x.device), x], 1)

    def classifier(self, counts: Tensor, sums: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Solve for the weights; the offset is among them."""
        strength = self.settings.strength * squares.diagonal().mean()
        weights = torch.linalg.solve(squares + strength * torch.eye(len(squares), dtype=squares.dtype), sums.T).T
        return weights, torch.zeros(len(weights), dtype=weights.dtype)
