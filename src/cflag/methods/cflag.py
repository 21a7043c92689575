"""C-FLAG: Continual Federated Learning with Aggregated Gradients (Keshri et al., AISTATS 2025), Algorithm 1.

Each client keeps a small replay memory. A round takes one step along the averaged memory gradient and E steps on
the current task with incrementally aggregated ("delayed") gradients; when the two directions interfere or agree,
the rates adapt. Where the paper contradicts itself we follow docs/paper-notes.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import inf, sqrt
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from cflag.client import Client
from cflag.conversation import Answer, Ask, Conversation, Mean
from cflag.diagnostics import Figure
from cflag.errors import UserError
from cflag.learning.estimators import Components, delayed, minibatch
from cflag.learning.gradient_table import GradientTable
from cflag.learning.observed import FORGETTING_FIGURE, RATES_FIGURE, SMOOTHNESS_FIGURE
from cflag.learning.optimizers import make_optimizer
from cflag.learning.rates import Overlap, RateRule, Rates, forgetting_term
from cflag.learning.smoothness import UNSEEN, PathSmoothness, from_shares, probe, share_of
from cflag.methods.base import Method, SearchSpace
from cflag.registry import register
from cflag.server import Server


@dataclass(frozen=True)
class CFlagSettings:
    """What can be chosen about C-FLAG; the names are the paper's where it has one.

    The defaults are what did best on real data (docs/comparison.md). The paper's theory is estimator = "iag",
    drift = 1, rules = "both".
    """

    alpha: float = 0.1
    """α, the rate of the memory step."""
    beta: float = 0.05
    """β, the rate of the local steps (c, where `rate` is diminishing)."""
    rate: Literal["constant", "diminishing"] = "constant"
    """Whether β is constant or c/√T, with T the rounds of a task (Theorem 5)."""
    estimator: Literal["iag", "minibatch"] = "minibatch"
    """v_{i,k}: the delayed average of the theory, or the plain mini-batch gradient of the experiments."""
    order: Literal["cyclic", "shuffled", "random"] = "shuffled"
    """In which order components are visited; shuffled anew each pass."""
    drift: float = 0.0
    """How much of the correction g − g_i enters a local step: 1 as in the paper; 0 also saves computing g_i."""
    adapt: Literal["off", "average", "worst", "server"] = "worst"
    """Whose rates adapt: nobody's, each client's (average or worst case), or the server's (Section 5's β*)."""
    rules: Literal["both", "interference", "transference"] = "interference"
    """Which of the two rules act when clients' rates adapt."""
    labels: Literal["open", "own"] = "open"
    """Against which outputs current labels are learned: all open ones, or the task's own, so that labels which never
    name an old class do not teach old heads to be silent; the memory step still learns all of them. A choice in the
    class-incremental scenario only: in the task-incremental one they are the same."""
    weights: Literal["current", "memory"] = "current"
    """Whose share a memory gradient has in m: p_i of the current task as in the paper, or of all memory samples."""
    smoothness: float | Literal["auto"] = 5.0
    """L, which the paper sets to 5 by hand. "auto" estimates it on the way, for estimator = "iag": then α = 1/(2L),
    which is 1/(L(1+m)) with m = 1, and β is at most 1/(12LE) (learning/smoothness.py)."""
    smoothness_over: Literal["max", "mean"] = "max"
    """What the clients' estimates are put together as."""
    alpha_cap: float | Literal["paper", "none"] = "paper"
    """Upper bound of α_i; "paper" is 2/(L(1+m)) with m = 1, the constraint of the problem it solves."""
    beta_cap: float | Literal["paper", "none"] = "none"
    """Upper bound of β_i; "paper" is 1/(4LE), which the drift lemma needs."""
    measure_gamma: bool = True
    """Measure Γ(t). Where β_i differ among clients this takes one more vector up: Σ p_i a_i."""

    def check(self) -> None:
        """Refuse numbers that cannot work."""
        for name in ("alpha", "beta", "smoothness", "alpha_cap", "beta_cap"):
            value = getattr(self, name)
            if not isinstance(value, str) and not value > 0:
                raise UserError(f"cflag.{name} = {value} must be positive")
        if not 0 <= self.drift <= 1:
            raise UserError(f"cflag.drift = {self.drift} must lie between 0 and 1")
        if self.smoothness == "auto":
            if self.estimator != "iag":
                raise UserError("cflag.smoothness = 'auto' reads the gradient table: it needs cflag.estimator = 'iag'")
            return  # the rates follow from L, and keep to its limits
        if self.adapt in ("average", "worst") and self.alpha > self.caps(1)[0]:
            raise UserError(
                f"cflag.alpha = {self.alpha} is above alpha_cap = {self.caps(1)[0]:g}; lower one or raise the other"
            )
        if self.adapt == "server" or (self.adapt != "off" and self.rules != "interference"):
            self.check_transference()

    def check_transference(self) -> None:
        """β* = (1 − Lα) Λ / ... is a step backwards unless Lα < 1."""
        L = float(self.smoothness)
        if L * self.alpha >= 1:
            raise UserError(f"the transference rule needs cflag.alpha < 1/smoothness = {1 / L:g}; alpha = {self.alpha}")

    def caps(self, steps: int, L: float | None = None) -> tuple[float, float]:
        """Return the upper bounds of α_i and β_i for E local steps, and an estimated L where there is one."""
        L = float(self.smoothness) if L is None else L
        paper = (1 / L, 1 / (4 * L * steps))
        caps = zip((self.alpha_cap, self.beta_cap), paper, strict=True)
        alpha_cap, beta_cap = (p if cap == "paper" else inf if cap == "none" else cap for cap, p in caps)
        return alpha_cap, beta_cap


@register("method", "cflag")
class CFlag(Method):
    """One memory step and E delayed-gradient steps a round, with adaptive rates."""

    Settings: ClassVar[type[Any]] = CFlagSettings
    uses_memory = True
    search_space: ClassVar[SearchSpace] = {"alpha": (0.05, 0.2), "beta": (0.05, 0.3)}
    figures: ClassVar[tuple[Figure, ...]] = (FORGETTING_FIGURE, RATES_FIGURE, SMOOTHNESS_FIGURE)
    settings: CFlagSettings

    def begin_task(self, server: Server) -> Conversation:
        """With smoothness = "auto": a first estimate of L, for the first round."""
        if self.settings.smoothness == "auto":
            server.state.pop("smoothness", None)
            self.learn_smoothness(server, (yield Ask(self.probe)))

    def round(self, server: Server) -> Conversation:
        """Algorithm 1, one round."""
        steps, L = self.steps(server), server.state.get("smoothness")
        beta = self.beta(server, steps)
        mean = yield Ask(self.gradients)  # lines 2-3
        g, m = mean.get("g"), mean.m / mean.factor if "m" in mean else None
        mean = yield Ask(self.local_steps, g=g, m=m, steps=steps, beta=beta, L=L)  # lines 4-11
        server.params -= mean.delta if m is None else self.server_step(server, mean, m, self.rate_rule(steps, beta, L))
        server.buffers = mean.buffers  # line 12
        self.learn_smoothness(server, mean)

    # On a client ------------------------------------------------------------------------------------------------------

    def gradients(self, client: Client) -> Answer:
        """Line 2: the full current gradient g_i and the memory gradient m_i, both at x_t."""
        answer: Answer = {}
        if self.settings.drift or self.settings.estimator == "iag":
            components = self.components(client)
            answer["g"] = components.mean(client.compute("start", lambda: self.at_start(components)))
        if client.task > 0 and client.memory.enabled:  # the first task has no past: plain FedTrack rounds
            drawn = client.memory.draw(client.rng("memory"))
            m_i = torch.zeros_like(client.params) if drawn is None else client.value_and_grad(drawn)[1]
            # Means are weighted by p_i; this factor turns p_i into the memory's share, up to its own mean.
            factor = 1.0 if self.settings.weights == "current" else len(client.memory) / len(client.data)
            answer.update(m=factor * m_i, factor=factor)
        return answer

    def local_steps(
        self,
        client: Client,
        steps: int,
        beta: float,
        g: Tensor | None = None,
        m: Tensor | None = None,
        L: float | None = None,
    ) -> Answer:
        """Lines 5-10: E steps x ← x − β (g − g_i + v); then Δ_i = α_i m + β_i (E (g − g_i) + a_i)."""
        components, at_start, x = self.components(client), None, client.params
        x_t, a, correction = x.clone(), torch.zeros_like(x), torch.zeros_like(x)
        if g is not None:
            at_start = client.recall("start", lambda: self.at_start(components))
            correction = self.settings.drift * (g - components.mean(at_start))
        optimizer, seen = make_optimizer(self.local.optimizer), PathSmoothness(x_t) if L is not None else None
        for v in islice(self.estimates(components, at_start, seen), steps):
            x -= beta * optimizer(correction + v)
            a += v
        drift = steps * correction
        if self.local.optimizer != "sgd":  # the displacement rule: β a_i is what the steps came to, drift and all
            a, drift = (x_t - x) / beta, torch.zeros_like(a)
        answer = self.adapt_rates(client, m, a, drift, self.rate_rule(steps, beta, L))
        if L is not None and seen is not None:
            answer["smoothness"] = self.estimate(client, seen.mean(), known=L / 2)
        return answer

    def adapt_rates(self, client: Client, m: Tensor | None, a: Tensor, drift: Tensor, rule: RateRule) -> Answer:
        """AdapLR (Algorithm 2): the client's own rates α_i and β_i, and Δ_i with them."""
        if m is None:
            client.log(beta=rule.beta, case="none")
            return {"delta": rule.beta * (drift + a), "buffers": client.buffers}
        q = self.memory_direction(m)
        overlap = Overlap.between(m, a, q)
        rates = rule.adapt(overlap, client.share * (client.peers if self.settings.adapt == "worst" else 1))
        client.log(alpha=rates.alpha, beta=rates.beta, case=rates.case, capped=rates.capped)
        client.log(**{"lambda": overlap.inner})
        delta = rates.alpha * q + rates.beta * (drift + a)
        answer: Answer = {"delta": delta, "alpha": rates.alpha, "buffers": client.buffers}
        if rule.scales_steps and self.settings.measure_gamma:
            answer["a"] = a
        return answer

    def components(self, client: Client) -> Components:
        """Cut the client's current data into the components g_{i,j}."""
        own = self.settings.labels == "own" and client.memory.samples is not None
        return Components(client, self.local.batch, self.settings.order, loss=client.own_loss if own else None)

    def at_start(self, components: Components) -> GradientTable | Tensor:
        """At x_t: the table of component gradients for the delayed estimator, or just their mean g_i."""
        return components.table() if self.settings.estimator == "iag" else components.full()

    def estimates(
        self, components: Components, at_start: GradientTable | Tensor | None, seen: PathSmoothness | None
    ) -> Iterator[Tensor]:
        """v_{i,0}, v_{i,1}, ...: the chosen estimator along the local path."""
        order = components.visits()
        if isinstance(at_start, GradientTable):
            return delayed(components, at_start, order, seen)
        return minibatch(components, order)

    def probe(self, client: Client) -> Answer:
        """Estimate L before the first step."""
        return {"smoothness": self.estimate(client, probe(self.components(client)))}

    def estimate(self, client: Client, L_i: float, known: float = 0.0) -> float:
        """What a client's own L_i contributes to the mean over clients, or to their maximum.

        One that saw nothing must not lower the mean, nor raise the maximum, which is met from above.
        """
        over = self.settings.smoothness_over
        return share_of(L_i or (known if over == "mean" else 0.0), client.share, over)

    # On the server ----------------------------------------------------------------------------------------------------

    def server_step(self, server: Server, mean: Mean, m: Tensor, rule: RateRule) -> Tensor:
        """Σ p_i Δ_i, or the server-level variant's α m + β* Σ p_i a_i; measures Γ(t) on the way."""
        q = self.memory_direction(m)
        a = self.mean_steps(mean, q, rule)
        delta: Tensor = mean.delta
        if a is None:
            return delta
        overlap = Overlap.between(m, a, q)
        server.log(gamma=forgetting_term(overlap, rule))
        if self.settings.adapt != "server":
            return delta
        rates = self.server_rates(server, overlap, rule)
        return rates.alpha * q + rates.beta * a

    def mean_steps(self, mean: Mean, q: Tensor, rule: RateRule) -> Tensor | None:
        """Σ p_i a_i. Where all β_i are β it follows from Σ p_i Δ_i, as Σ p_i (g − g_i) = 0; else clients sent it."""
        return mean.get("a") if rule.scales_steps else (mean.delta - mean.alpha * q) / rule.beta

    def server_rates(self, server: Server, overlap: Overlap, rule: RateRule) -> Rates:
        """Section 5's β* where the clients' mean agrees with the memory; the plain rates where it does not."""
        rates = replace(rule, rules=frozenset({"transference"})).adapt(overlap, weight=1.0)
        server.log(server_beta=rates.beta, capped=rates.capped)
        server.log(gamma_adapted=forgetting_term(overlap, replace(rule, beta=rates.beta)))
        return rates

    # On both ----------------------------------------------------------------------------------------------------------

    def beta(self, server: Server, steps: int) -> float:
        """β, constant or c/√T; with an estimated L at most 1/(12LE), which the lemma on the gradient error needs."""
        s, L = self.settings, server.state.get("smoothness")
        beta = s.beta / sqrt(server.rounds) if s.rate == "diminishing" else s.beta
        return beta if L is None else min(beta, 1 / (12 * L * steps))

    def learn_smoothness(self, server: Server, mean: Mean) -> None:
        """The safeguard: L is twice what was seen, falls by a tenth a round at most, and stays where nothing was."""
        if "smoothness" in mean:
            seen = from_shares(mean.smoothness, self.settings.smoothness_over)
            known = server.state.get("smoothness", 0.0)
            server.state["smoothness"] = max(2 * seen, 0.9 * known) if seen > 0 else known or UNSEEN
            server.log(smoothness=server.state["smoothness"])

    def memory_direction(self, m: Tensor) -> Tensor:
        """q: the memory step's direction after an optimizer of its own, fresh as the local ones; m for SGD."""
        return make_optimizer(self.local.optimizer)(m)

    def rate_rule(self, steps: int, beta: float, L: float | None = None) -> RateRule:
        """How clients adapt their rates; with adaptation off, or left to the server, no rule acts."""
        s = self.settings
        alpha, smoothness = (s.alpha, float(s.smoothness)) if L is None else (1 / (2 * L), L)
        chosen = {"interference", "transference"} if s.rules == "both" else {s.rules}
        rules = chosen if s.adapt in ("average", "worst") else set()
        return RateRule(smoothness, alpha, beta, *s.caps(steps, L), frozenset(rules))
