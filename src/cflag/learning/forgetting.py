"""Γ(t), the paper's forgetting term: measured at the server from the means that a round brings anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cflag.learning.rates import Overlap, RateRule

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.conversation import Mean
    from cflag.server import Server


def forgetting_term(overlap: Overlap, rule: RateRule) -> float:
    """Γ(t) = (L/2) β² ‖Σ p_i a_i‖² − β (1 − Lα) ⟨m, Σ p_i a_i⟩, as in Section 5 and the proof of Lemma 1."""
    L, alpha, beta = rule.smoothness, rule.alpha, rule.beta
    return L / 2 * beta**2 * overlap.steps - beta * (1 - L * alpha) * overlap.inner


def mean_steps(mean: Mean, q: Tensor, rule: RateRule) -> Tensor | None:
    """Σ p_i a_i. Where all β_i are β it follows from Σ p_i Δ_i, as Σ p_i (g − g_i) = 0; else it was sent, or not."""
    return mean.get("a") if rule.scales_steps else (mean.delta - mean.alpha * q) / rule.beta


def observe(server: Server, mean: Mean, m: Tensor, q: Tensor, rule: RateRule) -> None:
    """Log Γ(t) where Σ p_i a_i is known; nothing depends on it."""
    a = mean_steps(mean, q, rule)
    if a is not None:
        server.log(gamma=forgetting_term(Overlap.between(m, a, q), rule))
