"""The paper's statements, each as a function of a trajectory: left side, right side, and whether it is claimed there.

Where a printed statement is false, what stands here is the corrected one; `findings.py` has the counter-examples.
Numbers of lemmas and theorems are the paper's, "S." those of its supplement that have none in the main text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, combinations
from math import isfinite, nan

import torch
from torch import Tensor

from cflag.theory.trajectory import Round, Trajectory, square


@dataclass(frozen=True)
class Check:
    """One instance of left ≤ right; `scale` is the size of the terms they were computed from, for rounding."""

    left: float
    right: float
    scale: float = 0.0

    @property
    def slack(self) -> float:
        """How much room is left."""
        return self.right - self.left

    @property
    def holds(self) -> bool:
        """Whether the inequality is true up to rounding."""
        return self.slack >= -(1e-9 * max(abs(self.left), abs(self.right)) + 1e-12 * self.scale)

    @property
    def ratio(self) -> float:
        """left / right; not a number where the right side is not positive."""
        return self.left / self.right if self.right > 0 else nan


Checks = Iterator[Check | None]
"""One for each instance; None where the assumptions are not met."""


@dataclass(frozen=True)
class Statement:
    """A statement of the paper, or its correction."""

    name: str
    claim: str
    assumes: str
    """What must hold; † stands for rates that do not adapt."""
    check: Callable[[Trajectory], Checks]

    def __reduce__(self) -> tuple[Callable[[str], Statement], tuple[str]]:
        """To another process it goes by its name."""
        return statement_named, (self.name,)


def _rounds(met: Callable[[Round], bool], sides: Callable[[Round], Check]) -> Callable[[Trajectory], Checks]:
    """A statement about each round by itself."""

    def check(seen: Trajectory) -> Checks:
        return (sides(t) if met(t) else None for t in seen)

    return check


def _identity(gap: Tensor, *parts: Tensor) -> Check:
    """Two ways to write the same vector: their difference is rounding."""
    return Check(float(gap.norm()), 0.0, sum(float(part.norm()) for part in parts) * 100)


# Assumptions ----------------------------------------------------------------------------------------------------------


def _always(t: Round) -> bool:
    return True


def _plain(t: Round) -> bool:
    """All clients use the plain rates."""
    return t.at.adapt == "off"


def _steady(seen: Trajectory) -> bool:
    """All clients use the plain rates, the same in every round."""
    return _plain(seen[0]) and len({(t.at.alpha, t.at.beta, t.at.smoothness) for t in seen}) == 1


def _below(t: Round, factor: float) -> bool:
    """β ≤ 1 / (factor L E)."""
    return t.at.beta * factor * t.at.smoothness * t.at.steps <= 1 + 1e-12


def _drift_holds(t: Round) -> bool:
    return _below(t, 4)


def _error_holds(t: Round) -> bool:
    return _below(t, 12)


def _growth_holds(t: Round) -> bool:
    return _plain(t) and _error_holds(t) and isfinite(t.r_ratio)


def _lemma1_holds(t: Round) -> bool:
    return _plain(t) and t.at.alpha * t.at.smoothness * (1 + t.m_ratio) < 2


# What Algorithm 1 says ------------------------------------------------------------------------------------------------


def _server_update(t: Round) -> Check:
    if t.at.adapt == "server":
        step = t.at.alpha * t.m + _best_beta(t) * t.mean_a
        return _identity(t.after - t.x + step, t.x, step)
    corrections = t.at.steps * (t.g - t.each_g) + t.a
    step = t.mean(t.alphas[:, None] * t.m + t.betas[:, None] * corrections)
    return _identity(t.after - t.x + step, t.x, step)


def _local_step(t: Round) -> Check:
    steps = t.at.beta * ((t.g - t.each_g)[:, None] + t.v)
    return _identity((t.points[:, 1:] - t.points[:, :-1] + steps).flatten(), t.points.flatten(), steps.flatten())


def _start_gradient(t: Round) -> Check:
    return _identity((t.v[:, 0] - t.each_g).flatten(), t.each_g.flatten())


def _later_gradients(t: Round) -> Check:
    """From the second step on, v changes by one component's gradient: here minus where it was visited last."""
    gaps = [_replayed(t, i, list(rows)) for i, rows in enumerate(t.components)]
    # Which component it was is found by trying; those that hardly change cannot be told apart to the last digits.
    return Check(float(torch.stack(gaps).max()), 0.0, 1e4 * float(t.v.norm()))


def _replayed(t: Round, i: int, components: list[Tensor]) -> Tensor:
    """Return how far client i's delayed gradients are from the nearest that any order of visits could give."""
    sizes = torch.tensor([len(rows) for rows in components])
    weights = (sizes / sizes.sum()).to(t.v.dtype)
    owner = torch.repeat_interleave(torch.arange(len(components)), sizes)
    each = t.at.problem.each_gradient(t.points[i, :-1], torch.cat(components))
    sums = torch.zeros(len(each), len(components), each.shape[2], dtype=each.dtype).index_add_(1, owner, each)
    here = sums / sizes[:, None]
    table, worst = here[0].clone(), torch.zeros((), dtype=t.v.dtype)
    for k in range(1, t.at.steps):
        changes = weights[:, None] * (here[k] - table)
        gaps = (t.v[i, k - 1] + changes - t.v[i, k]).norm(dim=1)
        j = int(gaps.argmin())
        worst = torch.maximum(worst, gaps[j])
        table[j] = here[k, j]
    return worst


def _best_beta(t: Round) -> float:
    """Section 5's β* where the mean step agrees with the memory, else β."""
    inner = float(t.m @ t.mean_a)
    L, alpha = t.at.smoothness, t.at.alpha
    return (1 - L * alpha) * inner / (L * square(t.mean_a)) if inner > 0 else t.at.beta


def _adaptive_rates(t: Round) -> Check:
    """Table 1: α_i = α − βΛ_i/‖m‖² under interference, β_i = (1 − Lα) Λ_i / (L w_i ‖a_i‖²) under transference."""
    L, alpha, beta, inner = t.at.smoothness, t.at.alpha, t.at.beta, t.a @ t.m
    many = t.at.problem.weights * (len(t.v) if t.at.adapt == "worst" else 1)
    agrees = inner > 0
    alphas = torch.where(agrees, alpha, alpha - beta * inner / square(t.m))
    betas = torch.where(agrees, (1 - L * alpha) * inner / (L * many * (t.a**2).sum(1)), beta)
    return _identity(torch.cat([t.alphas - alphas, t.betas - betas]), alphas, betas)


def _reported_gamma(t: Round) -> Check:
    L, beta, a = t.at.smoothness, t.at.beta, t.mean_a
    scale = beta * (L * beta * square(a) + float(t.m.norm() * a.norm()))
    return Check(abs(t.gamma() - t.remarks["gamma"]), 0.0, 1e3 * scale)


def _calls(t: Round) -> Check:
    """Line 2 costs |C^i| + |M^i| component gradients, lines 5-8 one for each step but the first."""
    due = sum(map(len, t.at.problem.current)) + sum(map(len, t.at.memory)) + (t.at.steps - 1) * len(t.v)
    return Check(abs(t.calls - due), 0.0)


# Bias and memory gradient ---------------------------------------------------------------------------------------------


def _zero_bias(seen: Trajectory) -> Checks:
    """Over all memories that a uniform draw could have given, at the first and the last point."""
    for t in (seen[0], seen[-1]):
        total = torch.zeros_like(t.x)
        for p, past, kept in zip(t.at.problem.weights, t.at.problem.past, t.at.memory, strict=True):
            each = t.at.problem.each_gradient(t.x[None], past)[0]
            choices = torch.tensor(list(combinations(range(len(past)), len(kept))))
            total += p * (each[choices].mean(1).mean(0) - each.mean(0))
        yield _identity(total, t.each_f.flatten())


def _averaged_bias(t: Round) -> Check:
    return Check(square(t.bias), float((t.each_bias**2).sum(1).max()))


def _memory_gradient(t: Round) -> Check:
    return Check(float(t.m.norm()), float(t.each_m.norm(dim=1).max()))


# The local path -------------------------------------------------------------------------------------------------------


def _error_lemma(t: Round) -> Check:
    """The worst step and client: ‖e_k‖ ≤ βLE ‖∇g‖ + 3βL²E max_{b<k} ‖x_b − x_t‖."""
    L, E, beta = t.at.smoothness, t.at.steps, t.at.beta
    before = torch.cat([torch.zeros(len(t.v), 1, dtype=t.x.dtype), t.drift[:, : E - 1].cummax(1).values], dim=1)
    bound = beta * L * E * t.g.norm() + 3 * beta * L**2 * E * before
    return _worst(t.errors.norm(dim=2), bound, _rounding(t))


def _drift(t: Round) -> Check:
    """For k = 1 to E, one more than is printed: the induction goes that far."""
    k = torch.arange(1, t.at.steps + 1, dtype=t.x.dtype)
    return _worst(t.drift[:, 1:], (4 * t.at.beta * k * t.g.norm()).expand(len(t.v), -1), float(t.x.norm()))


def _error(t: Round) -> Check:
    L, E = t.at.smoothness, t.at.steps
    return Check(float(t.errors.norm(dim=2).max()), float(2 * t.at.beta * L * E * t.g.norm()), _rounding(t))


def _summed_gradients(t: Round) -> Check:
    L, E, g = t.at.smoothness, t.at.steps, float(t.g.norm())
    return Check(float(t.mean(t.rho).sum(0).norm()), (4 * L * t.at.beta * E**2 + E) * g, E * _rounding(t))


def _summed_gradients_squared(t: Round) -> Check:
    L, E, beta = t.at.smoothness, t.at.steps, t.at.beta
    return Check(
        square(t.mean(t.rho).sum(0)), (32 * beta**2 * L**2 * E**4 + 2 * E**2) * square(t.g), E**2 * _rounding(t)
    )


def _summed_errors(t: Round) -> Check:
    L, E = t.at.smoothness, t.at.steps
    return Check(float(t.mean(t.errors).sum(0).norm()), float(2 * t.at.beta * L * E**2 * t.g.norm()), E * _rounding(t))


def _worst(left: Tensor, right: Tensor, scale: float) -> Check:
    """Of many inequalities, the one with the least room for its size."""
    room = (right - left) / right.clamp(min=1e-300)
    k = int(room.argmin())
    return Check(float(left.flatten()[k]), float(right.flatten()[k]), scale)


def _rounding(t: Round) -> float:
    """The size of the numbers that gradients are made of, however small they come out."""
    return t.at.smoothness * (1 + float(t.x.norm()))


# Forgetting and convergence -------------------------------------------------------------------------------------------


def _lemma1(t: Round) -> Check:
    alpha = t.at.alpha
    share = alpha * (1 - t.at.smoothness / 2 * alpha * (1 + t.m_ratio))
    right = (t.progress + t.overfitting() + t.gamma()) / share
    return Check(square(t.f), right, (abs(t.past_loss(t.x)) + float(t.f.norm() * t.x.norm())) / share)


def _theorem2_kept(seen: Trajectory) -> Checks:
    """For every T up to the trajectory's length; m is what α = 1/(L(1+m)) says."""
    alpha, L = seen[0].at.alpha, seen[0].at.smoothness
    m = 1 / (L * alpha) - 1
    least, most = _prefix(seen, lambda t: square(t.f), min), _prefix(seen, lambda t: t.m_ratio, max)
    total = _prefix(seen, lambda t: t.progress + t.overfitting() + t.gamma())
    steady = _steady(seen)
    for T, t in enumerate(seen, 1):
        met = steady and m >= 0 and most[T - 1] <= m
        yield Check(least[T - 1], 2 * L * (1 + m) / T * total[T - 1], L * t.past_loss(t.x)) if met else None


def _theorem2_sure(seen: Trajectory) -> Checks:
    """For every T, and for every memory rather than in expectation."""
    alpha, beta, L = seen[0].at.alpha, seen[0].at.beta, seen[0].at.smoothness
    least, most = _prefix(seen, lambda t: square(t.f), min), _prefix(seen, lambda t: t.m_ratio, max)
    total = _prefix(seen, lambda t: t.progress + t.gamma() + beta * float(t.bias @ t.mean_a))
    steady = _steady(seen)
    for T, t in enumerate(seen, 1):
        m = most[T - 1]
        met = steady and m < 1 and alpha * L <= 1
        yield Check(least[T - 1], 2 / (alpha * (1 - m) * T) * total[T - 1], t.past_loss(t.x) / alpha) if met else None


def _lemma3(seen: Trajectory) -> Checks:
    """For every T: the potential Φ = (α/β) f† + E g falls, up to what local paths bend."""
    L, E, beta = seen[0].at.smoothness, seen[0].at.steps, seen[0].at.beta
    least = _prefix(seen, lambda t: square(t.potential_gradient), min)
    current = _prefix(seen, lambda t: square(t.g))
    steady = _steady(seen)
    for T, t in enumerate(seen, 1):
        met = steady and _error_holds(t) and L * (t.at.alpha + beta * E) <= 1
        fall = t.potential(seen[0].x) - t.potential(t.after)
        right = 2 / (beta * T) * fall + (6 * beta * L * E**2) ** 2 * current[T - 1] / T
        yield Check(least[T - 1], right, abs(t.potential(t.x)) / beta) if met else None


def growth(t: Round, r: float) -> float:
    """Q_t / 2, the most that Γ(t) can be per ‖∇g‖²; with |1 − Lα|, because α may exceed 1/L."""
    L, E, alpha, beta = t.at.smoothness, t.at.steps, t.at.alpha, t.at.beta
    step = beta * L * E
    return (36 * step**4 + 2 * step**2) / L + r * beta * E * abs(1 - L * alpha) * (6 * step + 1)


def _lemma4_round(t: Round) -> Check:
    return Check(t.gamma(), growth(t, t.r_ratio) * square(t.g), abs(t.gamma()))


def _lemma4_joint(t: Round) -> Check:
    return Check(t.gamma(), 2 * growth(t, t.r_ratio) * (square(t.mean(t.each_h)) + t.omega2), abs(t.gamma()))


def _current_gradient(t: Round) -> Check:
    return Check(square(t.g), 2 * square(t.mean(t.each_h)) + 2 * t.omega2)


def _lemma4(seen: Trajectory) -> Checks:
    """For every T: the mean of Γ is at most Q/2 times the mean of ‖∇g‖²."""
    total, current = _prefix(seen, lambda t: t.gamma()), _prefix(seen, lambda t: square(t.g))
    most = _prefix(seen, lambda t: t.r_ratio, max)
    steady = _steady(seen)
    for T, t in enumerate(seen, 1):
        met = steady and isfinite(most[T - 1]) and _error_holds(t)
        yield Check(total[T - 1] / T, growth(t, most[T - 1]) * current[T - 1] / T) if met else None


def _constant_step(seen: Trajectory) -> Checks:
    """β = 1/(60LE): the printed constants for Q, times half the mean of ‖∇g‖²."""
    L, alpha = seen[0].at.smoothness, seen[0].at.alpha
    total, current = _prefix(seen, lambda t: t.gamma()), _prefix(seen, lambda t: square(t.g))
    most = _prefix(seen, lambda t: t.r_ratio, max)
    steady = _steady(seen)
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


def _theorem5(seen: Trajectory) -> Checks:
    """Once a trajectory, at its own T; all families have losses of at least 0."""
    first = seen[0]
    met = _steady(seen) and _error_holds(first) and first.at.alpha * first.at.smoothness <= 1
    met = met and max(t.m_ratio for t in seen) < 1 and all(isfinite(t.r_ratio) for t in seen)
    yield Check(min(square(t.f) for t in seen), rate_bound(seen)) if met else None


# Adaptive rates -------------------------------------------------------------------------------------------------------


def shares_of_gamma(t: Round, alphas: Tensor, betas: Tensor) -> Tensor:
    """Γ_i: client i's contribution in the average case, or its upper bound in the worst."""
    L, many = t.at.smoothness, len(t.v) if t.at.adapt == "worst" else 1
    inner = t.a @ t.m
    return L / 2 * betas**2 * many * t.at.problem.weights * (t.a**2).sum(1) - betas * (1 - L * alphas) * inner


def _shares(t: Round) -> tuple[Tensor, Tensor]:
    """Γ_i with adapted and with plain rates."""
    plain = torch.full_like(t.alphas, t.at.alpha), torch.full_like(t.betas, t.at.beta)
    return shares_of_gamma(t, t.alphas, t.betas), shares_of_gamma(t, *plain)


def _by_clients(t: Round) -> bool:
    return t.at.adapt in ("average", "worst")


def _lemma6(seen: Trajectory) -> Checks:
    """Once for every client that interferes."""
    for t in seen:
        if not _by_clients(t):
            yield None
            continue
        adapted, plain = _shares(t)
        for i in (t.a @ t.m <= 0).nonzero().flatten().tolist():
            yield Check(float(adapted[i]), float(plain[i]), float(abs(plain[i])))


def _lemma7(t: Round) -> Check:
    adapted, plain = _shares(t)
    return Check(float(t.mean(adapted)), float(t.mean(plain)), float(t.mean(plain.abs())))


def _lemma7_itself(t: Round) -> Check:
    """Γ itself, interaction and all, against the bound that plain rates give (Cauchy-Schwarz)."""
    _, plain = _shares(t)
    return Check(t.gamma_adapted(), float(t.mean(plain)), float(t.mean(plain.abs())))


def _server_beta(t: Round) -> Check:
    return Check(t.gamma(beta=t.remarks["server_beta"]), t.gamma(), abs(t.gamma()))


def _prefix(
    seen: Trajectory, of: Callable[[Round], float], how: Callable[[float, float], float] = lambda a, b: a + b
) -> list[float]:
    """Return the running sum (or least, or most) of something over the rounds."""
    return list(accumulate((of(t) for t in seen), how))


STATEMENTS = (
    Statement("Eq. (4), local step", "x_{k+1} = x_k − β (∇g − ∇g_i + v_k)", "none",
              _rounds(_always, _local_step)),
    Statement("Eq. (5), first v", "v_{i,0} = ∇g_i(x_t)", "none", _rounds(_always, _start_gradient)),
    Statement("Eq. (5), later v", "v_k − v_{k−1} = w_j (∇g_j(x_k) − ∇g_j(x_τ)) for one j", "none",
              _rounds(_always, _later_gradients)),
    Statement("Line 12, server step", "x_{t+1} = x_t − Σ p_i (α_i m + β_i (E (g − g_i) + a_i))", "none",
              _rounds(_always, _server_update)),
    Statement("Table 1, adaptive rates", "α_i = α − βΛ_i/‖m‖² or β_i = (1 − Lα) Λ_i/(L w_i ‖a_i‖²)", "clients adapt",
              _rounds(_by_clients, _adaptive_rates)),
    Statement("Γ(t) as reported", "the run's Γ is (L/2)β²‖Σp_i a_i‖² − β(1−Lα)⟨m, Σp_i a_i⟩", "none",
              _rounds(_always, _reported_gamma)),
    Statement("S. zero bias", "E_M[b(x)] = 0 at a fixed x", "M uniform", _zero_bias),
    Statement("S. averaged bias", "‖b‖² ≤ max_i ‖b_i‖²", "none", _rounds(_always, _averaged_bias)),
    Statement("S. memory gradient", "‖∇f†‖ ≤ max_i r_i ‖∇g‖", "none", _rounds(_always, _memory_gradient)),
    Statement("S. gradient error, any β", "‖e_k‖ ≤ βLE‖∇g‖ + 3βL²E max_{b<k}‖x_b − x_t‖", "L-smooth",
              _rounds(_always, _error_lemma)),
    Statement("S. client drift", "‖x_k − x_t‖ ≤ 4βk‖∇g‖", "β ≤ 1/(4LE)", _rounds(_drift_holds, _drift)),
    Statement("S. gradient error", "‖e_k‖ ≤ 2βLE‖∇g‖", "β ≤ 1/(12LE)", _rounds(_error_holds, _error)),
    Statement("S. summed gradients I", "‖Σ_k ρ̄_k‖ ≤ (4LβE² + E)‖∇g‖", "β ≤ 1/(4LE)",
              _rounds(_drift_holds, _summed_gradients)),
    Statement("S. summed gradients II", "‖Σ_k ρ̄_k‖² ≤ (32β²L²E⁴ + 2E²)‖∇g‖²", "β ≤ 1/(4LE)",
              _rounds(_drift_holds, _summed_gradients_squared)),
    Statement("S. accumulated error", "‖Σ_k ē_k‖ ≤ 2βLE²‖∇g‖", "β ≤ 1/(12LE)", _rounds(_error_holds, _summed_errors)),
    Statement("S. current gradient", "‖∇g‖² ≤ 2‖∇h̃‖² + 2ω²", "none", _rounds(_always, _current_gradient)),
    Statement("Lemma 1", "‖∇f‖² ≤ (f(x_t) − f(x_{t+1}) + B + Γ) / (α[1 − (L/2)α(1+m)])", "α < 2/(L(1+m)) †",
              _rounds(_lemma1_holds, _lemma1)),
    Statement("Theorem 2, B kept", "min‖∇f‖² ≤ 2L(1+m)/T (F + Σ Γ + B)", "α = 1/(L(1+m)) †", _theorem2_kept),
    Statement("Theorem 2, corrected", "min‖∇f‖² ≤ 2/(α(1−m)T) (F + Σ Γ + β⟨b, Σp_i a_i⟩)",
              "m < 1, α ≤ 1/L †", _theorem2_sure),
    Statement("Lemma 3, corrected", "min‖∇Φ‖² ≤ 2/(βT) (Φ_0 − Φ_T) + (6βLE²)² mean‖∇g‖²",
              "β ≤ 1/(12LE), L(α + βE) ≤ 1 †", _lemma3),
    Statement("Lemma 4, one round", "Γ ≤ ½Q_t ‖∇g‖²", "β ≤ 1/(12LE), r finite †",
              _rounds(_growth_holds, _lemma4_round)),
    Statement("Lemma 4, with ω", "Γ ≤ Q_t (‖∇h̃‖² + ω²)", "β ≤ 1/(12LE), r finite †",
              _rounds(_growth_holds, _lemma4_joint)),
    Statement("Lemma 4, corrected", "mean Γ ≤ ½Q mean‖∇g‖²", "β ≤ 1/(12LE), r finite †", _lemma4),
    Statement("S. constant β, corrected", "mean Γ ≤ ½(11/(60L) + 2r|1−Lα|/(15L)) mean‖∇g‖²",
              "β = 1/(60LE), r finite †", _constant_step),
    Statement("Theorem 5, corrected", "min‖∇f‖² ≤ 2/(α(1−m)) (f(x_0)/T + ½QG² + βE(1+6βLE)DG)",
              "m < 1, α ≤ 1/L, β ≤ 1/(12LE), r finite †", _theorem5),
    Statement("Lemma 6", "Γ_i with α_i ≤ Γ_i with α", "Λ_i ≤ 0", _lemma6),
    Statement("Lemma 7, per client", "Σ p_i Γ_i with α_i, β_i ≤ Σ p_i Γ_i with α, β", "clients adapt",
              _rounds(_by_clients, _lemma7)),
    Statement("Lemma 7, for Γ", "Γ with α_i, β_i ≤ Σ p_i Γ_i with α, β", "clients adapt, worst case",
              _rounds(lambda t: t.at.adapt == "worst", _lemma7_itself)),
    Statement("Section 5, server's β*", "Γ with β* ≤ Γ with β", "the server adapts",
              _rounds(lambda t: t.at.adapt == "server", _server_beta)),
    Statement("S. IFO calls", "a round costs Σ (|C^i| + |M^i| + E − 1)", "components of one row",
              _rounds(lambda t: t.at.component == 1, _calls)),
)  # fmt: skip


def statement_named(name: str) -> Statement:
    """Return a statement by its name."""
    return next(statement for statement in STATEMENTS if statement.name == name)


@dataclass(frozen=True)
class Verdict:
    """What a statement came to over some trajectories."""

    statement: Statement
    instances: int
    checked: int
    worst: float
    """The largest left / right, where the right side is positive."""
    failures: tuple[Check, ...]

    @property
    def word(self) -> str:
        """The verdict in a word."""
        return "FAILS" if self.failures else "holds" if self.checked else "not met"


def judge(statement: Statement, trajectories: list[Trajectory]) -> Verdict:
    """Check a statement wherever it is claimed."""
    checks = [check for seen in trajectories for check in statement.check(seen)]
    met = [check for check in checks if check is not None]
    ratios = [check.ratio for check in met if isfinite(check.ratio)]
    failures = tuple(check for check in met if not check.holds)
    return Verdict(statement, len(checks), len(met), max(ratios, default=nan), failures)


def total(verdicts: list[Verdict]) -> Verdict:
    """Put the verdicts on one statement over several problems together."""
    ratios = [v.worst for v in verdicts if isfinite(v.worst)]
    failures = tuple(check for v in verdicts for check in v.failures)
    count = sum(v.instances for v in verdicts), sum(v.checked for v in verdicts)
    return Verdict(verdicts[0].statement, *count, max(ratios, default=nan), failures)
