"""C-FLAG-Shared in the laboratory: what is proved of it holds on random problems; a broken one does not get past it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cflag.learning.optimizers import Adam
from cflag.methods import cflag_shared
from cflag.methods.cflag_shared import CFlagShared
from cflag.theory.problems import FAMILIES, Shape, make_problem
from cflag.theory.shared import SharedPlan, follow_shared, longest_step
from cflag.theory.statements import SHARED_STATEMENTS, judge


def failing(name: str, seed: int, shape: Shape, plan: SharedPlan) -> set[str]:
    """Return the statements that fail on a problem."""
    seen = [follow_shared(make_problem(name, seed, shape), plan)]
    return {s.name for s in SHARED_STATEMENTS if judge(s, seen).failures}


@given(
    name=st.sampled_from(list(FAMILIES)),
    seed=st.integers(0, 10**6),
    shape=st.builds(Shape, clients=st.integers(1, 4), past=st.integers(2, 5), current=st.integers(1, 5),
                    features=st.integers(1, 4), spread=st.floats(0, 3)),
    plan=st.builds(SharedPlan, rounds=st.just(2), beta=st.floats(1e-3, 1.0), track=st.integers(1, 4),
                   steps=st.integers(1, 6), exchange=st.integers(1, 6), batch=st.integers(1, 4),
                   memory=st.integers(1, 5)),
)  # fmt: skip
def test_no_statement_is_violated(name: str, seed: int, shape: Shape, plan: SharedPlan) -> None:
    assert failing(name, seed, shape, plan) == set()


def still(client: Any, m: Tensor | None, followed: Any, name: str) -> Iterator[Tensor | None]:
    return repeat(m)


def half(mean: Any) -> Any:
    return 0.5 * mean.m / mean.factor


class Forgetful(Adam):
    """Goes on from the moments it is given, but takes them for new: their bias is corrected once more."""

    def __init__(self, *, first: Tensor | None, second: Tensor | None, steps: int) -> None:
        super().__init__(first=first, second=second, steps=0)


MUTANTS: dict[str, tuple[Any, str, Any, set[str]]] = {
    "m stands still": (cflag_shared, "along_the_path", still, {"Shared, m followed"}),
    "half of m": (cflag_shared, "over_all_samples", half, {"Shared, m"}),
    "no rule": (CFlagShared, "pull", lambda self, v, m: 0.1, {"Shared, interference"}),
    "moments that are taken for new": (cflag_shared, "Adam", Forgetful, {"Shared, Adam's step"}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_laboratory_notices_a_careless_edit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, function, wrong, noticed_by = MUTANTS[name]
    shape, plan = Shape(spread=5.0), SharedPlan(rounds=4, beta=0.05, track=3)
    assert failing("quadratic", 4, shape, plan) == set()
    monkeypatch.setattr(where, function, wrong)
    assert noticed_by <= failing("quadratic", 4, shape, plan)


@given(st.lists(st.lists(st.floats(-9, 9), min_size=2, max_size=2), min_size=1, max_size=12))
def test_no_sequence_of_directions_makes_a_longer_step(directions: list[list[float]]) -> None:
    adam = Adam()
    for n, direction in enumerate(directions, 1):
        step = adam(torch.tensor(direction, dtype=torch.float64))
        assert float(step.abs().max()) <= longest_step(n, adam) * (1 + 1e-12)


def test_the_longest_step_is_taken_by_directions_that_grow_as_they_must() -> None:
    """Cauchy and Schwarz are equal where a direction is (decay1 / decay2) to its age: the bound is tight."""
    adam = Adam(eps=0.0)
    for n in range(1, 9):
        fresh = Adam(eps=0.0)
        for age in reversed(range(n)):
            step = fresh(torch.tensor([(0.9 / 0.999) ** age], dtype=torch.float64))
        assert float(step) == pytest.approx(longest_step(n, adam), rel=1e-12)
