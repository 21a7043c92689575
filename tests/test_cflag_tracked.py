"""C-FLAG-Tracked: against a slow reference in plain numbers, and what must hold of it whatever the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from cflag.errors import UserError
from cflag.learning.memory_gradient import weight_of
from cflag.methods.cflag_tracked import CFlagTrackedSettings
from tests.support.quadratic import Lab, Row, lose_scratch

Vector = np.ndarray[Any, Any]
PAST: list[list[Row]] = [[(1, 0, 0, -6)], [(0, 0, 1, 1), (0, 1, 1, 2)]]
CURRENT: list[list[Row]] = [[(1, 0, 0, 1), (0, 1, 0, 2)], [(0, 0, 1, 3)]]


def lab(before: list[list[Row]], now: list[list[Row]], steps: int, batch: int = 9, **own: Any) -> Lab:
    """Clients at (0, 0, 0); mini-batches and what a step sees of the past are whole data sets unless told."""
    settings: dict[str, Any] = {
        "method": "cflag-tracked",
        "steps": steps,
        "batch": batch,
        "cflag-tracked": {"replay": 9.0, **own},
    }
    return Lab(before, now, (0, 0, 0), **settings)


def gradient(rows: list[Row], x: Vector) -> Vector:
    """The mean of a (a·x − b)."""
    mean: Vector = np.mean([np.array(a) * (np.dot(a, x) - b) for *a, b in rows], axis=0)
    return mean


def reference(rounds: int, steps: int, beta: float, pull: float, without: str = "") -> Vector:
    """The method on PAST and CURRENT with whole data sets as mini-batches, in plain loops."""
    x, everything = np.zeros(3), [row for rows in PAST for row in rows]
    for _ in range(rounds):
        m, ends = gradient(everything, x), []
        for rows, past in zip(CURRENT, PAST, strict=True):
            y = x.copy()
            for _ in range(steps):
                v, r = gradient(rows, y), gradient(past, y)
                p = r if without == "everybody" else m - gradient(past, x) + r
                against = 0.0 if without == "rule" else max(0.0, -(p @ v) / (p @ p))
                y = y - beta * (v + (pull + against) * p)
            ends.append(y)
        x = np.average(ends, axis=0, weights=[len(rows) for rows in CURRENT])
    return x


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize(("steps", "rounds"), [(1, 3), (4, 2)])
def test_rounds_agree_with_a_slow_reference(steps: int, rounds: int, forgetful: bool) -> None:
    there = lab(PAST, CURRENT, steps, beta=0.07, pull=0.7)
    if forgetful:
        lose_scratch(there.host)
    for _ in range(rounds):
        x = there.round()
    assert x.tolist() == pytest.approx(reference(rounds, steps, 0.07, 0.7).tolist(), rel=1e-12)


@pytest.mark.parametrize(("without", "setting"), [("everybody", {"past": "own"}), ("rule", {"rule": "off"})])
def test_each_part_can_be_left_out(without: str, setting: dict[str, Any]) -> None:
    there = lab(PAST, CURRENT, 4, beta=0.07, **setting)
    x = [there.round().tolist() for _ in range(2)][-1]
    assert x == pytest.approx(reference(2, 4, 0.07, 1.0, without).tolist(), rel=1e-12)
    assert x != pytest.approx(reference(2, 4, 0.07, 1.0).tolist(), rel=1e-3)


def test_the_first_step_by_hand() -> None:
    """m = ⅓ [(6,0,0) + (0,0,-1) + (0,-2,-2)] = (2, -⅔, -1), and r_0 = m_i, so both clients have p = m. Client 0 has
    v = (-½, -1, 0), ⟨p, v⟩ = -⅓: weight 1 + (⅓)/(49/9) = 52/49. Client 1 has v = (0, 0, -3), ⟨p, v⟩ = 3: weight 1.
    Δ = 0.3 [⅔ (v_0 + 52/49 m) + ⅓ (v_1 + m)] = 0.3 [(-⅓, -⅔, -1) + 51/49 m].
    """
    there = lab(PAST, CURRENT, 1, beta=0.3)
    expected = [0.3 * (1 / 3 - 102 / 49), 0.3 * (2 / 3 + 34 / 49), 0.3 * (1 + 51 / 49)]
    assert there.round().tolist() == pytest.approx(expected, rel=1e-12)
    assert there.log("alpha") == pytest.approx([0.3 * 52 / 49, 0.3])


def test_equal_clients_are_one_client_with_replay() -> None:
    """m = m_i, so the correction vanishes, whatever E is; nothing about averaging changes anything else."""
    one, four, own = (
        lab([PAST[1]] * n, [CURRENT[0]] * n, 5, past=past)
        for n, past in ((1, "everybody"), (4, "everybody"), (1, "own"))
    )
    for _ in range(3):
        ends = [there.round().clone() for there in (one, four, own)]
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=0)
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-12, atol=0)


def test_what_it_costs() -> None:
    """Ten current samples in batches of 4, 4 and 2; a step sees half as many of the past, and m_i is one batch of 4."""
    past: list[Row] = [(1, 0, 0, k) for k in range(40)]
    current: list[Row] = [(0, 1, 0, k) for k in range(10)]
    there = lab([past], [current], 3, batch=4, replay=0.5)
    there.round()
    vectors = there.engine.account.bytes_up // (3 * 8)
    cost = there.engine.settle().cost
    assert (cost.current, cost.memory) == (10, 4 + (2 + 2 + 1))
    assert vectors == 2  # m_i and Δ; replay sends Δ alone
    alone = lab([past], [current], 3, batch=4, replay=0.5, past="own")
    alone.round()
    assert alone.engine.settle().cost.memory == 5


def test_a_client_without_memory_steps_on_what_it_has() -> None:
    """Its factor is 0, so m is the other's own, whose correction vanishes; it has nothing to follow m with."""
    there = lab([[(1, 0, 0, -1)], [(0, 0, 1, 1)]], CURRENT, 2, beta=0.1)
    there.host.clients[0].memory.samples = None
    ends = []
    for rows, past in ((CURRENT[0], None), (CURRENT[1], [(0.0, 0.0, 1.0, 1.0)])):
        y = np.zeros(3)
        for _ in range(2):
            v = gradient(rows, y)
            p = np.zeros(3) if past is None else gradient(list(past), y)
            y = y - 0.1 * (v + p)  # v and p never interfere here
        ends.append(y)
    assert there.round().tolist() == pytest.approx(np.average(ends, axis=0, weights=[2, 1]).tolist(), rel=1e-12)


def test_without_memories_it_is_fine_tuning() -> None:
    plain: dict[str, Any] = {"steps": 3, "batch": 9, "memory": {"kind": "none"}}
    tracked = Lab(PAST, CURRENT, (0, 0, 0), method="cflag-tracked", **plain)
    finetuned = Lab(PAST, CURRENT, (0, 0, 0), method="finetune", **plain)
    assert tracked.round().tolist() == finetuned.round().tolist()


numbers = st.lists(st.integers(-8, 8).map(float), min_size=4, max_size=4)


@given(numbers, numbers, st.floats(0, 3))
def test_no_direction_points_against_the_memory(v: list[float], p: list[float], pull: float) -> None:
    """⟨p, v + α p⟩ ≥ pull ‖p‖², with equality under interference; without the rule the weight is `pull`."""
    a, b = torch.tensor(v, dtype=torch.float64), torch.tensor(p, dtype=torch.float64)
    weight = weight_of(b, a, pull, interference=True)
    least, inner = pull * float(b @ b), float(b @ (a + weight * b))
    assert inner >= least - 1e-9
    if a @ b < 0:
        assert inner == pytest.approx(least, abs=1e-9)
    assert weight_of(b, a, pull, interference=False) == (pull if b.any() else 0)


@example([8.0] * 4, [-1.0] * 4, -6)
@example([8.0] * 4, [-1.0] * 4, -22)
@given(numbers, numbers, st.integers(-30, 0))
def test_a_memory_gradient_lost_in_rounding_turns_nothing(v: list[float], p: list[float], size: int) -> None:
    """α p never is longer than v and pull p, however short p is: squares of 1e-20 have no digits left."""
    a, b = torch.tensor(v), torch.tensor(p) * 10.0**size
    weight = weight_of(b, a, 1.0, interference=True)
    assert weight <= 1 + torch.finfo(torch.float32).eps ** -0.5
    assert float((weight * b).norm()) <= (float(a.norm()) + float(b.norm())) * (1 + 1e-5)


def test_refuses_settings_that_cannot_work() -> None:
    wrongs: tuple[dict[str, Any], ...] = ({"beta": 0.0}, {"replay": 0.0}, {"pull": -1.0})
    for wrong in wrongs:
        with pytest.raises(UserError, match=f"cflag-tracked.{next(iter(wrong))}"):
            CFlagTrackedSettings(**wrong).check("cflag-tracked")
