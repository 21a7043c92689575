"""NCM: a sample belongs to the class with the nearest mean of normalised features (as in Janson et al., 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from cflag.methods.sums import Sums, class_means
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@register("method", "ncm", "nearest class mean: no training, one question a task")
class Ncm(Sums):
    """The nearest class mean, on a pretrained backbone the yardstick of every continual method."""

    def prepared(self, x: Tensor) -> Tensor:
        """Return features of length one."""
        return torch.nn.functional.normalize(x)

    def classifier(self, counts: Tensor, sums: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """−‖x − μ‖² = 2⟨x, μ⟩ − ‖μ‖² − ‖x‖², whose last term is the same for all classes."""
        means = class_means(counts, sums)
        return 2 * means, -means.square().sum(1)
