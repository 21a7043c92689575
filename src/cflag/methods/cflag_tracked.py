"""C-FLAG-Tracked: replay whose memory gradient is C-FLAG's: everybody's, and never worked against. Not the paper's.

C-FLAG takes one memory step per round, which is starved where rounds are few and long; replay sees memory in every
step, but its own client's only. Here a round is Algorithm 1's conversation, about the memory instead of current data:

    x_t:  m_i = ∇f_i†(x_t) on a mini-batch of the memory;  m = Σ n_i m_i / Σ n_i, n_i the memory samples of client i
    k:    p_k = m − m_i + r_k,                      r_k the gradient on a few memory samples, at x_k
          α_k = pull − min(0, ⟨p_k, v_k⟩) / ‖p_k‖²,   v_k the gradient of a current mini-batch, at x_k
          x_{k+1} = x_k − β (v_k + α_k p_k)

m − m_i is the drift correction (lines 2-3 and Eq. (4)) applied to the memory, α_k the interference rule of Algorithm 2
in each step: ⟨p_k, v_k + α_k p_k⟩ ≥ pull ‖p_k‖². Beside replay it takes one exchange of m and one
mini-batch of the memory per round. What each part buys is in docs/which-method.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cflag.conversation import Answer, Ask, Conversation
from cflag.data.samples import Samples
from cflag.diagnostics import Record
from cflag.errors import UserError
from cflag.learning.memory_gradient import by_samples, over_all_samples, weight_of
from cflag.learning.observed import RATES_FIGURE
from cflag.methods.base import FedAvg, require_positive
from cflag.methods.space import Around, Rate, SearchSpace
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.server import Server


@dataclass(frozen=True)
class CFlagTrackedSettings:
    """The rate, the weight of the memory, and how much of it a step sees."""

    beta: float = 0.05
    """β, the rate of the local steps."""
    pull: float = 1.0
    """The weight of the memory beside the current mini-batch, where the two do not interfere."""
    replay: float = 1.0
    """How many memory samples a step sees, as a part of its mini-batch; replay sees as many."""
    past: Literal["everybody", "own"] = "everybody"
    """Whose memory p_k is a gradient of: with "own" it is r_k, and nothing more is exchanged than in replay."""
    rule: Literal["interference", "off"] = "interference"
    """Whether a direction that points against p_k is turned away from it."""

    @property
    def lr(self) -> float:
        """β, as FedAvg calls it."""
        return self.beta

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "beta", "replay")
        if self.pull < 0:
            raise UserError(f"{table}.pull = {self.pull} must not be negative")


@register("method", "cflag-tracked")
class CFlagTracked(FedAvg):
    """FedAvg along v + α_k (m − m_i + r_k): memory in every step, corrected towards everybody's."""

    Settings: ClassVar[type[Any]] = CFlagTrackedSettings
    uses_memory = True
    ratios: ClassVar[Mapping[str, str]] = {"m": "factor"}
    search_space: ClassVar[SearchSpace] = {"beta": Rate(), "pull": Around(1.0)}
    figures = (RATES_FIGURE,)
    settings: CFlagTrackedSettings

    def round(self, server: Server) -> Conversation:
        """Ask for m where there is a past, then for local training."""
        m = None
        if server.moment.left and self.settings.past == "everybody":
            ask = Ask(self.memory_gradient)
            m = over_all_samples((yield ask.of_past() if server.moment.mixed else ask))
        mean = yield Ask(self.local_steps, steps=self.steps(server), m=m)
        server.params -= mean.delta
        server.buffers = mean.buffers

    def advice(self, table: str, server: Server, records: Sequence[Record]) -> list[str]:
        """Where Adam takes the steps: that its lead over replay is one of plain SGD (docs/which-method.md)."""
        if self.local.optimizer == "sgd" or self.settings.past == "own" or not server.moment.left:
            return []
        return [
            f"{table}: with optimizer = '{self.local.optimizer}' replay did better, most where clients are uneven: "
            "take method = 'cflag-balanced', or optimizer = 'sgd'"
        ]

    def memory_gradient(self, client: Client) -> Answer:
        """Answer with m_i, where there are memories at all."""
        if not client.memory.enabled:
            return {}
        return by_samples(
            client, client.compute("m_i", lambda: self.own_gradient(client)) if len(client.memory) else None
        )

    def own_gradient(self, client: Client) -> Tensor:
        """m_i at x_t, on one mini-batch from the memory: the same one whenever asked for within a round."""
        drawn = client.remembered("memory", self.local.batch)
        assert drawn is not None
        return client.value_and_grad(drawn)[1]

    def local_steps(self, client: Client, steps: int, m: Tensor | None = None, **sent: Any) -> Answer:
        """E steps from x_t; who has no past takes them on the current data alone, or with its own memory."""
        weights: list[float] = []
        correction = None
        if m is not None and client.past and len(client.memory):
            correction = m - client.recall("m_i", lambda: self.own_gradient(client))
        answer = super().local_steps(client, steps, correction=correction, weights=weights)
        if weights:
            client.log(alpha=self.settings.beta * fmean(weights), beta=self.settings.beta)
        return answer

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """v + α_k p_k, with p_k = r_k + (m − m_i)."""
        v = client.value_and_grad(batch)[1]
        past = client.replay(ceil(self.settings.replay * len(batch)))
        if past is None:
            return v
        p = client.value_and_grad(past)[1]
        if sent["correction"] is not None:
            p += sent["correction"]
        weight = weight_of(p, v, self.settings.pull, self.settings.rule == "interference")
        sent["weights"].append(weight)
        return v + weight * p
