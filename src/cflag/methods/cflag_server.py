"""C-FLAG with server-level rates: Section 5's β*, which minimises the forgetting term Γ(t) for the clients' mean.

Clients take Algorithm 1's steps with the plain rates. Where their mean agrees with the memory the server moves by
β* Σ p_i a_i instead of β Σ p_i a_i. The paper derives this first, and then lets clients adapt on their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cflag.conversation import Ask, Conversation, Mean
from cflag.errors import UserError
from cflag.learning.forgetting import forgetting_term, mean_steps
from cflag.learning.rates import CFlagSettings, Overlap
from cflag.methods.cflag import CFlag
from cflag.methods.space import SearchSpace
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.server import Server


@dataclass(frozen=True)
class CFlagServerSettings(CFlagSettings):
    """The settings of C-FLAG; clients do not adapt."""

    adapt: Literal["off"] = "off"

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        super().check(table)
        for name in ("rules", "alpha_cap", "measure_gamma"):
            if getattr(self, name) != getattr(CFlagSettings, name):
                raise UserError(f"{table}.{name} has no effect: clients do not adapt here; leave it out")
        if self.smoothness != "auto":
            self.check_transference(table)


@register("method", "cflag-server")
class CFlagServer(CFlag):
    """Algorithm 1's round with plain rates, and one β* for the clients' mean."""

    Settings: ClassVar[type[Any]] = CFlagServerSettings
    settings: CFlagServerSettings

    @classmethod
    def space(cls, settings: Any) -> SearchSpace:
        """L counts here also where clients do not adapt: β* has it."""
        return {"beta": cls.search_space["beta"]} if settings.smoothness == "auto" else cls.search_space

    def round(self, server: Server) -> Conversation:
        """Lines 2 to 11 as in Algorithm 1; line 12 with the server's own rates."""
        steps, rates = self.steps(server), self.rates(server)
        mean = yield Ask(self.gradients)
        g, m = (
            mean.get("g"),
            self.memory_gradient((yield Ask(self.memories).of_past()) if server.moment.mixed else mean),
        )
        mean = yield Ask(self.local_steps, g=g, m=m, steps=steps, **rates)
        server.params -= mean.delta if m is None else self.server_step(server, mean, m)
        server.buffers = mean.buffers
        self.smoothness.learn(server, mean)

    def server_step(self, server: Server, mean: Mean, m: Tensor) -> Tensor:
        """α m + β* Σ p_i a_i, with the plain β where the clients' mean does not agree with the memory."""
        rule, q = self.settings.rule(self.steps(server), **self.rates(server)), self.memory_direction(m)
        a = mean_steps(mean, q, rule)
        assert a is not None  # it follows from Σ p_i Δ_i, as all β_i are β
        overlap = Overlap.between(m, a, q)
        rates = replace(rule, rules=frozenset({"transference"})).adapt(overlap, weight=1.0)
        server.log(gamma=forgetting_term(overlap, rule), server_beta=rates.beta, server_capped=rates.capped)
        server.log(gamma_adapted=forgetting_term(overlap, replace(rule, beta=rates.beta)))
        return rates.alpha * q + rates.beta * a
