"""C-FLAG's round against numbers worked out by hand, against slow references, and against identities."""

from __future__ import annotations

from fractions import Fraction as Fr
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cflag.learning.estimators import Components, Delayed
from tests.support.quadratic import Lab, Row, lose_scratch

# Two clients, three parameters, x_t = 0. Client 0 has two components, client 1 has one: p = (2/3, 1/3).
#   g_0 = ½ [(-1, 0, 0) + (0, -2, 0)] = (-1/2, -1, 0)      g_1 = (0, 0, -3)      g = (-1/3, -2/3, -1)
#   m_0 = (1, 0, 0)      m_1 = (0, 0, -1)                  m = (2/3, 0, -1/3),  ‖m‖² = 5/9
# E = 2, β = 1/10. Both clients first step to x_1 = -β g = (1/30, 1/15, 1/10), since v_0 = g_i.
#   client 0 visits its first component:  v_1 = ½ [(1/30 - 1, 0, 0) + (0, -2, 0)] = (-29/60, -1, 0)
#   client 1 visits its only one:         v_1 = (0, 0, 1/10 - 3)
#   a_0 = (-59/60, -2, 0)   Λ_0 = -59/90 (interference)    a_1 = (0, 0, -59/10)   Λ_1 = 59/30 (transference)
PAST: list[list[Row]] = [[(1, 0, 0, -1)], [(0, 0, 1, 1)]]
CURRENT: list[list[Row]] = [[(1, 0, 0, 1), (0, 1, 0, 2)], [(0, 0, 1, 3)]]
A0, A1 = (Fr(-59, 60), Fr(-2), Fr(0)), (Fr(0), Fr(0), Fr(-59, 10))
M = (Fr(2, 3), Fr(0), Fr(-1, 3))
C0, C1 = (Fr(1, 6), Fr(1, 3), Fr(-1)), (Fr(-1, 3), Fr(-2, 3), Fr(2))
"""g - g_i of either client."""
GAMMA = Fr(5, 2) / 100 * (Fr(59, 90) ** 2 + Fr(16, 9) + Fr(59, 30) ** 2) - Fr(1, 20) * Fr(59, 270)


def by_hand(method: str = "cflag", **changed: Any) -> Lab:
    own: dict[str, Any] = {"alpha": 0.1, "beta": 0.1, "order": "cyclic", **changed}
    if method == "cflag":
        own.setdefault("alpha_cap", "none")
    settings: dict[str, Any] = {"steps": 2, "method": method, method: own}
    return Lab(PAST, CURRENT, (0, 0, 0), **settings)


def combine(alphas: tuple[Fr, Fr], betas: tuple[Fr, Fr]) -> list[float]:
    """x_{t+1} = -Σ p_i [α_i m + β_i (2 (g - g_i) + a_i)], exactly."""
    p = (Fr(2, 3), Fr(1, 3))
    return [
        float(-sum(p[i] * (alphas[i] * M[k] + betas[i] * (2 * c[k] + a[k]))
                   for i, (a, c) in enumerate([(A0, C0), (A1, C1)])))
        for k in range(3)
    ]  # fmt: skip


TENTH = Fr(1, 10)
ALPHA0 = TENTH + TENTH * Fr(59, 90) * Fr(9, 5)  # α - β Λ_0 / ‖m‖² = 0.218
WORST1 = Fr(1, 118)  # (1 - Lα) Λ_1 / (L N p_1 ‖a_1‖²) = (1/2)(59/30) / (5 · 2 · (1/3) · 34.81)
AVERAGE1 = Fr(1, 59)  # without the N


@pytest.mark.parametrize(
    ("adapt", "rules", "alphas", "betas"),
    [
        ("off", "both", (TENTH, TENTH), (TENTH, TENTH)),
        ("worst", "both", (ALPHA0, TENTH), (TENTH, WORST1)),
        ("average", "both", (ALPHA0, TENTH), (TENTH, AVERAGE1)),
        ("worst", "interference", (ALPHA0, TENTH), (TENTH, TENTH)),
        ("worst", "transference", (TENTH, TENTH), (TENTH, WORST1)),
    ],
)
def test_round_by_hand(adapt: str, rules: str, alphas: tuple[Fr, Fr], betas: tuple[Fr, Fr]) -> None:
    lab = by_hand(adapt=adapt, rules=rules)
    x = lab.round()
    assert x.tolist() == pytest.approx(combine(alphas, betas), abs=1e-14)
    assert lab.log("alpha") == pytest.approx([float(a) for a in alphas], abs=1e-14)
    assert lab.log("beta") == pytest.approx([float(b) for b in betas], abs=1e-14)
    assert lab.log("lambda") == pytest.approx([-59 / 90, 59 / 30], abs=1e-14)
    assert lab.log("case") == ["interference", "transference"]
    assert lab.server.logs["gamma"] == pytest.approx(float(GAMMA), abs=1e-13)


def test_server_level_beta() -> None:
    """Section 5: Λ = ⟨m, Σ p_i a_i⟩ = 59/270 > 0, so β* = (1 - Lα) Λ / (L ‖Σ p_i a_i‖²) and α stays."""
    mean_a = [Fr(2, 3) * A0[k] + Fr(1, 3) * A1[k] for k in range(3)]
    best = Fr(1, 2) * Fr(59, 270) / (5 * sum(v * v for v in mean_a))
    lab = by_hand("cflag-server")
    expected = [float(-(TENTH * M[k] + best * mean_a[k])) for k in range(3)]
    assert lab.round().tolist() == pytest.approx(expected, abs=1e-14)
    assert lab.server.logs["server_beta"] == pytest.approx(float(best), abs=1e-15)
    # Γ* = -(1 - Lα)² Λ² / (2 L ‖Σ p_i a_i‖²)
    least = -(Fr(1, 2) ** 2) * Fr(59, 270) ** 2 / (2 * 5 * sum(v * v for v in mean_a))
    assert lab.server.logs["gamma_adapted"] == pytest.approx(float(least), abs=1e-15)


def test_caps_bind_and_are_counted() -> None:
    lab = by_hand(adapt="worst", rules="both", alpha_cap=0.2, beta_cap=0.005)
    x = lab.round()
    assert x.tolist() == pytest.approx(combine((Fr(1, 5), TENTH), (TENTH, Fr(1, 200))), abs=1e-14)
    assert lab.log("capped") == [1, 1]


def test_paper_caps() -> None:
    """α_i ≤ 2/(L(1+m)) with m = 1 is 1/5; β_i ≤ 1/(4LE) is 1/40, which does not bind here."""
    lab = by_hand(adapt="worst", rules="both", alpha_cap="paper", beta_cap="paper")
    lab.round()
    assert lab.log("alpha") == pytest.approx([0.2, 0.1])
    assert lab.log("capped") == [1, 0]


def test_first_task_is_a_fedtrack_round_without_memory() -> None:
    lab = by_hand(adapt="worst", rules="both")
    lab.server.task, lab.server.sizes = 0, {0: 1, 1: 1}
    # Task 1 holds one component a client: g = ½ [(1,0,0) + (0,0,-1)]; x_1 = -β g = (-1/20, 0, 1/20);
    # then v_1 = (19/20, 0, 0) and (0, 0, -19/20): Δ = β (g + mean v_1), the drift having cancelled.
    step = 0.1 * (0.5 + 0.475)
    assert lab.round().tolist() == pytest.approx([-step, 0, step], abs=1e-15)
    assert lab.log("case") == ["none", "none"]


def test_tau_example_of_the_paper() -> None:
    """Three components; step 1 visits c1, step 2 visits c3: each stands where it was last visited."""
    rows: list[Row] = [(1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1)]
    lab = Lab([rows], [rows], (0, 0, 0), cflag={"order": "cyclic"})
    lab.engine.ask(_ask_gradients(lab), lab.server)
    client = lab.engine.lanes[0].host.clients[0]  # type: ignore[attr-defined]
    components = Components(client, 1, "cyclic")
    setattr(components, "visits", lambda: iter([0, 2]))  # noqa: B010 (mypy forbids the assignment)
    lab.learner.load(torch.zeros(3, dtype=torch.float64), lab.learner.buffers)
    estimator = Delayed(components)
    assert estimator.recall().tolist() == pytest.approx([-1 / 3, -1 / 3, -1 / 3])
    estimates = estimator.path()
    assert next(estimates).tolist() == pytest.approx([-1 / 3, -1 / 3, -1 / 3])
    lab.learner.params.copy_(torch.tensor([0.5, 0.5, 0.5]))  # x_1
    assert next(estimates).tolist() == pytest.approx([-0.5 / 3, -1 / 3, -1 / 3])
    lab.learner.params.copy_(torch.tensor([0.8, 0.8, 0.8]))  # x_2: c1 stays at x_1, c2 at x_0
    assert next(estimates).tolist() == pytest.approx([-0.5 / 3, -1 / 3, -0.2 / 3])


def _ask_gradients(lab: Lab) -> Any:
    return next(lab.method.round(lab.server))


quarter = st.integers(-8, 8).map(lambda k: k / 4)
component = st.tuples(*[quarter for _ in range(4)])
clients = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        *[st.lists(st.lists(component, min_size=1, max_size=5), min_size=n, max_size=n) for _ in range(2)]
    )
)
starts = st.tuples(*[quarter for _ in range(3)])


def gradient(rows: list[Row], x: Tensor) -> Tensor:
    """The mean of a (a·x - b), one component after the other."""
    total = torch.zeros(3, dtype=torch.float64)
    for row in rows:
        a = torch.tensor(row[:3], dtype=torch.float64)
        total += a * (a @ x - row[3])
    return total / len(rows)


@settings(max_examples=40, deadline=None)
@given(clients, starts, st.integers(1, 5))
def test_one_component_without_adaptation_is_gradient_tracking(
    data: tuple[list[list[Row]], list[list[Row]]], start: Row, steps: int
) -> None:
    past, current = data
    own = {"adapt": "off", "estimator": "iag", "drift": 1.0, "alpha": 0.05, "beta": 0.05}
    lab = Lab(past, current, start, steps=steps, batch=99, cflag=own)
    x = torch.tensor(start, dtype=torch.float64)
    total = sum(len(rows) for rows in current)
    g = sum((len(r) / total * gradient(r, x) for r in current), torch.zeros(3, dtype=torch.float64))
    m = sum((len(r) / total * gradient(p, x) for p, r in zip(past, current, strict=True)), torch.zeros(3))
    moved = torch.zeros(3, dtype=torch.float64)
    for rows in current:
        local = x.clone()
        for _ in range(steps):
            local -= 0.05 * (g - gradient(rows, x) + gradient(rows, local))
        moved += len(rows) / total * (x - local)
    torch.testing.assert_close(lab.round(), x - 0.05 * m - moved)


@settings(max_examples=40, deadline=None)
@given(clients, starts, st.sampled_from(["off", "worst", "average"]), st.sampled_from(["iag", "minibatch"]))
def test_order_of_clients_changes_nothing(
    data: tuple[list[list[Row]], list[list[Row]]], start: Row, adapt: str, estimator: str
) -> None:
    own = {"adapt": adapt, "rules": "both", "estimator": estimator, "order": "cyclic", "drift": 1.0}
    forwards = Lab(data[0], data[1], start, steps=3, cflag=own).round()
    backwards = Lab(data[0][::-1], data[1][::-1], start, steps=3, cflag=own).round()
    torch.testing.assert_close(forwards, backwards)


@settings(max_examples=40, deadline=None)
@given(clients, starts, st.floats(0, 1))
def test_drift_cancels_in_the_mean(data: tuple[list[list[Row]], list[list[Row]]], start: Row, drift: float) -> None:
    """Σ p_i Δ_i = α m + β Σ p_i a_i with adaptation off: one local step is then a plain gradient step."""
    lab = Lab(
        *data, start, steps=1, batch=99, cflag={"adapt": "off", "estimator": "iag", "drift": drift, "alpha": 0.05}
    )
    x = torch.tensor(start, dtype=torch.float64)
    total = sum(len(rows) for rows in data[1])
    h = torch.zeros(3, dtype=torch.float64)
    for past, rows in zip(*data, strict=True):
        h += len(rows) / total * (gradient(past, x) + gradient(rows, x))
    torch.testing.assert_close(lab.round(), x - 0.05 * h)


@settings(max_examples=25, deadline=None)
@given(clients, starts, st.sampled_from(["iag", "minibatch"]))
def test_lost_scratch_changes_neither_numbers_nor_costs(
    data: tuple[list[list[Row]], list[list[Row]]], start: Row, estimator: str
) -> None:
    own = {"estimator": estimator, "order": "random", "drift": 1.0}
    kept, lost = (Lab(*data, start, steps=4, cflag=own) for _ in range(2))
    lose_scratch(lost.host)
    assert torch.equal(kept.round(), lost.round())
    assert kept.engine.settle().cost == lost.engine.settle().cost


def test_costs_of_a_round() -> None:
    """A full pass (3 samples), the memory (2), one refreshed component a client (E - 1 = 1 each)."""
    lab = by_hand()
    lab.round()
    lab.engine.settle()
    lab.round()
    account = lab.engine.settle()
    assert (account.cost.current, account.cost.memory) == (3 + 2, 2)
    vector = 3 * 8
    # Up: g and m, then Δ, the number α and, to measure Γ, a; down: x, then g, m and the numbers E and β; two clients.
    assert account.bytes_up == 2 * (2 * vector + vector + 8 + vector)
    assert account.bytes_down == 2 * (vector + 2 * vector + 2 * 8)


def test_interference_is_removed_exactly_by_the_displacement_rule() -> None:
    """Adam: after the correction the client's whole step no longer points against m beyond the plain memory step."""
    own = {"adapt": "worst", "rules": "interference", "alpha": 0.05, "beta": 0.05, "alpha_cap": "none"}
    lab = Lab(PAST, CURRENT, (0, 0, 0), steps=4, optimizer="adam", cflag=own)
    lab.round()
    # Adam's first step is sign(m): q = (1, 0, -1), ⟨m, q⟩ = 2/3 + 1/3 = 1.
    for alpha, inner, case in zip(lab.log("alpha"), lab.log("lambda"), lab.log("case"), strict=True):
        if case == "interference":
            # ⟨m, α_i q + D_i⟩ = α ⟨m, q⟩, with D_i = β a_i
            assert alpha * 1 + 0.05 * inner == pytest.approx(0.05, rel=1e-6)
    assert "interference" in lab.log("case")


def test_diminishing_rate() -> None:
    """β = c/√T: with T = 4 rounds and c = 0.2 the round is that of β = 0.1."""
    own = {"adapt": "off", "estimator": "iag", "order": "cyclic", "alpha": 0.1, "drift": 1.0}
    constant = Lab(PAST, CURRENT, (0, 0, 0), steps=2, cflag={**own, "beta": 0.1}).round()
    diminishing = Lab(
        PAST, CURRENT, (0, 0, 0), steps=2, rounds=4, cflag={**own, "beta": 0.2, "rate": "diminishing"}
    ).round()
    assert torch.equal(constant, diminishing)


def test_two_epochs_become_one_number_of_steps() -> None:
    """Clients have 2 and 1 mini-batches: two epochs are E = 2 × 1.5 steps for both."""
    lab = Lab(PAST, CURRENT, (0, 0, 0), epochs=2)
    assert lab.method.steps(lab.server) == 3


@pytest.mark.parametrize("order", ["cyclic", "shuffled", "random"])
def test_orders_of_visits(order: str) -> None:
    rows: list[Row] = [(1, 0, 0, k) for k in range(5)]
    lab = Lab([rows], [rows], (0, 0, 0))
    lab.engine.ask(_ask_gradients(lab), lab.server)
    visits = Components(lab.engine.lanes[0].host.clients[0], 1, order).visits()  # type: ignore[attr-defined]
    seen = [next(visits) for _ in range(50)]
    passes = [seen[k : k + 5] for k in range(0, 50, 5)]
    if order == "cyclic":
        assert passes == [[0, 1, 2, 3, 4]] * 10
    elif order == "shuffled":
        assert all(sorted(p) == [0, 1, 2, 3, 4] for p in passes)
        assert len({tuple(p) for p in passes}) > 1
    else:
        assert set(seen) == {0, 1, 2, 3, 4}
        assert any(sorted(p) != [0, 1, 2, 3, 4] for p in passes)


@pytest.mark.parametrize("tiny", [1e-23, 1e-160, 1e-250])
def test_vanishing_steps_keep_the_plain_rates(tiny: float) -> None:
    """‖a_i‖² underflows before Λ_i does; the rates must stay usable."""
    lab = Lab([[(1, 0, 0, 0)]], [[(tiny, 0, 0, 0)]], (-1, 0, 0), steps=3,
              cflag={"adapt": "worst", "rules": "both"})  # fmt: skip
    assert torch.isfinite(lab.round()).all()


def test_without_drift_correction_nobody_computes_or_sends_g() -> None:
    """Mini-batches and drift 0: E samples per client and the memory; up m, Δ and α; down x, m, E and β."""
    lab = Lab(PAST, CURRENT, (0, 0, 0), steps=2, cflag={"estimator": "minibatch", "drift": 0.0, "adapt": "off"})
    lab.round()
    lab.engine.settle()
    lab.round()
    account = lab.engine.settle()
    assert (account.cost.current, account.cost.memory) == (2 + 2, 2)
    vector = 3 * 8
    assert account.bytes_up == 2 * (2 * vector + 8)
    assert account.bytes_down == 2 * (2 * vector + 2 * 8)


@settings(max_examples=25, deadline=None)
@given(clients, starts)
def test_without_drift_correction_it_is_fedavg_and_a_memory_step(
    data: tuple[list[list[Row]], list[list[Row]]], start: Row
) -> None:
    own = {"estimator": "minibatch", "drift": 0.0, "adapt": "off", "alpha": 0.05, "beta": 0.05}
    lab = Lab(*data, start, steps=3, cflag=own)
    fedavg = Lab(*data, start, steps=3, method="finetune", finetune={"lr": 0.05})
    x = torch.tensor(start, dtype=torch.float64)
    total = sum(len(rows) for rows in data[1])
    m = sum((len(r) / total * gradient(p, x) for p, r in zip(*data, strict=True)), torch.zeros(3))
    torch.testing.assert_close(lab.round(), fedavg.round() - 0.05 * m)


@pytest.mark.parametrize(("weights", "expected"), [("current", [2 / 3, 0, -1 / 3]), ("memory", [1 / 4, 0, -3 / 4])])
def test_weights_of_the_memory_gradient(weights: str, expected: list[float]) -> None:
    """Client 0 has 2 of 3 current samples but only 1 of 4 memory samples; m_0 = (1, 0, 0), m_1 = (0, 0, -1)."""
    past: list[list[Row]] = [[(1, 0, 0, -1)], [(0, 0, 1, 1)] * 3]
    own = {"adapt": "off", "alpha": 1.0, "beta": 1e-12, "weights": weights}
    settings: dict[str, Any] = {"steps": 1, "method": "cflag-sgd", "cflag-sgd": own}
    lab = Lab(past, CURRENT, (0, 0, 0), **settings)
    assert lab.round().tolist() == pytest.approx([-v for v in expected], abs=1e-9)
