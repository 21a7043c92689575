"""The laboratory: its problems are what they say, the statements hold, and a broken algorithm does not get past it."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
from itertools import combinations, pairwise
from math import sqrt
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cflag import registry
from cflag.cli import main
from cflag.engines.engine import Total
from cflag.learning.estimators import Delayed
from cflag.learning.rates import RateRule
from cflag.learning.smoothness import POWER, from_shares, share_of
from cflag.methods.cflag import CFlag
from cflag.theory.checks import Check
from cflag.theory.counterexamples import COUNTER_EXAMPLES, parabolas
from cflag.theory.lab import RateStudy, investigate, plans
from cflag.theory.problems import FAMILIES, Problem, Shape, make_problem
from cflag.theory.round import Trajectory, square
from cflag.theory.statements import STATEMENTS, judge, statement_named
from cflag.theory.trajectory import Plan, follow

SMALL = Shape(clients=2, past=4, current=3, features=3)


def failing(trajectories: list[Trajectory]) -> dict[str, Check]:
    """Return the statements that fail, with their first failure."""
    results = [judge(statement, trajectories) for statement in STATEMENTS]
    return {r.statement.name: r.failures[0] for r in results if r.failures}


# Problems -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), reach=st.floats(1e-3, 30.0))
def test_no_component_is_less_smooth_than_it_says(name: str, seed: int, reach: float) -> None:
    problem = make_problem(name, seed % 7, SMALL)
    generator = torch.Generator().manual_seed(seed)
    x = reach * torch.randn(problem.start.shape, generator=generator, dtype=torch.float64)
    y = x + reach * torch.randn(problem.start.shape, generator=generator, dtype=torch.float64)
    for rows in (*problem.past, *problem.current):
        change = problem.each_gradient(x[None], rows)[0] - problem.each_gradient(y[None], rows)[0]
        bound = problem.family.smoothness(rows) * (x - y).norm()
        assert bool((change.norm(dim=1) <= bound * (1 + 1e-9)).all())
        assert float(problem.family.smoothness(rows).max()) <= problem.smoothness


def test_bounds_of_smoothness_are_no_wider_than_they_must_be() -> None:
    """Second derivatives at the points where calculus puts their largest value, by central differences."""
    h = 1e-4

    def curvature(problem: Problem, at: float) -> float:
        points = torch.tensor([[at - h], [at + h]], dtype=torch.float64)
        below, above = problem.gradient(points, problem.current[0])
        return float(above - below) / (2 * h)

    def line(name: str, row: list[float]) -> Problem:
        rows = torch.tensor([row], dtype=torch.float64)
        return Problem(name, (rows,), (rows,), torch.zeros(1, dtype=torch.float64))

    steepest_sigmoid = -torch.tensor((3 + sqrt(3)) / (3 - sqrt(3))).log().item()  # where σ'' is largest
    for name, row, at in (("quadratic", [3.0, 0.5], 2.0), ("logistic", [2.0, 1.0], 0.0), ("nonconvex", [2.0, 1.0], 0.0),
                          ("sigmoid", [1.0, 1.0], steepest_sigmoid)):  # fmt: skip
        problem = line(name, row)
        assert abs(curvature(problem, at)) == pytest.approx(problem.smoothness, rel=1e-4), name


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_those_of_the_losses(name: str) -> None:
    problem, h = make_problem(name, 3, SMALL), 1e-6
    rows, x = problem.current[0], problem.start
    for k in range(len(x)):
        step = torch.zeros_like(x)
        step[k] = h
        slope = (problem.value(x + step, rows) - problem.value(x - step, rows)) / (2 * h)
        assert float(problem.gradient(x, rows)[k]) == pytest.approx(slope, abs=1e-7)
    points = torch.stack([x, -x])
    each = problem.each_gradient(points, rows)
    for k, point in enumerate(points):
        for j in range(len(rows)):
            assert torch.allclose(each[k, j], problem.gradient(point, rows[j : j + 1]), atol=1e-12)


def test_quadratics_have_the_spectrum_that_was_chosen() -> None:
    problem = make_problem("quadratic", 1, Shape(features=5, spectrum=(0.5, 3.0)))
    forms = problem.past[0][:, :25].view(-1, 5, 5)
    expected = torch.linspace(0.5, 3.0, 5, dtype=torch.float64)
    for form in forms:
        assert torch.allclose(torch.linalg.eigvalsh(form), expected)
    assert problem.smoothness == pytest.approx(3.0)


def test_heterogeneity_is_the_spread_of_the_clients_gradients() -> None:
    problem = parabolas([[[1, 0]], [[1, 0]]], [[[1, 1]], [[1, -3]]], 0.0)  # ∇g_i(0) = −1 and 3, their mean 1
    assert problem.heterogeneity(problem.start) == pytest.approx(4.0)


# The trajectory -------------------------------------------------------------------------------------------------------


def test_a_round_done_by_hand() -> None:
    """f = x²/2, g the mean of (x − 1)²/2 and (x + 2)²; x = 1, α = 1/2, β = 1/10, E = 2, one client, L = 2.

    ∇g = ½ (0 + 6) = 3 at x = 1. The first step leads to 1 − 0.3 = 0.7. There one component is refreshed: the first to
    0.7 − 1 = −0.3 (v = 2.85) or the second to 2 (0.7 + 2) = 5.4 (v = 2.7).
    """
    problem = parabolas([[[1, 0]]], [[[1, 1], [2, -2]]], 1.0)
    (t,) = follow(problem, Plan(1, 0.5, 0.1, steps=2))
    second = float(t.v[0, 1])
    assert second == pytest.approx(2.85) or second == pytest.approx(2.7)
    assert t.points[0].flatten().tolist() == pytest.approx([1.0, 0.7, 0.7 - 0.1 * second])
    a = 3 + second
    assert float(t.after) == pytest.approx(1 - 0.5 * 1 - 0.1 * a)
    assert t.gamma() == pytest.approx(2 / 2 * 0.01 * a**2 - 0.1 * (1 - 2 * 0.5) * a)
    assert float(t.errors[0, 1]) == pytest.approx(second - 0.5 * (-0.3 + 5.4))
    assert t.calls == 2 + 1 + 1
    assert t.progress == pytest.approx(0.5 - float(t.after) ** 2 / 2)


def test_every_memory_is_equally_likely() -> None:
    """A uniform sample of 2 out of 4: six pairs, over 300 seeds; chi-square with 5 degrees of freedom, 99.99 %."""
    problem = parabolas([[[1, c] for c in range(4)]], [[[1, 0]]], 0.0)
    counts = dict.fromkeys(combinations(range(4), 2), 0)
    for seed in range(300):
        (t,) = follow(problem, Plan(1, 0.1, 0.01, steps=1, memory=2, seed=seed))
        counts[tuple(sorted(int(c) for c in t.at.memory[0][:, 1]))] += 1  # type: ignore[index]
    assert sum((n - 50) ** 2 / 50 for n in counts.values()) < 25.7


# Statements -----------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(list(FAMILIES)),
    seed=st.integers(0, 10**6),
    shape=st.builds(
        Shape,
        clients=st.integers(1, 4),
        past=st.integers(2, 5),
        current=st.integers(1, 5),
        features=st.integers(1, 4),
        spread=st.floats(0, 3),
    ),
    steps=st.integers(1, 7),
    batch=st.integers(1, 4),
    memory=st.integers(1, 5),
    run=st.sampled_from([name for name in plans(1.0, 4, 0) if name != "auto"]),  # estimates are no guarantee
    alpha=st.floats(0.1, 1.0),
)
@example(  # on its way the memory gradient vanishes
    name="quadratic", seed=0, shape=Shape(1, 2, 1, 1, 0.0), steps=1, batch=1, memory=1, run="average", alpha=1.0
)
def test_no_statement_is_violated(
    name: str, seed: int, shape: Shape, steps: int, batch: int, memory: int, run: str, alpha: float
) -> None:
    problem = make_problem(name, seed, shape)
    plan = plans(problem.smoothness, 4, seed)[run]
    changed: dict[str, Any] = {**vars(plan), "steps": steps, "batch": batch, "memory": memory}
    changed["beta"] = plan.beta * 5 / steps  # β was made for five steps
    if run in ("plain", "large", "constant"):  # where nothing ties it to β
        changed["alpha"] = 2 * alpha * plan.alpha
    else:
        changed["alpha"] = plan.alpha * 5 / steps
    if run in ("average", "worst", "server"):  # the transference rule needs Lα < 1
        changed["alpha"] = min(changed["alpha"], 0.9 / problem.smoothness)
    assert failing([follow(problem, Plan(**changed))]) == {}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_statement_is_checked_on_every_problem(name: str) -> None:
    """A statement whose assumptions are never met would hold whatever the algorithm did."""
    found = investigate(name, seed=1, rounds=3, horizons=(2, 4))
    assert {r.statement.name for r in found.results if not r.checked} <= {"Lemma 6"}  # interference may not happen
    assert not any(r.failures for r in found.results)


def test_a_check_fails_when_the_left_side_is_larger() -> None:
    assert Check(1.0, 1.0).holds
    assert not Check(1.0 + 1e-6, 1.0).holds
    assert not Check(1e-6, 0.0).holds
    assert Check(1e-14, 0.0, scale=1.0).holds


def test_assumptions_decide_where_a_statement_is_claimed() -> None:
    problem = make_problem("quadratic", 2, SMALL)
    L = problem.smoothness
    seen = [follow(problem, Plan(2, 0.5 / L, 1 / (11 * L * 5)))]  # between 1/(12LE) and 1/(4LE)
    assert judge(statement_named("S. client drift"), seen).checked == 2
    assert judge(statement_named("S. gradient error"), seen).checked == 0
    steep = [follow(problem, Plan(2, 2.1 / L, 1 / (12 * L * 5)))]
    assert judge(statement_named("Lemma 1"), steep).checked == 0


# A broken algorithm ---------------------------------------------------------------------------------------------------

MUTANTS = {
    "wrong sign of the correction": (
        CFlag, "local_steps", "(g - estimator.recall())", "(estimator.recall() - g)",
        {"Eq. (4), local step", "S. client drift"},
    ),
    "stale table": (
        Delayed, "at_start", "return self.components.table()",
        "return TABLES.setdefault(self.components.client.number, self.components.table())",
        {"Eq. (5), first v", "S. gradient error"},
    ),
    "a delayed gradient that is never refreshed": (
        Delayed, "path", "alpha=self.components.weights[j]", "alpha=0", {"Eq. (5), later v"},
    ),
    "a refresh with the wrong sign": (
        Delayed, "path", "alpha=self.components.weights[j]", "alpha=-self.components.weights[j]", {"Eq. (5), later v"},
    ),
    "a_i scaled by β": (
        CFlag, "local_steps", "            a += v  #", "            a += beta * v  #", {"Line 12, server step"},
    ),
    "weights not normalised": (
        Total, "add", "reply.samples / self.context.samples", "2 * reply.samples / self.context.samples",
        {"Eq. (4), local step", "Line 12, server step"},
    ),
    "memory gradient of one client only": (
        CFlag, "memories", "if drawn is None else", "if drawn is None or client.number else", {"Line 12, server step"},
    ),
}  # fmt: skip


RATES = {
    "a rate between the best and the plain one": ("beta = best or self.beta", "beta = (best + self.beta) / 2", "worst"),
    "a correction of α that is too small": (
        "self.beta * _ratio(overlap.inner", "0.1 * self.beta * _ratio(overlap.inner", "average",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RATES)
def test_the_laboratory_notices_wrong_rates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong, adapt = RATES[name]
    problem = make_problem("quadratic", 4, Shape(spread=5.0))
    L = problem.smoothness
    plan = Plan(4, 1 / (12 * L * 5), 1 / (12 * L * 5), adapt=adapt)  # type: ignore[arg-type]
    assert failing([follow(problem, plan)]) == {}
    mutant = mutated(sys.modules[RateRule.__module__], right, wrong, monkeypatch)
    monkeypatch.setattr(RateRule, "adapt", vars(mutant.RateRule)["adapt"])
    assert "Table 1, adaptive rates" in failing([follow(problem, plan)])


def mutated(original: ModuleType, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module with one place of its source changed."""
    source = inspect.getsource(original)
    assert source.count(right) == 1
    mutant = ModuleType("mutant")
    monkeypatch.setitem(sys.modules, "mutant", mutant)
    with monkeypatch.context() as patch:
        patch.setattr(registry, "register", lambda *_: lambda part: part)  # the mutant is no second method
        exec(compile(source.replace(right, wrong), "mutant", "exec"), vars(mutant))
    return mutant


@pytest.mark.parametrize("name", MUTANTS)
def test_the_laboratory_notices_a_careless_edit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, function, right, wrong, noticed_by = MUTANTS[name]
    mutant = mutated(sys.modules[owner.__module__], right, wrong, monkeypatch)
    setattr(mutant, "TABLES", {})  # noqa: B010 (what the stale table is kept in)
    problem = make_problem("quadratic", 4, Shape(spread=5.0))  # uneven clients, so that a wrong correction tells
    L = problem.smoothness
    plan = Plan(4, 1 / (2 * L), 1 / (12 * L * 5))
    assert failing([follow(problem, plan)]) == {}
    monkeypatch.setattr(owner, function, vars(getattr(mutant, owner.__name__))[function])
    assert noticed_by <= set(failing([follow(problem, plan)]))


# Counter-examples -----------------------------------------------------------------------------------------------------

BETA_2 = 1.01 / 1.0001 / 3
GAMMA = 0.5 * (0.8 / 60) ** 2 + 0.08 / 60
NEXT = 0.1 + 0.8 / 60
FALL = (0.2**2 + 0.8**2 - NEXT**2 - (1 - NEXT) ** 2) / 4
Q = 72 / 60**4 + 4 / 3600 + 2 * 0.25 / 60 * 0.5 * (6 / 60 + 1)
BY_HAND: dict[str, tuple[float | None, float | None]] = {
    # x_1 = 10/60: f grows by 1/72, and 1/72 / (1/2 · 3/4) = 1/27.
    "Lemma 1, sums from k = 1": (0.0, -1 / 27),
    # b_1 = (3 − 2)(0 − 1) = −1, half of it in the mean; ∇f = ½ (2 (x − 1) + 2 (x + 1)) = 0 at 0.
    "S. averaged bias exists": (0.25, 0.0),
    # x_{t+1} = (1 − αa) x_t with a = 0.02 or 1.98, α = 1/(1.98 · 1.9604); T = 20.
    "Theorem 2": (
        ((1 - 0.02 / 3.881592) ** 38 + (1 - 1.98 / 3.881592) ** 38) / 2,
        2 * 3.881592 / 20 * (0.5 - ((1 - 0.02 / 3.881592) ** 40 + (1 - 1.98 / 3.881592) ** 40) / 4),
    ),
    # The clients' pull on x is −β (x − 10): past t = 0 the steep memory leaves ∇f = 2x above 0.4 in half of all cases.
    "Theorem 5": (None, None),
    # a = ½ (1.01, 1): β_1 = ⅓, β_2 = ⅓ · 1.01/1.0001; Γ = ½ ‖½ (β_1 a_1 + β_2 a_2)‖² − ⅙ (β_1 + 1.01 β_2).
    "Lemma 7, for Γ itself": (
        ((1 / 3 + 0.01 * BETA_2) ** 2 + BETA_2**2) / 8 - (1 / 3 + 1.01 * BETA_2) / 6,
        2 / 9 * (1.01**2 + 1) / 4 - 2 / 9 * 2.01 / 2,
    ),
    # x_{t+1} is linear in x_t; the end is near 0.8, so min ‖∇h̃‖² is above 0.3² − and h̃ falls by at most 0.08.
    "Lemma 3": (None, None),
    # x = 0.2, m = 0.2, ∇g = −0.8, a = −0.8: Γ = ½ (0.8/60)² + ½ · 0.16/60; x_1 = 0.2 − 0.1 + 0.8/60.
    "proof of Lemma 4, h̃": (GAMMA, Q / (1 / 60 * (1 - 80 / 60**3 - 10 / 60)) * FALL + Q / 4),
    "proof of constant β": (GAMMA, (16 * 0.25 * 0.5 + 22) * FALL + (11 / 60 + 2 * 0.25 / 15 * 0.5) / 4),
    # Γ = ½ β² + 0.9 β with β = 1/12.
    "proof of Lemma 4, 1 − Lα": (0.5 / 144 + 0.9 / 12, 36 / 12**4 + 2 / 144 - 0.9 / 12 * 1.5),
}


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=lambda example: example.name)
def test_a_printed_statement_is_refuted(example: Any) -> None:
    check = example.sides()
    assert not check.holds
    assert statement_named(example.instead)
    left, right = BY_HAND[example.name]
    if left is not None:
        assert check.left == pytest.approx(left)
    if right is not None:
        assert check.right == pytest.approx(right)


def test_a_biased_memory_keeps_the_past_gradient_from_vanishing() -> None:
    """The counter-example to Theorem 5: with the steep half remembered, x never gets below 0.2, where m vanishes."""
    problem = parabolas([[[1, 1], [3, 1]], [[2, -1]]], [[[1, 10]], [[1, 10]]], 1.0)
    seen = follow(problem, Plan(40, 1 / 6, 0.001, steps=1), keep=[[1], [0]])
    assert all(max(t.each_m_ratio) < 1 for t in seen)  # Assumption 2
    assert min(float(t.f) for t in seen) >= 0.4


def test_the_summed_gradients_need_a_small_rate() -> None:
    """f = g = ½x², β = 100, E = 3 from 1: x is 1, −99, 9801, their sum 9703, and the bound without β's limit 3603."""
    (t,) = follow(parabolas([[[1, 0]]], [[[1, 0]]], 1.0), Plan(1, 0.1, 100.0, steps=3))
    assert float(t.mean(t.rho).sum()) == pytest.approx(9703)
    assert judge(statement_named("S. summed gradients I"), [[t]]).checked == 0


def test_algorithm_1_ends_where_its_own_potential_is_flat() -> None:
    """The counter-example to Lemma 3: f = x²/2, g = (x − 1)²/2, α = β, E = 4 end near m + 4 g = 0, at 0.8."""
    seen = follow(parabolas([[[1, 0]]], [[[1, 1]]], 1.0), Plan(150, 1 / 120, 1 / 120, steps=4))
    assert float(seen[-1].after) == pytest.approx(0.8, abs=0.01)
    assert square(seen[-1].potential_gradient) < 1e-2 * square(seen[0].potential_gradient)


# Rates without guessing L ---------------------------------------------------------------------------------------------


@given(
    values=st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=100),
    parts=st.lists(st.integers(1, 1000), min_size=100, max_size=100),
)
def test_a_maximum_can_be_had_as_a_mean(values: list[float], parts: list[int]) -> None:
    weights = [part / sum(parts[: len(values)]) for part in parts[: len(values)]]
    pairs = list(zip(values, weights, strict=True))
    most = from_shares(sum(p * share_of(v, p, "max") for v, p in pairs), "max")
    assert max(values) * (1 - 1e-9) <= most <= max(values) * len(values) ** (1 / POWER) * (1 + 1e-9)
    mean = from_shares(sum(p * share_of(v, p, "mean") for v, p in pairs), "mean")
    assert mean == pytest.approx(sum(p * v for v, p in pairs))


def test_the_estimate_of_a_parabolas_smoothness_is_exact_up_to_the_safeguard() -> None:
    """On a line a path sees a component's whole curvature: means 3 and 2, pasts 1 and 2; the safeguard doubles it."""
    problem = parabolas([[[1, 0]], [[2, 1]]], [[[5, 1], [1, 0]], [[2, 5]]], 4.0)
    seen = follow(problem, Plan(3, 1.0, 1e9, steps=4, smoothness="auto"))
    for t in seen:
        assert 6 <= t.at.smoothness <= 6 * 2 ** (1 / POWER) * (1 + 1e-6)
        assert t.at.alpha == pytest.approx(1 / (2 * t.at.smoothness))
        assert t.at.beta == pytest.approx(1 / (12 * t.at.smoothness * 4))
        assert t.alphas.tolist() == pytest.approx([t.at.alpha] * 2)
        assert t.betas.tolist() == pytest.approx([t.at.beta] * 2)


@pytest.mark.parametrize("name", FAMILIES)
def test_estimated_rates_stay_on_the_safe_side(name: str) -> None:
    """With L estimated, every statement holds with that L: it is at least what the path needs."""
    for seed in range(3):
        seen = follow(make_problem(name, seed), Plan(8, 1.0, 1e9, smoothness="auto"))
        assert failing([seen]) == {}
        estimates = [t.at.smoothness for t in seen]
        assert all(after >= 0.9 * before for before, after in pairwise(estimates))


def test_the_memory_is_probed_along_its_own_gradient() -> None:
    """f = 50 y², g = ½ x²: a step along ∇g says nothing about f, whose curvature is 100."""
    forms = ([0.0, 0, 0, 100], [1.0, 0, 0, 0])
    past, current = (torch.tensor([[*form, 0, 0]], dtype=torch.float64) for form in forms)
    problem = Problem("quadratic", (past,), (current,), torch.ones(2, dtype=torch.float64))
    seen = follow(problem, Plan(6, 1.0, 1e9, smoothness="auto"))
    assert seen[0].at.smoothness == pytest.approx(200)
    assert failing([seen]) == {}


def test_where_nothing_is_to_be_seen_the_smoothness_of_the_paper_stands_in() -> None:
    flat = torch.zeros(1, 2, dtype=torch.float64)
    problem = Problem("quadratic", (flat,), (flat,), torch.ones(1, dtype=torch.float64))
    assert follow(problem, Plan(2, 1.0, 1e9, smoothness="auto"))[-1].at.smoothness == 5.0


def test_auto_needs_the_gradient_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "digits", "--set", "cflag.smoothness=auto", "--set", "cflag.estimator=minibatch"]) == 2
    assert "cflag.smoothness = 'auto' reads the gradient table" in capsys.readouterr().err


# The command ----------------------------------------------------------------------------------------------------------


def test_slopes_are_fitted_on_log_log_paper() -> None:
    study = RateStudy((10, 20, 40), (1, 2, 4), (1.0, 1.0, 1.0), (4.0, 2.0, 1.0), (0.0, 0.0, 0.0))
    assert study.slope(study.constant) == pytest.approx(0.0)
    assert study.slope(study.diminishing) == pytest.approx(-1.0)


def test_the_command_writes_tables_figures_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, numbers = tmp_path / "figures", tmp_path / "theory.json"
    command = ["theory", "--problem", "sigmoid", "--rounds", "3,6", "--seed", "5", "--out", str(out)]
    assert main([*command, "--json", str(numbers)]) == 0
    text = capsys.readouterr().out
    assert "Theorem 2, corrected" in text
    assert "FAILS" not in text
    assert {path.name for path in out.glob("*.png")} == {"rate.png", "gamma.png", "bounds.png"}
    found = json.loads(numbers.read_text())
    assert [p["name"] for p in found["problems"]] == ["sigmoid"]
    assert all(s["verdict"] in ("holds", "not met") for s in found["statements"])
    assert all(not f["holds"] for f in found["counter_examples"])
    assert found["problems"][0]["rates"]["T"] == [3, 6]
    assert main(command) == 2
    assert "already exists" in capsys.readouterr().err


def test_a_false_statement_ends_the_command_with_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CFlag, "memory_direction", lambda self, m: 0.5 * m)  # half the memory step
    command = ["theory", "--problem", "logistic", "--rounds", "2,3", "--out", str(tmp_path / "figures")]
    assert main(command) == 1
    assert "not as it should be: Line 12, server step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problem", "cubic"], "unknown problem 'cubic'"),
        (["--rounds", "ten"], "--rounds: 'ten' is not a whole number"),
        (["--rounds", "10"], "two different horizons"),
    ],
)
def test_mistakes_are_one_clear_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["theory", *arguments, "--out", str(tmp_path / "x")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_nothing_is_left_running_when_the_command_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cflag", "theory", "--out", str(tmp_path / "x")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers: list[str] = []
    for _ in range(300):
        listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
        workers = listing.stdout.split()
        if workers:
            break
        time.sleep(0.1)
    process.kill()
    process.wait()
    assert workers
    for _ in range(300):
        alive = [pid for pid in workers if Path(f"/proc/{pid}").exists() and "(zombie)" not in status(pid)]
        if not alive:
            break
        time.sleep(0.1)
    assert not alive


def status(pid: str) -> str:
    """Return what the system says of a process, nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "(zombie)"
