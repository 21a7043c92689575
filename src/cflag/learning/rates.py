"""Adaptive rates: Table 1 and Algorithm 2 (AdapLR) of the paper, with the caps that its own lemmas ask for."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import TYPE_CHECKING, Literal

from cflag.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RateSettings:
    """The rates of C-FLAG, and how clients adapt them; the names are the paper's where it has one."""

    alpha: float = 0.1
    """α, the rate of the memory step."""
    beta: float = 0.05
    """β, the rate of the local steps (c, where `rate` is diminishing)."""
    rate: Literal["constant", "diminishing"] = "constant"
    """Whether β is constant or c/√T, with T the rounds of a task (Theorem 5)."""
    adapt: Literal["off", "average", "worst"] = "worst"
    """Whether clients adapt their rates (AdapFlag), for the average or the worst case."""
    rules: Literal["both", "interference", "transference"] = "both"
    """Which of the two rules act."""
    smoothness: float | Literal["auto"] = 5.0
    """L, which the paper sets to 5 by hand. "auto" estimates it on the way (learning/smoothness.py): then α = 1/(2L),
    which is 1/(L(1+m)) with m = 1, and β is at most 1/(12LE)."""
    smoothness_over: Literal["max", "mean"] = "max"
    """What the clients' estimates are put together as."""
    alpha_cap: float | Literal["paper", "none"] = "paper"
    """Upper bound of α_i; "paper" is 2/(L(1+m)) with m = 1, the constraint of the problem it solves."""
    beta_cap: float | Literal["paper", "none"] = "none"
    """Upper bound of the β_i that the transference rule sets; "paper" is 1/(4LE), which the drift lemma needs."""

    def check(self, table: str) -> None:
        """Refuse rates that cannot work."""
        for name in ("alpha", "beta", "smoothness", "alpha_cap", "beta_cap"):
            value = getattr(self, name)
            if not isinstance(value, str) and not value > 0:
                raise UserError(f"{table}.{name} = {value} must be positive")
        if self.smoothness == "auto":
            return  # the rates follow from L, and keep to its limits
        if self.adapt != "off" and self.alpha > self.caps(1)[0]:
            cap = self.caps(1)[0]
            raise UserError(f"{table}.alpha = {self.alpha} is above alpha_cap = {cap:g}; lower one or raise the other")
        if self.adapt != "off" and self.rules != "interference":
            self.check_transference(table)

    def check_transference(self, table: str) -> None:
        """β* = (1 − Lα) Λ / ... is a step backwards unless Lα < 1."""
        L = float(self.smoothness)
        if L * self.alpha >= 1:
            raise UserError(
                f"the transference rule needs {table}.alpha < 1/smoothness = {1 / L:g}; alpha = {self.alpha}"
            )

    def caps(self, steps: int, L: float | None = None) -> tuple[float, float]:
        """Return the upper bounds of α_i and β_i for E local steps, and an estimated L where there is one."""
        L = float(self.smoothness) if L is None else L
        paper = (1 / L, 1 / (4 * L * steps))
        caps = zip((self.alpha_cap, self.beta_cap), paper, strict=True)
        alpha_cap, beta_cap = (p if cap == "paper" else inf if cap == "none" else cap for cap, p in caps)
        return alpha_cap, beta_cap

    def plain_beta(self, rounds: int, steps: int, L: float | None) -> float:
        """β, constant or c/√T; with an estimated L at most 1/(12LE), which the lemma on the gradient error needs."""
        beta = self.beta / sqrt(rounds) if self.rate == "diminishing" else self.beta
        return beta if L is None else min(beta, 1 / (12 * L * steps))

    def rule(self, steps: int, beta: float, L: float | None = None) -> RateRule:
        """Return how a client adapts its rates; with adaptation off no rule acts."""
        alpha, smoothness = (self.alpha, float(self.smoothness)) if L is None else (1 / (2 * L), L)
        chosen = {"interference", "transference"} if self.rules == "both" else {self.rules}
        alpha_cap, beta_cap = self.caps(steps, L)  # a cap never lowers α itself
        rules = frozenset(chosen if self.adapt != "off" else ())
        return RateRule(smoothness, alpha, beta, max(alpha, alpha_cap), beta_cap, rules)


@dataclass(frozen=True)
class CFlagSettings(RateSettings):
    """The settings of C-FLAG. The defaults are the paper's theory, Algorithm 1 with Algorithm 2.

    Its experiments ran estimator = "minibatch" with optimizer = "adam".
    """

    estimator: Literal["iag", "minibatch"] = "iag"
    """v_{i,k}: the delayed average of the theory, or the plain mini-batch gradient of the experiments."""
    order: Literal["cyclic", "shuffled", "random"] = "shuffled"
    """In which order components are visited; shuffled anew in each pass."""
    drift: float = 1.0
    """How much of the correction g − g_i enters a local step: 1 in the paper."""
    measure_gamma: bool = True
    """Measure Γ(t). Where β_i differ among clients this takes one more vector up: Σ p_i a_i."""

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        super().check(table)
        if not 0 <= self.drift <= 1:
            raise UserError(f"{table}.drift = {self.drift} must lie between 0 and 1")
        if self.smoothness == "auto" and self.estimator != "iag":
            raise UserError(f"{table}.smoothness = 'auto' reads the gradient table: it needs {table}.estimator = 'iag'")


@dataclass(frozen=True)
class Overlap:
    """How local steps stand to the memory direction."""

    inner: float
    """Λ = ⟨m, a⟩."""
    steps: float
    """‖a‖²."""
    memory: float
    """⟨m, q⟩ with q the memory step's direction after its optimizer: ‖m‖² for SGD."""

    @staticmethod
    def between(m: Tensor, a: Tensor, q: Tensor) -> Overlap:
        """Measure the overlap of the memory gradient m (and its direction q) with the summed steps a."""
        return Overlap(float(m @ a), float(a @ a), float(m @ q))


@dataclass(frozen=True)
class Rates:
    """The rates α_i and β_i, which case it was, and how many caps acted."""

    alpha: float
    beta: float
    case: str
    capped: int = 0


@dataclass(frozen=True)
class RateRule:
    """How plain rates α and β adapt to an overlap: the smoothness L, the caps, and which rules act."""

    smoothness: float
    alpha: float
    beta: float
    alpha_cap: float = inf
    beta_cap: float = inf
    rules: frozenset[str] = frozenset({"interference", "transference"})

    @property
    def scales_steps(self) -> bool:
        """Whether β_i may differ from β, and so from client to client."""
        return "transference" in self.rules

    def adapt(self, overlap: Overlap, weight: float) -> Rates:
        """Return α_i and β_i; `weight` is p_i in the average case, N p_i in the worst, 1 for the server's β*."""
        case = "none" if overlap.memory <= 0 else "transference" if overlap.inner > 0 else "interference"
        if case not in self.rules:
            return Rates(self.alpha, self.beta, case)
        if case == "interference":
            alpha = self.alpha - self.beta * _ratio(overlap.inner, overlap.memory)
            return Rates(min(alpha, self.alpha_cap), self.beta, case, int(alpha > self.alpha_cap))
        L = self.smoothness
        best = _ratio((1 - L * self.alpha) * overlap.inner, L * weight * overlap.steps)
        beta = best or self.beta  # no step at all: no best rate for it
        return Rates(self.alpha, min(beta, self.beta_cap), case, int(beta > self.beta_cap))


def _ratio(above: float, below: float) -> float:
    """Return above / below, and 0 where vanishing vectors leave no meaningful ratio."""
    ratio = above / below if below else 0.0
    return ratio if isfinite(ratio) else 0.0
