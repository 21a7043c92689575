"""Adaptive rates: Table 1 of the paper, with the caps its own lemmas ask for."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from torch import Tensor


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


def forgetting_term(overlap: Overlap, rule: RateRule) -> float:
    """Γ(t) = (L/2) β² ‖Σ p_i a_i‖² − β (1 − Lα) ⟨m, Σ p_i a_i⟩, as in Section 5 and the proof of Lemma 1."""
    L, alpha, beta = rule.smoothness, rule.alpha, rule.beta
    return L / 2 * beta**2 * overlap.steps - beta * (1 - L * alpha) * overlap.inner
