"""C-FLAG-SGD: C-FLAG's memory step and interference rule around plain mini-batch steps. Not the paper's algorithm.

What it leaves out of Algorithm 1, and why: the delayed gradients, since a mini-batch gradient is fresh and needs no
table; the drift correction, since without it a round needs no full gradient g_i, which is most of its cost; the
transference rule, since β then is the same for all clients. What it adds: memory gradients weighted by memory samples,
and a choice of the outputs that current labels are learned against. It is made for many short rounds at a small cost;
where rounds are long, the parts it leaves out matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from cflag.conversation import Answer, Mean
from cflag.learning.estimators import ESTIMATORS, Components, Delayed, Minibatch
from cflag.learning.memory_gradient import by_samples, over_all_samples
from cflag.learning.rates import CFlagSettings
from cflag.methods.cflag import CFlag
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client


@dataclass(frozen=True)
class CFlagSgdSettings(CFlagSettings):
    """The settings of C-FLAG with the variant's defaults, and its own two."""

    estimator: Literal["iag", "minibatch"] = "minibatch"
    drift: float = 0.0
    rules: Literal["both", "interference", "transference"] = "interference"
    labels: Literal["open", "own"] = "open"
    """Against which outputs current labels are learned: all open ones, or the task's own, so that labels which never
    name an old class do not teach old heads to be silent; the memory step still learns all of them. A choice in the
    class-incremental scenario only: in the task-incremental one they are the same."""
    weights: Literal["memory", "current"] = "memory"
    """Whose share a memory gradient has in m: that of all memory samples, or the paper's p_i."""


@register("method", "cflag-sgd")
class CFlagSgd(CFlag):
    """One memory step and E mini-batch steps per round; α adapts where they interfere."""

    Settings: ClassVar[type[Any]] = CFlagSgdSettings
    ratios: ClassVar[Mapping[str, str]] = {"m": "factor"}
    settings: CFlagSgdSettings

    def memories(self, client: Client) -> Answer:
        """m_i, ready for a mean over memory samples."""
        answer = super().memories(client)
        if isinstance(m := answer.get("m"), torch.Tensor) and self.settings.weights == "memory":
            answer |= by_samples(client, m)
        return answer

    def memory_gradient(self, mean: Mean) -> Tensor | None:
        """m as the mean over all memory samples."""
        return over_all_samples(mean) if "factor" in mean else mean.get("m")

    def estimator(self, client: Client) -> Delayed | Minibatch:
        """Choose the loss of the components, too."""
        own = self.settings.labels == "own" and client.memory.samples is not None
        loss = client.own_loss if own else None
        return ESTIMATORS[self.settings.estimator](Components(client, self.local.batch, self.settings.order, loss=loss))
