"""Counter-examples: printed statements and proof steps that are false, each with a small problem that shows it.

Each is a run of Algorithm 1 that meets the assumptions. docs/paper-notes.md works them out by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

import torch

from cflag.theory.checks import Check
from cflag.theory.problems import Problem
from cflag.theory.round import square
from cflag.theory.trajectory import Plan, follow

Rows = Sequence[Sequence[float]]
"""Components ½ a (x − c)², as pairs a, c."""


@dataclass(frozen=True)
class CounterExample:
    """A printed statement, why it fails, the statement that holds instead, and both sides on the small problem."""

    name: str
    printed: str
    why: str
    instead: str
    sides: Callable[[], Check]


def parabolas(past: Sequence[Rows], current: Sequence[Rows], start: float) -> Problem:
    """Return a problem on the line; one list of rows for each client."""
    old, new = (tuple(torch.tensor(rows, dtype=torch.float64) for rows in half) for half in (past, current))
    return Problem("quadratic", old, new, torch.tensor([start], dtype=torch.float64))


def _lemma1() -> Check:
    """f = x²/2, g = (x − 10)²/2, E = 1, from the minimum of f: the sums from k = 1 are empty, but the step is not."""
    alpha = 0.5
    (t,) = follow(parabolas([[[1, 0]]], [[[1, 10]]], 0.0), Plan(1, alpha, 1 / 60, steps=1))
    return Check(square(t.f), t.progress / (alpha * (1 - alpha / 2)))


def _averaged_bias() -> Check:
    """f_1 = (x − 1)², f_2 = (x + 1)² cancel at 0, but client 1 remembers the steeper half of its past: b = −1/2."""
    problem = parabolas([[[1, 1], [3, 1]], [[2, -1]]], [[[1, 0]], [[1, 0]]], 0.0)
    (t,) = follow(problem, Plan(1, 0.1, 1 / 60, steps=1), keep=[[1], [0]])
    return Check(square(t.bias), square(t.f))


STEEP, FLAT = 1.98, 0.02


def _theorem2() -> Check:
    """Two components with one minimum, the memory holds one of them; g = 0, so Γ = 0 and only the bias acts.

    ∇f = x and b = ±0.98 x, so m = 0.9604 < 1. A memory of the flat one leaves x where it was, and it does so in half of
    all cases: E‖∇f‖² stays near 1/2 while the right side falls as 1/T.
    """
    problem = parabolas([[[FLAT, 0], [STEEP, 0]]], [[[0, 0]]], 1.0)
    m, T = (STEEP - 1) ** 2, 20
    alpha = 1 / (STEEP * (1 + m))
    runs = [follow(problem, Plan(T, alpha, 0.01, steps=1), keep=[[row]]) for row in (0, 1)]
    least = min(fmean(square(t.f) for t in rounds) for rounds in zip(*runs, strict=True))
    gain = fmean(sum(t.progress + t.gamma() for t in run) for run in runs)
    return Check(least, 2 * STEEP * (1 + m) / T * gain)


def _lemma3() -> Check:
    """f = x²/2, g = (x − 1)²/2, E = 4: the rounds end where m + 4 g = 0, at 0.8, and h̃ wants 0.5."""
    T = 150
    seen = follow(parabolas([[[1, 0]]], [[[1, 1]]], 1.0), Plan(T, 1 / 120, 1 / 120, steps=4))
    fall = seen[0].joint_loss(seen[0].x) - seen[-1].joint_loss(seen[-1].after)
    return Check(min(square(t.mean(t.each_h)) for t in seen), 60 / T * fall)


def _forgetting(q: float, q_over_z: float) -> Check:
    """f = x²/2, g = (x − 1)²/2 from x = 0.2: the memory step makes h̃ grow, where the proof has it fall."""
    (t,) = follow(parabolas([[[1, 0]]], [[[1, 1]]], 0.2), Plan(1, 0.5, 1 / 60, steps=1))
    fall, omega = t.joint_loss(t.x) - t.joint_loss(t.after), 0.25  # ∇g − ∇h̃ = −1/2 everywhere
    return Check(t.gamma(), q_over_z * fall + q * omega)


def _lemma4() -> Check:
    beta, r, rest = 1 / 60, 0.25, 0.5  # r = ‖m‖/‖∇g‖ = 0.2/0.8; rest = 1 − Lα
    q = 72 * beta**4 + 4 * beta**2 + 2 * r * beta * rest * (6 * beta + 1)
    return _forgetting(q, q / (beta * (1 - 80 * beta**3 - 10 * beta)))


def _constant_steps() -> Check:
    r, rest = 0.25, 0.5
    return _forgetting(11 / 60 + 2 * r / 15 * rest, 16 * r * rest + 22)


def _sign() -> Check:
    """f = g = x²/2, α = 1.9/L, which α < 2/(L(1+m)) allows as m = 0: 1 − Lα turns negative, and Q with it."""
    beta = 1 / 12
    (t,) = follow(parabolas([[[1, 0]]], [[[1, 0]]], 1.0), Plan(1, 1.9, beta, steps=1))
    return Check(t.gamma(), (36 * beta**4 + 2 * beta**2 - 0.9 * beta * (6 * beta + 1)) * square(t.g))


def _lemma7() -> Check:
    """Two clients whose steps are nearly at right angles, α = β = 2/3: plain rates are already the best."""
    alpha = 2 / 3
    forms = [1.0, 0.0, 0.0, 1.0]
    centres = ([(-1, -1), (-1, -1)], [(-1, 0), (-0.01, -1)])
    past, current = (
        tuple(torch.tensor([[*forms, *centre]], dtype=torch.float64) for centre in half) for half in centres
    )
    problem = Problem("quadratic", past, current, torch.zeros(2, dtype=torch.float64))
    (t,) = follow(problem, Plan(1, alpha, alpha, steps=1, adapt="worst"))
    return Check(t.gamma_adapted(), t.gamma())


def _theorem5() -> Check:
    """The clients of the averaged bias, with g = ½(x − 10)²: a memory of the steeper half draws x to 0.2, not 0.

    So E‖∇f‖² stays above 0.08 however long it runs; on the right is what 1/√T would leave after 160 rounds, not 20.
    """
    problem = parabolas([[[1, 1], [3, 1]], [[2, -1]]], [[[1, 10]], [[1, 10]]], 1.0)

    def least(rounds: int) -> float:
        plan = Plan(rounds, 1 / 6, 0.01 / sqrt(rounds), steps=1)
        runs = [follow(problem, plan, keep=[[row], [0]]) for row in (0, 1)]
        return min(fmean(square(t.f) for t in both) for both in zip(*runs, strict=True))

    return Check(least(160), least(20) / sqrt(160 / 20))


COUNTER_EXAMPLES = (
    CounterExample("Lemma 1, sums from k = 1", "‖∇f‖² ≤ (f(x_t) − f(x_{t+1}) + B + Γ) / (α[1 − (L/2)α(1+m)])",
            "the first local step is left out of B and Γ but taken by the algorithm", "Lemma 1", _lemma1),
    CounterExample("S. averaged bias exists", "Assumption 2 gives an m with ‖b‖² ≤ m‖∇f‖²",
            "clients' gradients may cancel where their biases do not", "S. averaged bias", _averaged_bias),
    CounterExample("Theorem 2", "min E‖∇f‖² ≤ 2L(1+m)/T (F + Σ E[Γ])",
            "E[B(t)] = 0 needs x_t independent of the memory, which it is at t = 0 only", "Theorem 2, corrected",
            _theorem2),
    CounterExample("Lemma 3", "min‖∇h̃‖² ≤ 60L/T (h̃(x_0) − h̃(x_T))",
            "the proof takes local steps on M ∪ C; Algorithm 1 takes them on C", "Lemma 3, corrected", _lemma3),
    CounterExample("Theorem 5", "min E‖∇f‖² = O(1/√T)", "needs m < 1 for the averaged bias, which nothing gives",
            "Theorem 5, corrected", _theorem5),
    CounterExample("Lemma 7, for Γ itself", "Γ with adapted rates ≤ Γ",
            "what falls is an upper bound of Γ, client by client", "Lemma 7, for Γ", _lemma7),
    CounterExample("proof of Lemma 4, h̃", "Σ Γ ≤ Q/Z (h̃(x_0) − h̃(x_T)) + QTω²", "rests on the proof of Lemma 3",
            "Lemma 4, corrected", _lemma4),
    CounterExample("proof of constant β", "mean Γ ≤ (16r(1−Lα) + 22)/T Δh̃ + (...) ω²", "rests on the proof of Lemma 3",
            "S. constant β, corrected", _constant_steps),
    CounterExample("proof of Lemma 4, 1 − Lα", "Γ ≤ ½Q_t ‖∇g‖² for all α < 2/(L(1+m))",
            "with α > 1/L the factor 1 − Lα is negative where its size is meant", "Lemma 4, one round", _sign),
)  # fmt: skip
