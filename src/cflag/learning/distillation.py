"""Distillation (Hinton et al., 2015): keeping a student's answers close to a teacher's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def distillation(outputs: Tensor, targets: Tensor, heads: list[Tensor], temperature: float) -> Tensor:
    """Return T² KL(teacher ‖ student) of softened answers, summed over the old heads' softmaxes."""
    losses = [
        torch.nn.functional.kl_div(
            torch.nn.functional.log_softmax(outputs[:, head] / temperature, dim=1),
            torch.nn.functional.log_softmax(targets[:, head] / temperature, dim=1),
            reduction="batchmean",
            log_target=True,
        )
        for head in heads
    ]
    return temperature**2 * sum(losses, outputs.new_zeros(()))
