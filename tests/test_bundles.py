"""Large cohorts are summed in bundles: whoever sums, the bits are those of one order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cflag import Experiment, load_config
from cflag.conversation import Ask, Cost, Reply, RoundContext
from cflag.engines import bundles
from cflag.engines.bundles import Bundle, bundle_size, bundled, in_bundles
from cflag.engines.engine import Total
from cflag.engines.local import LocalEngine
from cflag.errors import DivergedError
from tests.support.grid import Fleet, local, numbers
from tests.support.quick import QUICK, same_with_any_workers

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bundles begin where they would with a hundred clients: with two."""
    monkeypatch.setattr(bundles, "FEWEST", 3)


def test_how_large_bundles_are() -> None:
    assert [bundle_size(clients) for clients in (1, 5, 99, 100, 149, 150, 1000)] == [1, 1, 1, 2, 2, 3, 20]
    assert in_bundles(range(3)) == [range(1), range(1, 2), range(2, 3)]
    assert [len(bundle) for bundle in in_bundles(range(205))] == [4] * 51 + [1]


def by_hand(rows: list[list[float]], samples: list[int], size: int, away: set[int]) -> Tensor:
    """Σ over bundles of Σ over members of p_i row_i, in single precision; who is away is left out."""
    total, asked = None, sum(samples)
    for start in range(0, len(rows), size):
        own = None
        for k in range(start, min(start + size, len(rows))):
            if k not in away:
                row = torch.tensor(rows[k])
                p = samples[k] / asked
                own = row * p if own is None else own.add(row, alpha=p)
        if own is not None:
            total = own.clone() if total is None else total + own
    assert total is not None
    heard = sum(n for k, n in enumerate(samples) if k not in away)
    return total if heard == asked else total * (asked / heard)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_sum_is_the_same_whoever_makes_it(data: st.DataObject) -> None:
    """By the server one by one, or with some bundles summed by workers: the bits of two loops by hand."""
    count = data.draw(st.integers(100, 130))
    numbers = st.floats(-10, 10, width=32)
    seed = data.draw(st.integers(0, 2**31))
    rows = (torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)) * data.draw(numbers)).tolist()
    samples = data.draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    away = data.draw(st.sets(st.integers(0, count - 1), max_size=6))
    context = RoundContext(0, 0, sum(samples), count)
    replies = [
        None if k in away else Reply({"x": torch.tensor(rows[k])}, samples[k], Cost(k, 1), {"loss": 0.5})
        for k in range(count)
    ]
    groups = in_bundles(range(count))
    elsewhere = data.draw(st.sets(st.integers(0, len(groups) - 1)))
    engine = LocalEngine(Experiment(load_config("digits", **QUICK)).host(), 1)
    total = Total(engine, context, range(count))
    for place, group in enumerate(groups):
        if place in elsewhere and len(group) > 1:
            (sums,) = bundled([[replies[k] for k in group]], [group], "steps", context)
            assert isinstance(sums[0], Bundle)
            total.add_bundle(group, sums[0])
            continue
        for k in group:
            if (reply := replies[k]) is not None:
                total.add(k, reply)
    mean = total.result()
    assert torch.equal(mean.x, by_hand(rows, samples, 2, away))
    heard = sorted(set(range(count)) - away)
    account = engine.settle()
    assert engine.heard == heard == account.participants()
    assert account.cost == Cost(sum(heard), len(heard))
    assert account.bytes_up == 12 * len(heard)


def test_bundles_come_when_they_are_complete_wherever_replies_are_cut() -> None:
    """Three stacks of two clients; groups of three, one and two: the first is complete with the second stack."""
    context = RoundContext(0, 0, 6, 6)
    replies = [Reply({"x": float(k)}, 1, Cost(), {}) for k in range(6)]
    stacks = [replies[:2], replies[2:4], replies[4:]]
    first, second, third = bundled(stacks, [[0, 1, 2], [3], [4, 5]], "steps", context)
    assert first == []
    assert [type(reply) for reply in second] == [Bundle, Reply]
    assert [type(reply) for reply in third] == [Bundle]
    assert second[0].total["x"] == pytest.approx((0 + 1 + 2) / 6)  # type: ignore[union-attr]
    assert third[0].total["x"] == pytest.approx((4 + 5) / 6)  # type: ignore[union-attr]


def test_one_that_diverged_is_named_before_it_is_in_a_sum() -> None:
    replies = [Reply({"x": 1.0}, 1, Cost(), {}), Reply({"x": float("nan")}, 1, Cost(), {})]
    with pytest.raises(DivergedError, match=r"client 8's x is not finite in task 3, round 5 \(question 'steps'\)"):
        list(bundled([replies], [[7, 8]], "steps", RoundContext(2, 4, 2, 2)))


@pytest.mark.usefixtures("pairs")
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "cflag", "clients": 9},
        {"method": "finetune", "clients": 14, "clients_per_round": 7, "zeta": 0.5},
        {"method": "icarl", "clients": 7},
        {"method": "replay", "clients": 8, "schedule": {"kind": "own-order"}},
    ],
    ids=["cflag", "cohort", "icarl", "clocks"],
)
def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path, settings: dict[str, Any]) -> None:
    same_with_any_workers(tmp_path, **settings)


@pytest.mark.usefixtures("pairs")
def test_a_fleet_sums_in_the_same_bundles(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, clients=7, min_clients=7, samples_per_class=40)
    fleet.run()
    local(tmp_path, clients=7, samples_per_class=40)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


@pytest.mark.usefixtures("pairs")
def test_a_bundle_whose_clients_are_in_several_workers_is_summed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients stay where they were asked first; bundles of another cohort lie across."""
    means, whole = [], list[Sequence[int]]()
    add = Total.add_bundle

    def noted(self: Total, members: Sequence[int], bundle: Bundle) -> None:
        whole.append(members)
        add(self, members, bundle)

    monkeypatch.setattr(Total, "add_bundle", noted)
    for workers in (1, 3):
        experiment = Experiment(load_config("digits", **{**QUICK, "method": "finetune", "clients": 12}))
        engine = LocalEngine(experiment.host(), workers)
        session = experiment.session(engine)
        session.enter(0)
        ask = Ask(session.method.local_steps, steps=1)  # type: ignore[attr-defined]
        engine.ask(ask, session.server)
        whole.clear()
        means.append(engine.ask(ask, session.server, [2, 4, 5, 9, 10, 11]))
        engine.close()
        assert len(whole) == (3 if workers == 1 else 1)
    assert torch.equal(means[0].delta, means[1].delta)
