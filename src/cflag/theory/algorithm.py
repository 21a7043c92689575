"""What Algorithm 1 says a round does, and the lemmas on its bias and its local paths: the two sides of each."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from cflag.theory.checks import Check, Checks, identity, least_room, rounding
from cflag.theory.round import Round, Trajectory, square

# What Algorithm 1 says ------------------------------------------------------------------------------------------------


def server_update(t: Round) -> Check:
    """Line 12: x_{t+1} is x_t less the mean of Δ_i, or less the server's own step."""
    if t.at.adapt == "server":
        step = t.at.alpha * t.m + best_beta(t) * t.mean_a
        return identity(t.after - t.x + step, t.x, step)
    corrections = t.at.steps * (t.g - t.each_g) + t.a
    step = t.mean(t.alphas[:, None] * t.m + t.betas[:, None] * corrections)
    return identity(t.after - t.x + step, t.x, step)


def local_step(t: Round) -> Check:
    """Eq. (4), all steps of all clients."""
    steps = t.at.beta * ((t.g - t.each_g)[:, None] + t.v)
    return identity((t.points[:, 1:] - t.points[:, :-1] + steps).flatten(), t.points.flatten(), steps.flatten())


def start_gradient(t: Round) -> Check:
    """Eq. (5) at k = 0: every component's gradient is the one at x_t."""
    return identity((t.v[:, 0] - t.each_g).flatten(), t.each_g.flatten())


def later_gradients(t: Round) -> Check:
    """From the second step on, v changes by one component's gradient here minus that at its previous visit."""
    gaps = [replayed(t, i, list(rows)) for i, rows in enumerate(t.components)]
    # Which component it was is found by trial; components that hardly change cannot be told apart exactly.
    return Check(float(torch.stack(gaps).max()), 0.0, 1e4 * float(t.v.norm()))


def replayed(t: Round, i: int, components: list[Tensor]) -> Tensor:
    """Return how far client i's delayed gradients are from the closest ones that some order of visits gives."""
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


def best_beta(t: Round) -> float:
    """Section 5's β* where the mean step agrees with the memory, else β."""
    inner = float(t.m @ t.mean_a)
    L, alpha = t.at.smoothness, t.at.alpha
    return (1 - L * alpha) * inner / (L * square(t.mean_a)) if inner > 0 else t.at.beta


def adaptive_rates(t: Round) -> Check:
    """Table 1: α_i = α − βΛ_i/‖m‖² under interference, β_i = (1 − Lα) Λ_i / (L w_i ‖a_i‖²) under transference."""
    L, alpha, beta, inner = t.at.smoothness, t.at.alpha, t.at.beta, t.a @ t.m
    many = t.at.problem.weights * (len(t.v) if t.at.adapt == "worst" else 1)
    agrees = inner > 0
    alphas = torch.where(agrees, alpha, alpha - beta * inner / (square(t.m) or 1.0))  # m = 0: the plain rates
    betas = torch.where(agrees, (1 - L * alpha) * inner / (L * many * (t.a**2).sum(1)), beta)
    return identity(torch.cat([t.alphas - alphas, t.betas - betas]), alphas, betas)


def reported_gamma(t: Round) -> Check:
    """The Γ(t) that a run logs is Γ(t)."""
    L, beta, a = t.at.smoothness, t.at.beta, t.mean_a
    scale = beta * (L * beta * square(a) + float(t.m.norm() * a.norm()))
    return Check(abs(t.gamma() - t.logs["gamma"]), 0.0, 1e3 * scale)


def calls(t: Round) -> Check:
    """Line 2 costs |C^i| + |M^i| component gradients, lines 5-8 one for each step but the first."""
    due = sum(map(len, t.at.problem.current)) + sum(map(len, t.at.memory)) + (t.at.steps - 1) * len(t.v)
    return Check(abs(t.calls - due), 0.0)


# Bias and memory gradient ---------------------------------------------------------------------------------------------


def zero_bias(seen: Trajectory) -> Checks:
    """Over all memories that a uniform draw could have given, at the first and the last point."""
    for t in (seen[0], seen[-1]):
        total = torch.zeros_like(t.x)
        for p, past, kept in zip(t.at.problem.weights, t.at.problem.past, t.at.memory, strict=True):
            each = t.at.problem.each_gradient(t.x[None], past)[0]
            choices = torch.tensor(list(combinations(range(len(past)), len(kept))))
            total += p * (each[choices].mean(1).mean(0) - each.mean(0))
        yield identity(total, t.each_f.flatten())


def averaged_bias(t: Round) -> Check:
    """The mean of the biases is at most as long as the longest."""
    return Check(square(t.bias), float((t.each_bias**2).sum(1).max()))


def memory_gradient(t: Round) -> Check:
    """The mean of the memory gradients is at most as long as the longest."""
    return Check(float(t.m.norm()), float(t.each_m.norm(dim=1).max()))


# The local path -------------------------------------------------------------------------------------------------------


def error_lemma(t: Round) -> Check:
    """The worst step and client: ‖e_k‖ ≤ βLE ‖∇g‖ + 3βL²E max_{b<k} ‖x_b − x_t‖."""
    L, E, beta = t.at.smoothness, t.at.steps, t.at.beta
    before = torch.cat([torch.zeros(len(t.v), 1, dtype=t.x.dtype), t.drift[:, : E - 1].cummax(1).values], dim=1)
    bound = beta * L * E * t.g.norm() + 3 * beta * L**2 * E * before
    return least_room(t.errors.norm(dim=2), bound, rounding(t))


def drift(t: Round) -> Check:
    """For k = 1 to E, one more than is printed: the induction goes that far."""
    k = torch.arange(1, t.at.steps + 1, dtype=t.x.dtype)
    return least_room(t.drift[:, 1:], (4 * t.at.beta * k * t.g.norm()).expand(len(t.v), -1), float(t.x.norm()))


def error(t: Round) -> Check:
    """The largest ‖e_k‖ against 2βLE ‖∇g‖."""
    L, E = t.at.smoothness, t.at.steps
    return Check(float(t.errors.norm(dim=2).max()), float(2 * t.at.beta * L * E * t.g.norm()), rounding(t))


def summed_gradients(t: Round) -> Check:
    """(I): ‖Σ_k ρ̄_k‖."""
    L, E, g = t.at.smoothness, t.at.steps, float(t.g.norm())
    return Check(float(t.mean(t.rho).sum(0).norm()), (4 * L * t.at.beta * E**2 + E) * g, E * rounding(t))


def summed_gradients_squared(t: Round) -> Check:
    """(II): its square."""
    L, E, beta = t.at.smoothness, t.at.steps, t.at.beta
    return Check(
        square(t.mean(t.rho).sum(0)), (32 * beta**2 * L**2 * E**4 + 2 * E**2) * square(t.g), E**2 * rounding(t)
    )


def summed_errors(t: Round) -> Check:
    """‖Σ_k ē_k‖ against 2βLE² ‖∇g‖."""
    L, E = t.at.smoothness, t.at.steps
    return Check(float(t.mean(t.errors).sum(0).norm()), float(2 * t.at.beta * L * E**2 * t.g.norm()), E * rounding(t))
