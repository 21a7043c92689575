"""C-FLAG-Balanced: against slow references in plain numbers, and what must hold of it whatever the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from cflag import Source, run
from cflag.config import resolve
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.methods.cflag_balanced import CFlagBalancedSettings
from tests.support.quadratic import Lab, Row
from tests.support.quick import QUICK

Vector = np.ndarray[Any, Any]
PAST: list[list[Row]] = [[(1, 0, 0, -6)], [(0, 0, 1, 1), (0, 1, 1, 2)]]
CURRENT: list[list[Row]] = [[(1, 0, 0, 1), (0, 1, 0, 2)], [(0, 0, 1, 3), (1, 1, 0, 1), (0, 1, 1, -2)]]


def lab(steps: int, past: list[list[Row]] = PAST, **own: Any) -> Lab:
    """Clients at (0, 0, 0); mini-batches are whole data sets, and memories, which are smaller, are drawn whole."""
    options: dict[str, Any] = {"method": "cflag-balanced", "steps": steps, "batch": 9, "cflag-balanced": own}
    return Lab(past, CURRENT, (0, 0, 0), **options)


def squares(rows: list[Row], x: Vector) -> Vector:
    """The gradient of the lab's loss: the mean of a (a·x − b)."""
    mean: Vector = np.mean([np.array(a) * (np.dot(a, x) - b) for *a, b in rows], axis=0)
    return mean


class SlowAdam:
    """Adam as its paper prints it, from given moments on."""

    def __init__(self, first: Vector, second: Vector, taken: int) -> None:
        self.first, self.second, self.taken = first.copy(), second.copy(), taken

    def step(self, d: Vector) -> Vector:
        self.taken += 1
        self.first = 0.9 * self.first + 0.1 * d
        self.second = 0.999 * self.second + 0.001 * d * d
        mean, square = self.first / (1 - 0.9**self.taken), self.second / (1 - 0.999**self.taken)
        update: Vector = mean / (np.sqrt(square) + 1e-8)
        return update


def along(v: Vector, p: Vector | None, pull: float, rule: bool) -> Vector:
    """v + α p."""
    if p is None:
        return v
    return v + (pull + (max(0.0, -float(p @ v) / float(p @ p)) if rule else 0.0)) * p


def reference(rounds: int, steps: int, beta: float, pull: float, without: str = "") -> Vector:
    """The method on PAST and CURRENT in plain loops; such losses know no classes to balance."""
    x, first, second, taken = np.zeros(3), np.zeros(3), np.zeros(3), 0
    for _ in range(rounds):
        ends = []
        for rows, past in zip(CURRENT, PAST, strict=True):
            y, adam = x.copy(), SlowAdam(first, second, taken)
            for _ in range(steps):
                y = y - beta * adam.step(along(squares(rows, y), squares(past, y), pull, without != "rule"))
            ends.append((y, adam.first, adam.second))
        sizes = [len(rows) for rows in CURRENT]
        x, first, second = (np.average([end[part] for end in ends], axis=0, weights=sizes) for part in range(3))
        taken += steps
        if without == "shared":
            first, second, taken = np.zeros(3), np.zeros(3), 0
    return x


@pytest.mark.parametrize(("steps", "rounds"), [(1, 4), (5, 2)])
def test_rounds_agree_with_a_slow_reference(steps: int, rounds: int) -> None:
    there = lab(steps, beta=0.05, pull=0.7)
    for _ in range(rounds):
        x = there.round()
    assert x.tolist() == pytest.approx(reference(rounds, steps, 0.05, 0.7).tolist(), rel=1e-12)


@pytest.mark.parametrize(("without", "setting"), [("shared", {"moments": "fresh"}), ("rule", {"rule": "off"})])
def test_each_part_can_be_left_out(without: str, setting: dict[str, Any]) -> None:
    there = lab(4, beta=0.05, **setting)
    x = [there.round().tolist() for _ in range(3)][-1]
    assert x == pytest.approx(reference(3, 4, 0.05, 1.0, without).tolist(), rel=1e-12)
    assert x != pytest.approx(reference(3, 4, 0.05, 1.0).tolist(), rel=1e-3)


def test_it_costs_what_replay_does_and_sends_the_moments_too() -> None:
    there, plain = lab(3), Lab(PAST, CURRENT, (0, 0, 0), method="replay", steps=3, batch=9)
    for one in (there, plain):
        one.round()
    ours, replays = there.engine.settle(), plain.engine.settle()
    assert ours.cost == replays.cost
    assert ours.bytes_up == 3 * replays.bytes_up  # Δ, and two moments
    fresh = lab(3, moments="fresh")
    fresh.round()
    assert fresh.engine.settle().bytes_up == replays.bytes_up


# Losses that are balanced ---------------------------------------------------------------------------------------------

FEATURES, CLASSES = 3, 4


def pictures(seed: int = 3) -> tuple[Vector, Vector, Vector]:
    """Two clients with uneven classes, two tasks of two; each holds more of the second task than of the first."""
    counts = {0: (5, 1, 2, 6), 1: (1, 3, 7, 3)}
    who = [(c, client) for client, own in counts.items() for c, n in enumerate(own) for _ in range(n)]
    y, clients = np.array([c for c, _ in who]), np.array([client for _, client in who])
    x = np.random.default_rng(seed).normal(size=(len(y), FEATURES)) + np.eye(CLASSES, FEATURES)[y]
    return x, y, clients


def softmax_gradient(w: Vector, b: Vector, x: Vector, y: Vector, shift: Vector, open_: Vector) -> Vector:
    """The gradient of the mean cross entropy of x Wᵀ + b + shift over each sample's open outputs, flat: W, then b."""
    with np.errstate(divide="ignore"):
        logits = x @ w.T + b + shift + np.log(open_)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    delta = (p - np.eye(CLASSES)[y]) / len(y)
    return np.concatenate([(delta.T @ x).ravel(), delta.sum(0)])


def classes_reference(start: Vector, scenario: str, steps: int, beta: float, pull: float, prior: bool) -> Vector:
    """Two tasks of one round each, in plain loops: first without a past, then with all of it in memory."""
    x, y, clients = pictures()
    z, first, second, taken = start, np.zeros_like(start), np.zeros_like(start), 0
    split = CLASSES * FEATURES
    for task in range(2):
        ends, sizes = [], []
        for client in range(2):
            now = (clients == client) & (y // 2 == task)
            then = (clients == client) & (y // 2 < task)
            pi = np.bincount(y[now], minlength=CLASSES) / now.sum()
            if then.any():
                pi = pi + pull * np.bincount(y[then], minlength=CLASSES) / then.sum()
            with np.errstate(divide="ignore"):
                shift = np.log(pi) if prior else np.zeros(CLASSES)
            u, adam = z.copy(), SlowAdam(first, second, taken)
            for _ in range(steps):
                each = []
                for some in (now, then):
                    seen = np.arange(CLASSES) // 2 <= task
                    open_ = np.tile(seen, (some.sum(), 1))
                    if scenario == "task":
                        open_ = y[some][:, None] // 2 == np.arange(CLASSES)[None, :] // 2
                    w, b = u[:split].reshape(CLASSES, FEATURES), u[split:]
                    each.append(softmax_gradient(w, b, x[some], y[some], shift, open_) if some.any() else None)
                assert each[0] is not None
                u = u - beta * adam.step(along(each[0], each[1], pull, rule=True))
            ends.append((u, adam.first, adam.second))
            sizes.append(int(now.sum()))
        z, first, second = (np.average([end[part] for end in ends], axis=0, weights=sizes) for part in range(3))
        taken += steps
    return z


@pytest.mark.parametrize("scenario", ["task", "class"])
@pytest.mark.parametrize("prior", ["own", "none"])
@pytest.mark.parametrize("stack", [1, 32])
def test_balanced_losses_agree_with_a_slow_reference(scenario: str, prior: str, stack: int, tmp_path: Path) -> None:
    x, y, clients = pictures()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES)).double()
    start = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().copy()
    split, who = (torch.from_numpy(x), torch.from_numpy(y)), torch.from_numpy(clients)
    source = Source.from_tensors(split, split, subjects=(who, who))
    own = {"beta": 0.05, "pull": 0.8, "prior": prior}
    options: dict[str, Any] = {"cflag-balanced": own}
    result = run(source=source, model=model, method="cflag-balanced", tasks=2, clients=2, rounds=1, steps=4, batch=99,
                 partition="subject", class_order="natural", scenario=scenario, seed=0, workers=1, stack=stack,
                 memory={"per_task": 99, "sample": 99}, out=tmp_path / "run", **options)  # fmt: skip
    end = torch.cat([p.detach().flatten() for p in result.model(model).network.parameters()]).numpy()
    expected = {p: classes_reference(start, scenario, 4, 0.05, 0.8, p == "own") for p in ("own", "none")}
    assert end.tolist() == pytest.approx(expected[prior].tolist(), rel=1e-9)
    assert not np.allclose(expected["own"], expected["none"], rtol=1e-2)


counts = st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), min_size=3, max_size=3)
times = st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=2, max_size=4)


def one_round(look: Sequence[Sequence[int]], clients: Sequence[Sequence[int]], prior: str) -> float:
    """How far a round goes from f = log p(x | c); client i has a_i[c] · look[c][x] samples of class c that look like x.

    A sample says how it looks in one-hot form, so a dense layer without more is a table of all f(x).
    """
    rows = [(x, c, i) for i, own in enumerate(clients) for c, n in enumerate(own)
            for x in range(3) for _ in range(n * look[c][x])]  # fmt: skip
    x, y, i = (torch.tensor(column) for column in zip(*rows, strict=True))
    model = nn.Sequential(nn.Linear(3, 3)).double()
    weight, bias = model.parameters()
    p = torch.tensor(look, dtype=torch.float64)
    weight.data, bias.data = (p / p.sum(1, keepdim=True)).log(), torch.zeros_like(bias)
    split = (torch.eye(3, dtype=torch.float64)[x], y)
    source = Source.from_tensors(split, split, subjects=(i, i))
    config = resolve({"source": "custom", "model": "custom", "method": "cflag-balanced", "clients": len(clients),
                      "tasks": 1, "partition": "subject", "steps": 1, "batch": 999, "workers": 1,
                      "cflag-balanced": {"beta": 0.1, "prior": prior}})  # fmt: skip
    session = Experiment(config, source, model).session()
    session.enter(0)
    before = session.server.params.clone()
    session.round()
    return float((session.server.params - before).abs().max())


@settings(max_examples=25, deadline=None)
@given(counts, times)
def test_clients_that_differ_in_class_shares_alone_have_one_minimiser(
    look: list[list[int]], clients: list[list[int]]
) -> None:
    """∇ of −log softmax(f + log π_i)_c is zero for every client at f = log p(x | c): p_i(c | x) ∝ p(x | c) π_i(c).

    A plain loss has its minimiser at each client's own posterior. One step: Adam divides rounding by its ε = 1e-8.
    """
    assume(all(any(own) for own in clients))
    assume(all(any(own[c] for own in clients) for c in range(3)))  # a source has every class
    assert one_round(look, clients, "own") < 1e-6
    uneven = any(len({n * sum(look[c]) for c, n in enumerate(own)}) > 1 for own in clients)
    if uneven:
        assert one_round(look, clients, "none") > 1e-3


def test_numbers_to_predict_have_nothing_to_balance(tmp_path: Path) -> None:
    scores = []
    for prior in ("own", "none"):
        options: dict[str, Any] = {"cflag-balanced": {"prior": prior}}
        result = run("diabetes", method="cflag-balanced", out=tmp_path / prior, workers=1, tasks=2, rounds=2, **options)
        scores.append(result.average_score)
    assert scores[0] == scores[1]


def test_outputs_that_are_closed_stay_closed(tmp_path: Path) -> None:
    """Where a client opens outputs by itself, log π comes on top of what closes the others."""
    own = {"kind": "staggered", "heads": "own"}
    result = run("digits", method="cflag-balanced", out=tmp_path / "run", workers=1, scenario="class", schedule=own,
                 **QUICK)  # fmt: skip
    assert result.average_score > 0


def test_a_sample_cannot_be_protected_by_itself() -> None:
    with pytest.raises(UserError, match="losses are balanced by the classes of all samples"):
        run("digits", method="cflag-balanced", privacy={"unit": "sample", "noise": 1.0})


def test_refuses_settings_that_cannot_work() -> None:
    wrongs: tuple[dict[str, Any], ...] = ({"beta": 0.0}, {"pull": -1.0})
    for wrong in wrongs:
        with pytest.raises(UserError, match=f"cflag-balanced.{next(iter(wrong))}"):
            CFlagBalancedSettings(**wrong).check("cflag-balanced")
