"""NCCL-FL: the centralised rule that C-FLAG generalises (Han et al., 2023), run by every client and averaged.

Every local step combines a gradient m on the client's memory with a mini-batch gradient v, with rates adapted from
their inner product Λ: under interference α(1 − Λ/‖m‖²), under transference β = (1 − Lα) Λ / (L ‖v‖²). The original
has one learner; here each client adapts by its own memory, and FedAvg averages the clients. As in our C-FLAG, α_i and
β_i are capped, since both grow without bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from cflag.data.samples import Samples
from cflag.errors import UserError
from cflag.learning.rates import Overlap, RateRule
from cflag.methods.base import FedAvg, FedAvgSettings, require_positive
from cflag.methods.space import Over, SearchSpace, Times
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client


@dataclass(frozen=True)
class NcclSettings(FedAvgSettings):
    """One rate for both gradients (α = β = lr), the smoothness L, and bounds of the adapted rates."""

    smoothness: float = 5.0
    alpha_cap: float = 0.2
    beta_cap: float = 1.0

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "lr", "smoothness", "alpha_cap", "beta_cap")
        if self.smoothness * self.lr >= 1:
            raise UserError(f"{table}.lr = {self.lr} must be below 1/smoothness = {1 / self.smoothness:g}")
        if self.alpha_cap < self.lr:
            raise UserError(f"{table}.alpha_cap = {self.alpha_cap} must not be below {table}.lr = {self.lr}")


@register("method", "nccl")
class Nccl(FedAvg):
    """FedAvg whose local steps combine memory and current gradients with adaptive rates."""

    Settings = NcclSettings
    search_space: ClassVar[SearchSpace] = {
        **FedAvg.search_space,
        "smoothness": Over("lr", 0.1, 0.95),  # lr must stay below 1/smoothness
        "alpha_cap": Times("lr", 1.0, 10.0),
    }
    settings: NcclSettings
    uses_memory = True

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """(α_k m + β_k v) / lr, so that a plain step of rate lr is the rule's own."""
        v = client.value_and_grad(batch)[1]
        past = client.replay(len(batch))
        if past is None:
            return v
        m = client.value_and_grad(past)[1]
        s = self.settings
        rule = RateRule(s.smoothness, s.lr, s.lr, s.alpha_cap, s.beta_cap)
        rates = rule.adapt(Overlap.between(m, v, m), weight=1.0)
        return (rates.alpha * m + rates.beta * v) / s.lr
