"""Ridge: least squares from running sums, as in analytic continual learning (Zhuang et al., 2022).

On one-hot labels, or on the numbers of a regression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from cflag.methods.base import require_positive
from cflag.methods.space import Around, SearchSpace
from cflag.methods.sums import Sums
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client


@dataclass(frozen=True)
class RidgeSettings:
    """The weight of ‖W‖², in mean squared features."""

    strength: float = 0.1

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "strength")


@register("method", "ridge", "ridge regression, on one-hot labels or numbers: no training, one question a task")
class Ridge(Sums):
    """(Σ x xᵀ + λ n I) Wᵀ = Σ x yᵀ: after every task exactly what all data at once would give."""

    Settings = RidgeSettings
    settings: RidgeSettings
    problems = ("classes", "regression")
    squares = True
    search_space: ClassVar[SearchSpace] = {"strength": Around(4.0)}

    def prepared(self, x: Tensor) -> Tensor:
        """Return features with a one in front, for the offset."""
        return torch.nn.functional.pad(x, (1, 0), value=1.0)

    def wanted(self, client: Client, x: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers to predict are wanted as they are, and every sample speaks for all of them."""
        if client.data.classified:
            return super().wanted(client, x)
        y = client.data.y.to(x).reshape(len(client.data), -1)
        return y, torch.full((y.shape[1],), float(len(y)), dtype=x.dtype, device=x.device)

    def classifier(self, counts: Tensor, sums: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Solve for the weights; the offset is among them."""
        strength = self.settings.strength * squares.diagonal().mean()
        weights = torch.linalg.solve(squares + strength * torch.eye(len(squares), dtype=squares.dtype), sums.T).T
        return weights, torch.zeros(len(weights), dtype=weights.dtype)
