"""C-FLAG-Shared: against a slow reference in plain numbers, and what must hold of it whatever the data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cflag.client import Client
from cflag.config import resolve
from cflag.conversation import Answer
from cflag.errors import UserError
from cflag.learning.estimators import Components
from cflag.methods.base import LocalOptions
from cflag.methods.cflag_shared import CFlagShared, CFlagSharedSettings
from tests.support.quadratic import Lab, Row, lose_scratch


def lab(before: list[list[Row]], now: list[list[Row]], steps: int, batch: int = 9, **own: Any) -> Lab:
    """Clients at (0, 0, 0); mini-batches are whole data sets unless told."""
    settings: dict[str, Any] = {"method": "cflag-shared", "steps": steps, "batch": batch, "cflag-shared": own}
    return Lab(before, now, (0, 0, 0), **settings)


PAST: list[list[Row]] = [[(1, 0, 0, -6)], [(0, 0, 1, 1), (0, 1, 1, 2)]]
CURRENT: list[list[Row]] = [[(1, 0, 0, 1), (0, 1, 0, 2)], [(0, 0, 1, 3)]]


def gradient(rows: list[Row], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The mean of a (a·x − b)."""
    mean: np.ndarray[Any, Any] = np.mean([np.array(a) * (np.dot(a, x) - b) for *a, b in rows], axis=0)
    return mean


def reference(exchanges: int, steps: int, beta: float, pull: float, without: str = "") -> np.ndarray[Any, Any]:
    """The method on PAST and CURRENT with whole data sets as mini-batches, in plain loops."""
    x, first, second, taken = np.zeros(3), np.zeros(3), np.zeros(3), 0
    everything = [row for rows in PAST for row in rows]
    sizes = [len(rows) for rows in CURRENT]
    for _ in range(exchanges):
        everybodys = gradient(everything, x)  # over all memory samples, whoever has them
        ends = []
        for rows, past in zip(CURRENT, PAST, strict=True):
            y, u, w = x.copy(), first.copy(), second.copy()
            m_0 = gradient(past, x) if without == "everybody" else everybodys
            for k in range(steps):
                v = gradient(rows, y)
                m = m_0 if without == "track" else m_0 + gradient(past, y) - gradient(past, x)
                d = v + (pull + (0.0 if without == "rule" else max(0.0, -(m @ v) / (m @ m)))) * m
                u, w = 0.9 * u + 0.1 * d, 0.999 * w + 0.001 * d * d
                n = taken + k + 1
                y = y - beta * (u / (1 - 0.9**n)) / (np.sqrt(w / (1 - 0.999**n)) + 1e-8)
            ends.append((y, u, w))
        x, first, second = (np.average([end[part] for end in ends], axis=0, weights=sizes) for part in range(3))
        taken += steps
        if without == "shared":
            first, second, taken = np.zeros(3), np.zeros(3), 0
    return x


@pytest.mark.parametrize(("exchange", "rounds"), [(1, 3), (3, 2), (6, 1)])
def test_rounds_agree_with_a_slow_reference(exchange: int, rounds: int) -> None:
    """The moments go on from exchange to exchange and from round to round; a fresh Adam would miss by far."""
    there = lab(PAST, CURRENT, 6, beta=0.05, pull=0.7, exchange=exchange)
    for _ in range(rounds):
        x = there.round()
    expected = reference(rounds * 6 // exchange, exchange, 0.05, 0.7)
    assert x.tolist() == pytest.approx(expected.tolist(), rel=1e-12)


@pytest.mark.parametrize(
    ("without", "setting"),
    [
        ("everybody", {"past": "own"}),
        ("track", {"track": 0}),
        ("shared", {"moments": "fresh"}),
        ("rule", {"rule": "off"}),
    ],
)
def test_each_part_can_be_left_out(without: str, setting: dict[str, Any]) -> None:
    there = lab(PAST, CURRENT, 6, beta=0.05, pull=0.7, exchange=2, **setting)
    x = [there.round().tolist() for _ in range(2)][-1]
    assert x == pytest.approx(reference(6, 2, 0.05, 0.7, without).tolist(), rel=1e-12)
    assert x != pytest.approx(reference(6, 2, 0.05, 0.7).tolist(), rel=1e-3)


@pytest.mark.parametrize("forgetful", [False, True])
def test_m_is_followed_with_a_few_of_its_own_samples(forgetful: bool) -> None:
    """One client, two steps, no rule: m is over both rows of the past, its change is seen by one of them."""
    there = lab(PAST[1:], CURRENT[:1], 2, beta=0.05, track=1, exchange=2, rule="off")
    if forgetful:
        lose_scratch(there.host)
    drawn = there.host.clients[0].memory.draw(there.host.clients[0].rng("memory 0"), 9)
    assert drawn is not None
    seen = next(row for row in PAST[1] if list(row) == drawn.x[0].tolist())
    m = gradient(PAST[1], np.zeros(3))
    d = gradient(CURRENT[0], np.zeros(3)) + m
    y = -0.05 * d / (abs(d) + 1e-8)
    e = gradient(CURRENT[0], y) + m + gradient([seen], y) - gradient([seen], np.zeros(3))
    first, second = 0.09 * d + 0.1 * e, 0.000999 * d * d + 0.001 * e * e
    expected = y - 0.05 * (first / 0.19) / (np.sqrt(second / 0.001999) + 1e-8)
    assert there.round().tolist() == pytest.approx(expected.tolist(), rel=1e-12)
    assert there.engine.settle().cost.memory == 2 + 1


def test_the_first_step_by_hand() -> None:
    """m = ⅓ [(6,0,0) + (0,0,-1) + (0,-2,-2)] = (2, -⅔, -1). Client 0 has v = (-½, -1, 0), ⟨m, v⟩ = -⅓: interference,
    weight 1 + (⅓)/(49/9) = 1.06; it steps along (1.62, -1.71, -1.06). Client 1 steps along (0, 0, -3) + m. Adam's first
    step is the sign: both go (-β, β, β).
    """
    there = lab(PAST, CURRENT, 1, beta=0.3)
    assert there.round().tolist() == pytest.approx([-0.3, 0.3, 0.3])
    assert there.log("alpha") == pytest.approx([0.3 * (1 + 3 / 49), 0.3])


def test_equal_clients_are_one_client() -> None:
    """Nothing about averaging may change what one client with everything would do."""
    one, four = (lab([PAST[1]] * n, [CURRENT[0]] * n, 5, exchange=2) for n in (1, 4))
    for _ in range(3):
        alone, together = one.round().clone(), four.round().clone()
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=0)


def test_exchanges_go_on_through_the_data_and_draw_memory_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five steps in exchanges of two visit five components once each; each of three exchanges has a memory batch."""
    visited: Counter[int] = Counter()
    plain = Components.gradient
    monkeypatch.setattr(Components, "gradient", lambda self, j: (visited.update([j]), plain(self, j))[1])
    past: list[Row] = [(1, 0, 0, k) for k in range(40)]
    current: list[Row] = [(0, 1, 0, k) for k in range(10)]
    there = lab([past], [current], 5, batch=2, exchange=2)
    draws: list[list[float]] = []
    memory = there.host.clients[0].memory
    drawn = memory.draw

    def noted(*args: Any) -> Any:
        samples: Any = drawn(*args)
        draws.append(samples.x[:, -1].tolist())
        return samples

    monkeypatch.setattr(memory, "draw", noted)
    there.round()
    assert visited == Counter(range(5))
    assert [len(d) for d in draws] == [2] * 5
    assert draws[0] == draws[1] != draws[2] == draws[3] != draws[4]  # m_i, then the same to follow m with
    cost = there.engine.settle().cost
    assert (cost.current, cost.memory) == (10, 6 + 4)  # three m_i, and two steps that follow m with both samples


numbers = st.lists(st.integers(-8, 8).map(float), min_size=4, max_size=4)


@given(numbers, numbers, st.floats(0, 3))
def test_no_direction_points_against_the_memory(v: list[float], m: list[float], pull: float) -> None:
    """⟨m, v + α_k m⟩ ≥ pull ‖m‖², with equality under interference; without interference the weight is `pull`."""
    method = CFlagShared(CFlagSharedSettings(pull=pull), LocalOptions())
    a, b = torch.tensor(v, dtype=torch.float64), torch.tensor(m, dtype=torch.float64)
    weight = method.pull(a, b)
    least, inner = pull * float(b @ b), float(b @ (a + weight * b))
    if not b.any():
        assert weight == 0
    elif a @ b < 0:
        assert inner == pytest.approx(least, abs=1e-9)
    else:
        assert weight == pull
        assert inner >= least - 1e-9


def test_a_client_without_memory_takes_part() -> None:
    """Its factor is 0, so m is the other's; nobody divides by nothing."""
    there = lab([[(1, 0, 0, -1)], [(0, 0, 1, 1)]], CURRENT, 1, beta=0.3)
    there.host.clients[0].memory.samples = None
    assert there.round().tolist() == pytest.approx([0.2, 0.2, 0.3])


def test_refuses_settings_that_cannot_work() -> None:
    wrongs: tuple[dict[str, Any], ...] = ({"beta": 0.0}, {"exchange": 0}, {"pull": -1.0}, {"track": -1})
    for wrong in wrongs:
        with pytest.raises(UserError, match=f"cflag-shared.{next(iter(wrong))}"):
            CFlagSharedSettings(**wrong).check("cflag-shared")


def test_without_memories_nothing_is_sent_for_them() -> None:
    """From the second task on: the model down, the displacement and both moments up, and both moments down."""
    settings: dict[str, Any] = {"method": "cflag-shared", "steps": 1, "batch": 9, "memory": {"kind": "none"}}
    there = Lab(PAST, CURRENT, (0, 0, 0), **settings)
    there.round()
    there.engine.settle()
    there.round()
    assert there.engine.account.bytes_up < 2 * 4 * 3 * 8  # two clients, fewer than four vectors of three doubles
    assert there.engine.settle().cost.memory == 0


def test_secure_aggregation_would_round_the_moments_to_nothing() -> None:
    with pytest.raises(UserError, match="secure = true rounds means, which method 'cflag-shared' does not bear"):
        resolve({"method": "cflag-shared", "engine": "flower-sim", "secure": True, "clients": 5})


@pytest.mark.parametrize("exchange", [1, 2])
def test_every_exchange_has_randomness_of_its_own(exchange: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout draws from torch's generator, which begins anew with each question: four exchanges ask the same one."""
    drawn: list[float] = []
    plain = Components.gradient

    def noted(self: Components, j: int) -> torch.Tensor:
        drawn.append(torch.rand(1).item())
        return plain(self, j)

    monkeypatch.setattr(Components, "gradient", noted)
    there = lab(PAST[:1], CURRENT[:1], 4, exchange=exchange)
    there.round()
    assert len(drawn) == len(set(drawn)) == 4


def test_a_second_moment_that_a_liar_makes_negative_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam takes its root: the next round's model would be no number."""
    plain = CFlagShared.local_steps

    def local_steps(self: CFlagShared, client: Client, **sent: Any) -> Answer:
        answer = dict(plain(self, client, **sent))
        if client.number == 0:
            answer["second"] = torch.as_tensor(answer["second"]) - torch.tensor([1000.0, 0.0, 0.0])
        return answer

    monkeypatch.setattr(CFlagShared, "local_steps", local_steps)
    there = lab(PAST, CURRENT, 2, beta=0.05, exchange=1)
    x = [there.round() for _ in range(2)][-1]
    second = there.server.state["second"]
    assert second[0] == 0
    assert bool((second[1:] > 0).all())
    assert bool(x.isfinite().all())
