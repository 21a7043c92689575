"""C-FLAG: Continual Federated Learning with Aggregated Gradients (Keshri et al., AISTATS 2025), Algorithms 1 and 2.

Each client keeps a small replay memory. A round takes one step along the averaged memory gradient m and E steps on the
current task with incrementally aggregated ("delayed") gradients v; when the two directions interfere or agree, the
rates adapt. Where the paper contradicts itself we follow docs/paper-notes.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from cflag.conversation import Answer, Ask, Conversation, Mean
from cflag.diagnostics import Record
from cflag.learning import forgetting
from cflag.learning.advice import about_caps, about_memory
from cflag.learning.estimators import ESTIMATORS, Components, Delayed, Minibatch
from cflag.learning.observed import FIGURES
from cflag.learning.optimizers import make_optimizer
from cflag.learning.rates import CFlagSettings, Overlap, RateRule
from cflag.learning.smoothness import Smoothness
from cflag.methods.base import LocalOptions, Method
from cflag.methods.space import Over, Rate, SearchSpace, Times
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.server import Server


@register("method", "cflag")
class CFlag(Method):
    """Algorithm 1: one memory step and E delayed-gradient steps per round, with the adaptive rates of Algorithm 2."""

    Settings: ClassVar[type[Any]] = CFlagSettings
    uses_memory = True
    search_space: ClassVar[SearchSpace] = {
        "beta": Rate(),
        "alpha": Times("beta", 0.3, 100.0),  # one step of α has to make up for E of β
        "smoothness": Over("alpha", 0.1, 0.95),  # Lα < 1, or the rules and caps leave nothing
    }
    figures = FIGURES
    settings: CFlagSettings

    def __init__(self, settings: CFlagSettings, local: LocalOptions) -> None:
        super().__init__(settings, local)
        self.smoothness = Smoothness(settings.smoothness, settings.smoothness_over)

    @classmethod
    def space(cls, settings: Any) -> SearchSpace:
        """Leave out what has no effect: α and L where L is estimated, L where nothing adapts. A cap bounds α."""
        space = dict(cls.search_space)
        if settings.smoothness == "auto":
            return {"beta": space["beta"]}
        if settings.adapt == "off":
            del space["smoothness"]
        elif isinstance(settings.alpha_cap, float):
            space["alpha"] = (min(settings.alpha, settings.alpha_cap) / 30, settings.alpha_cap)
        return space

    @classmethod
    def sums(cls, settings: Any) -> str:
        """A maximum over clients is had as a sum of powers."""
        estimated = getattr(settings, "smoothness", None) == "auto"
        return "smoothness_over = 'max' (use 'mean')" if estimated and settings.smoothness_over == "max" else ""

    def round(self, server: Server) -> Conversation:
        """One round of Algorithm 1."""
        steps, rates = self.steps(server), self.rates(server)
        mean = yield Ask(self.gradients)  # lines 2-3
        past = (yield Ask(self.memories).of_past()) if server.moment.mixed else mean
        g, m = mean.get("g"), self.memory_gradient(past)
        mean = yield Ask(self.local_steps, g=g, m=m, steps=steps, **rates)  # lines 4-11
        server.params -= mean.delta  # line 12
        server.buffers = mean.buffers
        self.observe(server, mean, m)  # Γ(t): measures, changes nothing
        self.smoothness.learn(server, mean)  # where L is estimated

    def gradients(self, client: Client) -> Answer:
        """Line 2: the full current gradient g_i = ∇g_i(x_t) and the memory gradient m_i = ∇f_i†(x_t)."""
        answer: Answer = {}
        if self.settings.drift or self.settings.estimator == "iag":
            answer["g"] = self.estimator(client).full_gradient()
        return answer | (self.memories(client) if client.recalls else {})  # no past: plain FedTrack rounds

    def memories(self, client: Client) -> Answer:
        """m_i = ∇f_i†(x_t); asked apart, of those who have a past, where others do not."""
        if not client.memory.enabled:
            return {}
        drawn = client.remembered("memory")
        return {"m": torch.zeros_like(client.params) if drawn is None else client.value_and_grad(drawn)[1]}

    def local_steps(
        self, client: Client, steps: int, beta: float, g: Tensor | None = None, m: Tensor | None = None,
        L: float | None = None,
    ) -> Answer:  # fmt: skip
        """Lines 5-10: E steps x ← x − β (g − g_i + v), then Δ_i."""
        x, a, estimator = client.params, torch.zeros_like(client.params), self.estimator(client)
        correction = torch.zeros_like(x) if g is None else self.settings.drift * (g - estimator.recall())
        self.smoothness.watch(estimator, L)
        optimizer = make_optimizer(self.local.optimizer)
        for v in islice(estimator.path(), steps):  # lines 6-8: v_{i,k} by Eq. (5), the step by Eq. (4)
            x -= beta * optimizer(correction + v)
            a += v  # a_i = Σ_k v_{i,k}
        drift = steps * correction
        if self.local.optimizer != "sgd":  # the displacement rule: β a_i is what the steps came to, drift and all
            a, drift = (client.start - x) / beta, torch.zeros_like(a)
        answer = self.adapt_rates(client, m, a, drift, self.settings.rule(steps, beta, L))  # line 9
        return answer | self.smoothness.along(estimator, L)

    def adapt_rates(self, client: Client, m: Tensor | None, a: Tensor, drift: Tensor, rule: RateRule) -> Answer:
        """AdapLR (Algorithm 2): the client's rates α_i and β_i, and Δ_i = α_i m + β_i (E (g − g_i) + a_i)."""
        if m is None or not client.past:
            client.log(beta=rule.beta, case="none")
            plain: Answer = {"delta": rule.beta * (drift + a), "buffers": client.buffers}
            return plain if m is None else plain | {"alpha": 0.0} | self.own_steps(a, rule)
        q = self.memory_direction(m)
        overlap = Overlap.between(m, a, q)  # line 5: Λ_i = ⟨m, a_i⟩
        p_i, N = client.share, client.peers if self.settings.adapt == "worst" else 1
        rates = rule.adapt(overlap, weight=p_i * N)  # lines 6-12
        client.log(**vars(rates), **{"lambda": overlap.inner})
        delta = rates.alpha * q + rates.beta * (drift + a)  # lines 13-14
        return {"delta": delta, "alpha": rates.alpha, "buffers": client.buffers, **self.own_steps(a, rule)}

    # What the steps above are made of ---------------------------------------------------------------------------------

    def rates(self, server: Server) -> dict[str, float]:
        """β, and L where it is estimated."""
        L = self.smoothness.at(server)
        beta = self.settings.plain_beta(server.rounds, self.steps(server), L)
        return {"beta": beta} if L is None else {"beta": beta, "L": L}

    def estimator(self, client: Client) -> Delayed | Minibatch:
        """Cut the client's current data into components g_{i,j}, and choose the estimator of ∇g_i along the path."""
        return ESTIMATORS[self.settings.estimator](Components(client, self.local.batch, self.settings.order))

    def own_steps(self, a: Tensor, rule: RateRule) -> Answer:
        """a_i, where Γ(t) is measured and does not follow from Σ p_i Δ_i."""
        return {"a": a} if rule.scales_steps and self.settings.measure_gamma else {}

    def memory_gradient(self, mean: Mean) -> Tensor | None:
        """Line 3: m = Σ p_i m_i over those who have a past; none in the first task."""
        return mean.get("m")

    def memory_direction(self, m: Tensor) -> Tensor:
        """q: the memory step's direction after an optimizer of its own, fresh as the local ones; m for SGD."""
        return make_optimizer(self.local.optimizer)(m)

    def observe(self, server: Server, mean: Mean, m: Tensor | None) -> None:
        """Log Γ(t); there is none in the first task."""
        if m is not None and self.settings.measure_gamma:
            rule = self.settings.rule(self.steps(server), **self.rates(server))
            forgetting.observe(server, mean, m, self.memory_direction(m), rule)

    def advice(self, table: str, server: Server, records: Sequence[Record]) -> list[str]:
        """Whether α_i adapts at all, and whether the memory is starved, after a task with a past."""
        if not self.uses_memory or not server.moment.left:
            return []
        steps, rates = self.steps(server), self.rates(server)
        rule = self.settings.rule(steps, **rates)
        each_round = steps * sum(min(self.local.batch, size) for size in server.sizes.values())
        present = fmean(len(record.get("cohort") or server.sizes) for record in records) / len(server.sizes)
        replayed = round(each_round * present * len(records))
        lines = (
            about_caps(table, rule.alpha, rule.alpha_cap, records),
            about_memory(table, rule.alpha, rule.beta, steps, replayed, records),
        )
        return [line for line in lines if line]

    def begin_task(self, server: Server) -> Conversation:
        """Where L is estimated: a first look around."""
        if self.smoothness.estimated:
            server.state.pop("smoothness", None)
            self.smoothness.learn(server, (yield Ask(self.probe)))

    def probe(self, client: Client) -> Answer:
        """Estimate L before the first step."""
        return self.smoothness.probe(self.estimator(client).components)
