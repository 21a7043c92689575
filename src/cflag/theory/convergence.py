"""Lemmas 1 to 7 and Theorems 2 and 5, on forgetting, convergence and adaptive rates: the two sides of each.

Where what is printed is false, this is the corrected one.
"""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor

from cflag.theory.checks import Check, Checks, by_clients, error_holds, prefix, steady_rates
from cflag.theory.round import Round, Trajectory, square

# Forgetting and convergence -------------------------------------------------------------------------------------------


def lemma1(t: Round) -> Check:
    """‖∇f‖² against what f fell by, with B and Γ."""
    alpha = t.at.alpha
    share = alpha * (1 - t.at.smoothness / 2 * alpha * (1 + t.m_ratio))
    right = (t.progress + t.overfitting() + t.gamma()) / share
    return Check(square(t.f), right, (abs(t.past_loss(t.x)) + float(t.f.norm() * t.x.norm())) / share)


def theorem2_kept(seen: Trajectory) -> Checks:
    """For every T up to the trajectory's length; m is what α = 1/(L(1+m)) says."""
    alpha, L = seen[0].at.alpha, seen[0].at.smoothness
    m = 1 / (L * alpha) - 1
    least, most = prefix(seen, lambda t: square(t.f), min), prefix(seen, lambda t: t.m_ratio, max)
    total = prefix(seen, lambda t: t.progress + t.overfitting() + t.gamma())
    steady = steady_rates(seen)
    for T, t in enumerate(seen, 1):
        met = steady and m >= 0 and most[T - 1] <= m
        yield Check(least[T - 1], 2 * L * (1 + m) / T * total[T - 1], L * t.past_loss(t.x)) if met else None


def theorem2_sure(seen: Trajectory) -> Checks:
    """For every T, and for every memory rather than in expectation."""
    alpha, beta, L = seen[0].at.alpha, seen[0].at.beta, seen[0].at.smoothness
    least, most = prefix(seen, lambda t: square(t.f), min), prefix(seen, lambda t: t.m_ratio, max)
    total = prefix(seen, lambda t: t.progress + t.gamma() + beta * float(t.bias @ t.mean_a))
    steady = steady_rates(seen)
    for T, t in enumerate(seen, 1):
        m = most[T - 1]
        met = steady and m < 1 and alpha * L <= 1
        yield Check(least[T - 1], 2 / (alpha * (1 - m) * T) * total[T - 1], t.past_loss(t.x) / alpha) if met else None


def lemma3(seen: Trajectory) -> Checks:
    """For every T: the potential Φ = (α/β) f† + E g falls, up to what local paths bend."""
    L, E, beta = seen[0].at.smoothness, seen[0].at.steps, seen[0].at.beta
    least = prefix(seen, lambda t: square(t.potential_gradient), min)
    current = prefix(seen, lambda t: square(t.g))
    steady = steady_rates(seen)
    for T, t in enumerate(seen, 1):
        met = steady and error_holds(t) and L * (t.at.alpha + beta * E) <= 1
        fall = t.potential(seen[0].x) - t.potential(t.after)
        right = 2 / (beta * T) * fall + (6 * beta * L * E**2) ** 2 * current[T - 1] / T
        yield Check(least[T - 1], right, abs(t.potential(t.x)) / beta) if met else None


def growth(t: Round, r: float) -> float:
    """Q_t / 2, the most that Γ(t) can be per ‖∇g‖²; with |1 − Lα|, because α may exceed 1/L."""
    L, E, alpha, beta = t.at.smoothness, t.at.steps, t.at.alpha, t.at.beta
    step = beta * L * E
    return (36 * step**4 + 2 * step**2) / L + r * beta * E * abs(1 - L * alpha) * (6 * step + 1)


def lemma4_round(t: Round) -> Check:
    """Γ(t) against ½Q_t ‖∇g‖²."""
    return Check(t.gamma(), growth(t, t.r_ratio) * square(t.g), abs(t.gamma()))


def lemma4_joint(t: Round) -> Check:
    """Γ(t) against Q_t (‖∇h̃‖² + ω²)."""
    return Check(t.gamma(), 2 * growth(t, t.r_ratio) * (square(t.mean(t.each_h)) + t.omega2), abs(t.gamma()))


def current_gradient(t: Round) -> Check:
    """‖∇g‖² against 2‖∇h̃‖² + 2ω²."""
    return Check(square(t.g), 2 * square(t.mean(t.each_h)) + 2 * t.omega2)


def lemma4(seen: Trajectory) -> Checks:
    """For every T: the mean of Γ is at most Q/2 times the mean of ‖∇g‖²."""
    total, current = prefix(seen, lambda t: t.gamma()), prefix(seen, lambda t: square(t.g))
    most = prefix(seen, lambda t: t.r_ratio, max)
    steady = steady_rates(seen)
    for T, t in enumerate(seen, 1):
        met = steady and isfinite(most[T - 1]) and error_holds(t)
        yield Check(total[T - 1] / T, growth(t, most[T - 1]) * current[T - 1] / T) if met else None


def constant_step(seen: Trajectory) -> Checks:
    """β = 1/(60LE): the printed constants for Q, times half the mean of ‖∇g‖²."""
    L, alpha = seen[0].at.smoothness, seen[0].at.alpha
    total, current = prefix(seen, lambda t: t.gamma()), prefix(seen, lambda t: square(t.g))
    most = prefix(seen, lambda t: t.r_ratio, max)
    steady = steady_rates(seen)
    for T, t in enumerate(seen, 1):
        met = steady and isfinite(most[T - 1]) and abs(60 * L * t.at.steps * t.at.beta - 1) < 1e-9
        q = 11 / (60 * L) + 2 * most[T - 1] / (15 * L) * abs(1 - L * alpha)
        yield Check(total[T - 1] / T, q / 2 * current[T - 1] / T) if met else None


def rate_bound(seen: Trajectory) -> float:
    """The right side of the corrected Theorem 5, every term of it at most a constant over √T when β ≤ c/√T."""
    first, T = seen[0], len(seen)
    L, E, alpha, beta = first.at.smoothness, first.at.steps, first.at.alpha, first.at.beta
    m, r = max(t.m_ratio for t in seen), max(t.r_ratio for t in seen)
    G, D = max(float(t.g.norm()) for t in seen), max(float(t.bias.norm()) for t in seen)
    bent = beta * E * (1 + 6 * beta * L * E) * D * G
    return 2 / (alpha * (1 - m)) * (first.past_loss(first.x) / T + growth(first, r) * G**2 + bent)


def theorem5(seen: Trajectory) -> Checks:
    """Once per trajectory, for its own T; the losses of all families are at least 0."""
    first = seen[0]
    met = steady_rates(seen) and error_holds(first) and first.at.alpha * first.at.smoothness <= 1
    met = met and max(t.m_ratio for t in seen) < 1 and all(isfinite(t.r_ratio) for t in seen)
    yield Check(min(square(t.f) for t in seen), rate_bound(seen)) if met else None


# Adaptive rates -------------------------------------------------------------------------------------------------------


def shares_of_gamma(t: Round, alphas: Tensor, betas: Tensor) -> Tensor:
    """Γ_i: client i's contribution in the average case, or its upper bound in the worst."""
    L, many = t.at.smoothness, len(t.v) if t.at.adapt == "worst" else 1
    inner = t.a @ t.m
    return L / 2 * betas**2 * many * t.at.problem.weights * (t.a**2).sum(1) - betas * (1 - L * alphas) * inner


def shares(t: Round) -> tuple[Tensor, Tensor]:
    """Γ_i with adapted and with plain rates."""
    plain = torch.full_like(t.alphas, t.at.alpha), torch.full_like(t.betas, t.at.beta)
    return shares_of_gamma(t, t.alphas, t.betas), shares_of_gamma(t, *plain)


def lemma6(seen: Trajectory) -> Checks:
    """Once for every client that interferes."""
    for t in seen:
        if not by_clients(t):
            yield None
            continue
        adapted, plain = shares(t)
        for i in (t.a @ t.m <= 0).nonzero().flatten().tolist():
            yield Check(float(adapted[i]), float(plain[i]), float(abs(plain[i])))


def lemma7(t: Round) -> Check:
    """Σ p_i Γ_i with adapted and with plain rates."""
    adapted, plain = shares(t)
    return Check(float(t.mean(adapted)), float(t.mean(plain)), float(t.mean(plain.abs())))


def lemma7_itself(t: Round) -> Check:
    """Γ itself, interaction and all, against the bound that plain rates give (Cauchy-Schwarz)."""
    _, plain = shares(t)
    return Check(t.gamma_adapted(), float(t.mean(plain)), float(t.mean(plain.abs())))


def server_beta(t: Round) -> Check:
    """Γ with β* and with β."""
    return Check(t.gamma(beta=t.logs["server_beta"]), t.gamma(), abs(t.gamma()))
