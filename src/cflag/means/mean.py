"""The weighted mean Σ p_i answer_i, as one running sum whatever the number of clients; it bears no liar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cflag.conversation import Answer, Mean, shapes
from cflag.errors import CflagError
from cflag.means.base import PLAIN, AnswerMean, MeanOptions
from cflag.registry import register


@register("mean", "mean")
class RunningMean(AnswerMean):
    """One running sum, whatever the number of clients."""

    needs_each = False

    def __init__(self, options: MeanOptions = PLAIN, ratios: Mapping[str, str] | None = None) -> None:
        super().__init__(options, ratios)
        self.total: dict[str, Any] = {}
        self.first: int | None = None

    def add(self, answer: Answer, weight: float, number: int) -> None:
        """Add a client's answer times its weight."""
        if self.first is None:
            self.first = number
            self.total = {k: v * weight for k, v in answer.items()}
            return
        if shapes(answer) != shapes(self.total):
            raise CflagError(
                f"client {number} answered {shapes(answer)} where client {self.first} answered {shapes(self.total)}"
            )
        for name, value in answer.items():
            if isinstance(value, torch.Tensor):
                self.total[name].add_(value, alpha=weight)
            else:
                self.total[name] += weight * value

    def result(self) -> Mean:
        """Return the sum: the weights add up to one."""
        return Mean(self.total)
