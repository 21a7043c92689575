"""The laboratory: run C-FLAG on each problem with several plans and check every statement on the trajectories."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log, sqrt
from multiprocessing import get_context
from typing import Any

from cflag.errors import UserError
from cflag.process import cores, end_with_parent, one_thread, use_one_thread
from cflag.theory.balanced import balanced_plans, class_shares, follow_balanced
from cflag.theory.checks import Check
from cflag.theory.convergence import rate_bound
from cflag.theory.counterexamples import COUNTER_EXAMPLES, CounterExample
from cflag.theory.problems import Problem, check_name, make_problem
from cflag.theory.round import Trajectory, square
from cflag.theory.shared import follow_shared, shared_plans
from cflag.theory.statements import (
    BALANCED_STATEMENTS,
    MINIMISER,
    SHARED_STATEMENTS,
    STATEMENTS,
    StatementResult,
    judge,
    total,
)
from cflag.theory.trajectory import Plan, follow

STEPS = 5
"""E in all runs."""

ROUNDS = 15
"""Rounds of the runs that statements are checked on."""

HORIZONS = (10, 20, 40, 80)
"""The T for which the rate of convergence is measured."""

Tick = Callable[[int, str], None]
"""Progress callback: how many rounds were done, and on which problem."""


@dataclass(frozen=True)
class RateStudy:
    """min_t ‖∇f‖² against T, with constant β and with β = c/√T, and Theorem 5's right side for the latter."""

    horizons: tuple[int, ...]
    calls: tuple[int, ...]
    """Component gradients that all clients together evaluate in a run of T rounds."""
    constant: tuple[float, ...]
    diminishing: tuple[float, ...]
    bound: tuple[float, ...]

    def slope(self, values: Sequence[float]) -> float:
        """Return the least-squares slope of log(values) over log(T)."""
        xs, ys = [log(T) for T in self.horizons], [log(max(v, 1e-300)) for v in values]
        mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
        return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum(
            (x - mean_x) ** 2 for x in xs
        )


@dataclass(frozen=True)
class Investigation:
    """All runs of one problem and what the statements came to on them."""

    problem: Problem
    runs: Mapping[str, Trajectory]
    rates: RateStudy
    results: tuple[StatementResult, ...]
    with_estimate: tuple[StatementResult, ...]
    """The same on the run with `smoothness = "auto"`, with its estimate as L. Failures here refute nothing."""

    @property
    def estimated(self) -> float:
        """The L that `smoothness = "auto"` ended with."""
        return self.runs["auto"][-1].at.smoothness


def plans(L: float, rounds: int, seed: int) -> dict[str, Plan]:
    """Return the runs that together meet every statement's assumptions."""
    largest = 1 / (12 * L * STEPS)
    common: dict[str, Any] = {"steps": STEPS, "seed": seed}
    return {
        "plain": Plan(rounds, 1 / (2 * L), largest, **common),
        "large": Plan(rounds, 1.5 / L, 1 / (4 * L * STEPS), **common),
        "equal": Plan(rounds, 1 / (30 * L * STEPS), 1 / (30 * L * STEPS), **common),
        "constant": Plan(rounds, 1 / (2 * L), 1 / (60 * L * STEPS), **common),
        "fixed": Plan(rounds, largest, largest, **common),
        "average": Plan(rounds, largest, largest, adapt="average", **common),
        "worst": Plan(rounds, largest, largest, adapt="worst", **common),
        "server": Plan(rounds, largest, largest, adapt="server", **common),
        "auto": Plan(rounds, 1.0, 1e9, smoothness="auto", **common),
    }


def study_plans(problem: Problem, horizons: Sequence[int], seed: int) -> list[Plan]:
    """Return the runs behind the rate: one for each T with β = c/√T, and one with the largest constant β.

    The memory holds all the past: with a biased one, ‖∇f‖ need not vanish, however long the run.
    """
    L, whole = problem.smoothness, max(map(len, problem.past))
    largest = 1 / (12 * L * STEPS)
    c = largest * sqrt(min(horizons))
    betas = [*(c / sqrt(T) for T in horizons), largest]
    lengths = [*horizons, max(horizons)]
    return [Plan(T, 1 / (2 * L), beta, STEPS, whole, seed) for T, beta in zip(lengths, betas, strict=True)]


def investigate(
    name: str, seed: int = 0, rounds: int = ROUNDS, horizons: Sequence[int] = HORIZONS, tick: Tick = lambda *_: None
) -> Investigation:
    """Run a problem with every plan and check all statements."""

    def run(plan: Plan) -> Trajectory:
        seen = follow(problem, plan)
        tick(plan.rounds, name)
        return seen

    with one_thread():
        problem = make_problem(name, seed)
        runs = {label: run(plan) for label, plan in plans(problem.smoothness, rounds, seed).items()}
        *diminishing, constant = [run(plan) for plan in study_plans(problem, horizons, seed)]
        rates = RateStudy(
            tuple(horizons),
            tuple(sum(t.calls for t in seen) for seen in diminishing),
            tuple(_least(constant[:T]) for T in horizons),
            tuple(_least(seen) for seen in diminishing),
            tuple(rate_bound(seen) for seen in diminishing),
        )
        known = [seen for label, seen in runs.items() if label != "auto"]
        exchanges = [follow_shared(problem, plan) for plan in shared_plans(rounds, seed)]
        balanced = [follow_balanced(problem, plan) for plan in balanced_plans(rounds, seed)]
        results = (
            *(judge(statement, [*known, *diminishing]) for statement in STATEMENTS),
            *(judge(statement, exchanges) for statement in SHARED_STATEMENTS),
            *(judge(statement, balanced) for statement in BALANCED_STATEMENTS),
            judge(MINIMISER, [class_shares(seed)]),
        )
        with_estimate = tuple(judge(statement, [runs["auto"]]) for statement in STATEMENTS)
    return Investigation(problem, runs, rates, results, with_estimate)


def rounds_of(rounds: int, horizons: Iterable[int]) -> int:
    """Return how many rounds an investigation runs in total."""
    horizons = set(horizons)
    return len(plans(1.0, rounds, 0)) * rounds + sum(horizons) + max(horizons)


def _least(seen: Trajectory) -> float:
    return min(square(t.f) for t in seen)


@dataclass(frozen=True)
class Report:
    """The laboratory's report over some problems."""

    seed: int
    investigations: tuple[Investigation, ...]
    refuted: tuple[tuple[CounterExample, Check], ...]

    @property
    def results(self) -> list[StatementResult]:
        """The results over all problems."""
        each = zip(*(inv.results for inv in self.investigations), strict=True)
        return [total(list(results)) for results in each]

    def broken(self) -> list[str]:
        """Return what went wrong: statements that fail, and counter-examples that refute nothing."""
        failed = [r.statement.name for r in self.results if r.failures]
        return failed + [f"the counter-example to '{f.name}'" for f, check in self.refuted if check.holds]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "seed": self.seed,
            "statements": [_result(r) for r in self.results],
            "counter_examples": [
                {"name": f.name, "printed": f.printed, "why": f.why, "instead": f.instead,
                 "left": c.left, "right": c.right, "holds": c.holds}
                for f, c in self.refuted
            ],
            "problems": [_problem(inv) for inv in self.investigations],
        }  # fmt: skip


def _result(r: StatementResult) -> dict[str, Any]:
    worst = r.worst if isfinite(r.worst) else None
    return {"name": r.statement.name, "claim": r.statement.claim, "assumes": r.statement.assumes,
            "instances": r.instances, "checked": r.checked, "worst_ratio": worst, "verdict": r.verdict,
            "failures": [{"left": c.left, "right": c.right} for c in r.failures[:10]]}  # fmt: skip


def _problem(inv: Investigation) -> dict[str, Any]:
    plain, rates = inv.runs["plain"], inv.rates
    return {
        "name": inv.problem.name,
        "smoothness": inv.problem.smoothness,
        "smoothness_estimated": inv.estimated,
        "fail_with_estimate": [r.statement.name for r in inv.with_estimate if r.failures],
        "heterogeneity": inv.problem.heterogeneity(plain[0].x),
        "m": max(t.m_ratio for t in plain),
        "r": max(t.r_ratio for t in plain),
        "each_m": [max(values) for values in zip(*(t.each_m_ratio for t in plain), strict=True)],
        "each_r": [max(values) for values in zip(*(t.each_r_ratio for t in plain), strict=True)],
        "omega2": max(t.omega2 for t in plain),
        "rates": {"T": rates.horizons, "calls": rates.calls, "constant": rates.constant,
                  "diminishing": rates.diminishing, "bound": rates.bound, "slope_constant": rates.slope(rates.constant),
                  "slope_diminishing": rates.slope(rates.diminishing)},
        "statements": [_result(r) for r in inv.results],
    }  # fmt: skip


def report(
    names: Sequence[str],
    seed: int = 0,
    rounds: int = ROUNDS,
    horizons: Sequence[int] = HORIZONS,
    tick: Tick = lambda *_: None,
) -> Report:
    """Investigate problems, several in parallel, and run the counter-examples."""
    horizons = sorted(set(horizons))
    if rounds < 2 or len(horizons) < 2 or min(horizons) < 2:
        raise UserError("the laboratory needs at least 2 rounds, and two different horizons of 2 rounds or more")
    for name in names:
        check_name(name)
    found: dict[str, Investigation] = {}
    if len(names) == 1:
        found[names[0]] = investigate(names[0], seed, rounds, horizons, tick)
    else:
        work = [(name, seed, rounds, horizons) for name in names]
        with get_context("fork").Pool(min(cores(), len(names)), _begin_worker) as pool:
            for result in pool.imap_unordered(_investigated, work):
                investigation: Investigation = pickle.loads(result)
                found[investigation.problem.name] = investigation
                tick(rounds_of(rounds, horizons), investigation.problem.name)
    refuted = tuple((example, example.sides()) for example in COUNTER_EXAMPLES)
    return Report(seed, tuple(found[name] for name in names), refuted)


def _investigated(work: tuple[str, int, int, Sequence[int]]) -> bytes:
    """Investigate in a worker; return bytes, because torch would otherwise pass every tensor as a file descriptor."""
    return pickle.dumps(investigate(*work))


def _begin_worker() -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    use_one_thread()  # a forked process must not use the parent's thread pool
