"""C-FLAG-Balanced in the laboratory: what is proved of it holds on random problems, and a broken one is noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cflag.client import Client
from cflag.learning.optimizers import averaged_moments
from cflag.methods import cflag_balanced
from cflag.methods.cflag_balanced import CFlagBalanced
from cflag.theory.balanced import BalancedPlan, class_shares, follow_balanced
from cflag.theory.problems import FAMILIES, Shape, make_problem
from cflag.theory.statements import BALANCED_STATEMENTS, MINIMISER, judge


def failing(name: str, seed: int, shape: Shape, plan: BalancedPlan) -> set[str]:
    """Return the statements that fail on a problem, or on clients that differ in class shares alone."""
    seen = [follow_balanced(make_problem(name, seed, shape), plan)]
    failed = {s.name for s in BALANCED_STATEMENTS if judge(s, seen).failures}
    return failed | ({MINIMISER.name} if judge(MINIMISER, [class_shares(seed)]).failures else set())


@settings(max_examples=20, deadline=None)
@example("tanh", 0, Shape(1, 2, 2, 4), BalancedPlan(rounds=2, beta=1.0, track=0, batch=1, memory=1))  # p_k is rounding
@given(
    name=st.sampled_from(list(FAMILIES)),
    seed=st.integers(0, 10**6),
    shape=st.builds(Shape, clients=st.integers(1, 4), past=st.integers(2, 5), current=st.integers(1, 5),
                    features=st.integers(1, 4), spread=st.floats(0, 3)),
    plan=st.builds(BalancedPlan, rounds=st.just(2), beta=st.floats(1e-3, 1.0), track=st.just(0),
                   steps=st.integers(1, 6), batch=st.integers(1, 4), memory=st.integers(1, 5)),
)  # fmt: skip
def test_no_statement_is_violated(name: str, seed: int, shape: Shape, plan: BalancedPlan) -> None:
    assert failing(name, seed, shape, plan) == set()


def taken_for_new(mean: Any, taken: int) -> dict[str, Any]:
    return averaged_moments(mean, 0)


def even(self: CFlagBalanced, client: Client) -> torch.Tensor:
    """A prior as if a client had as much of each class."""
    return torch.ones(client.heads.own.shape[1], dtype=torch.float64)


MUTANTS: dict[str, tuple[Any, str, Any, set[str]]] = {
    "no rule": (CFlagBalanced, "pull", lambda self, v, p: 0.1, {"Balanced, interference"}),
    "moments that are taken for new": (cflag_balanced, "averaged_moments", taken_for_new, {"Balanced, Adam's step"}),
    "losses that are not balanced": (CFlagBalanced, "prior", even, {"Balanced, one minimiser"}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_laboratory_notices_a_careless_edit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, function, wrong, noticed_by = MUTANTS[name]
    shape, plan = Shape(spread=5.0), BalancedPlan(rounds=4, beta=0.05, track=0)
    assert failing("quadratic", 4, shape, plan) == set()
    monkeypatch.setattr(where, function, wrong)
    assert failing("quadratic", 4, shape, plan) == noticed_by
