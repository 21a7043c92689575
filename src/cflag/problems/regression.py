"""One or several numbers per sample: mean squared error, R² and the mean absolute error."""

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

R2 = Score("r2", "R²", "R²")
MAE = Score("mae", "MAE", "mean absolute error", higher=False)
BINS = 10
"""Groups of labels that partitions deal like classes: the tenths of the train half."""
FARTHEST = 1e15
"""No answer is further off than that, so that sums of squares are numbers."""


@register("problem", "regression", "numbers per sample: mean squared error, R² and MAE")
class Regression(Problem):
    """Labels are (n,) or (n, k) numbers; a model answers with k of them.

    Scale labels so that they are of the order of one: the mean squared error grows with the square of their scale, and
    with it every gradient. R² does not mind; MAE is in the labels' own unit. Of several numbers, both are means.
    """

    scores: ClassVar[tuple[Score, ...]] = (R2, MAE)
    whole = False

    def labels(self, y: Tensor, where: str) -> Tensor:
        """Return floating-point numbers, one or a row of them per sample."""
        if y.dim() not in (1, 2) or (y.dim() == 2 and not y.shape[1]):
            raise DataError(f"{where} labels have shape {tuple(y.shape)}, expected (n,) or (n, k) numbers to predict")
        if y.is_complex() or not bool(torch.isfinite(y).all()):
            raise DataError(f"{where} labels hold values that are not finite real numbers")
        return y if y.dtype in (torch.float32, torch.float64) else y.to(torch.float32)

    def outputs(self, y: Sequence[Tensor]) -> int:
        """As many outputs as numbers."""
        return 1 if y[0].dim() == 1 else y[0].shape[1]

    def check_range(self, y: Tensor, outputs: int, where: str) -> None:
        """Refuse rows of another length."""
        if self.outputs([y]) != outputs:
            raise DataError(f"{where} labels have {self.outputs([y])} numbers each, expected {outputs}")

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the squared error, its mean over a sample's numbers."""
        return torch.sub(*self.pair(outputs, y)).square().mean(1)

    def pair(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return both as rows of numbers."""
        return outputs, y.reshape(len(y), -1).to(outputs.dtype)

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Sum e², abs(e), y and y² of each number."""
        wanted = y.reshape(len(y), -1).double()
        error = torch.nan_to_num(outputs.double() - wanted, nan=FARTHEST).clamp(-FARTHEST, FARTHEST)
        return torch.cat([error.square(), error.abs(), wanted, wanted.square()], 1)

    def width(self, outputs: int) -> int:
        """Four sums of each number."""
        return 4 * outputs

    def score(self, name: str, sums: Table, samples: Table) -> Table:
        """R² = 1 − Σe² / (Σy² − (Σy)²/n), which labels that are all alike do not have; or MAE = Σabs(e) / n."""
        squared, absolute, y, y_squared = np.split(sums, 4, axis=-1)
        n = samples[..., None]
        if name == MAE.name:
            return np.asarray(ratio(absolute, np.broadcast_to(n, absolute.shape)).mean(-1))
        spread = y_squared - ratio(y * y, np.broadcast_to(n, y.shape))
        # What is left of equal numbers is rounding: no spread.
        return np.asarray((1 - ratio(squared, np.where(spread > 1e-12 * y_squared, spread, 0.0))).mean(-1))

    def possible(self, sums: Table, samples: Table) -> bool:
        """Sums of squares and of absolute values are not negative, and (Σa)² ≤ n Σa²."""
        squared, absolute, y, y_squared = np.split(sums, 4, axis=-1)
        n = samples[..., None]
        lawful = np.isfinite(sums).all() and (squared >= 0).all() and (absolute >= 0).all() and (y_squared >= 0).all()
        room = 1 + 1e-9
        return bool(lawful and (absolute**2 <= room * n * squared).all() and (y**2 <= room * n * y_squared).all())

    def groups(self, y: Tensor, train: Tensor) -> NDArray[np.int64]:
        """Tenths of the train half's labels, by the first number of each."""
        first, known = (t.reshape(len(t), -1)[:, 0].double().numpy() for t in (y, train))
        edges = np.quantile(known, np.arange(1, BINS) / BINS)
        return np.searchsorted(edges, first, side="right").astype(np.int64)
