"""The ways to workers: who goes where, and the shared memory that answers come back through."""

from __future__ import annotations

import errno
import multiprocessing as mp
import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import product
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cflag import Client, Experiment, load_config
from cflag.config import flatten, load_raw, merge, resolve
from cflag.conversation import Answer, Cost, Reply
from cflag.engines import lanes
from cflag.engines import shelf as shelves
from cflag.engines.deal import Deal
from cflag.engines.lanes import HereLane, WorkerLane
from cflag.engines.local import LocalEngine
from cflag.engines.shelf import Board, Shelf
from cflag.methods.finetune import Finetune
from cflag.stopping import stop_requests


def test_clients_are_dealt_by_what_they_spent_the_heaviest_first() -> None:
    """By hand, on two lanes: 7 | 5, then 4 to the second (9), 3 to the first (10), 1 to the second (10)."""
    deal = Deal(2)
    assert deal.lanes([[3], [4], [5], [6], [7]]) == {3: 0, 4: 1, 5: 0, 6: 1, 7: 0}  # nothing is known yet: in turn
    for number, cost in {3: 5, 4: 3, 5: 7, 6: 1, 7: 2}.items():
        deal.spent(number, Cost(cost, 0))
    deal.spent(7, Cost(1, 1))
    deal.settle()
    assert deal.lanes([[3], [4], [5], [6], [7]]) == {5: 0, 3: 1, 7: 1, 4: 0, 6: 1}
    assert deal.lanes([[3], [8]]) == {3: 0, 8: 1}  # a new one counts as the mean, 4
    assert deal.lanes([[6], [8]]) == {8: 0, 6: 1}
    assert deal.lanes([[3, 4], [5], [6]]) == {3: 0, 4: 0, 5: 1, 6: 1}  # 8 | 7 and 1: a bundle stays together


@settings(max_examples=50)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 3))
def test_no_deal_takes_longer_than_four_thirds_of_the_best(costs: list[int], lanes: int) -> None:
    """Graham's bound, against the best of all deals."""
    deal = Deal(lanes)
    for number, cost in enumerate(costs):
        deal.spent(number, Cost(0, cost))
    deal.settle()
    lane_of = deal.lanes([[number] for number in range(len(costs))])

    def longest(dealt: tuple[int, ...]) -> int:
        return max(sum(cost for cost, at in zip(costs, dealt, strict=True) if at == lane) for lane in range(lanes))

    best = min(longest(dealt) for dealt in product(range(lanes), repeat=len(costs)))
    assert longest(tuple(lane_of[number] for number in range(len(costs)))) <= 4 / 3 * best


def answers(*values: float) -> list[dict[str, Tensor | float]]:
    return [{"delta": torch.full((5, 3), value), "none": torch.zeros(0), "alpha": value} for value in values]


def test_what_lies_on_a_board_is_what_was_put_there() -> None:
    shelf = Shelf()
    odd: dict[str, Tensor | float] = {
        "a": torch.arange(7),
        "b": torch.eye(3).t()[1:],
        "c": torch.tensor(2.5, dtype=torch.float64),
        "d": 1,
    }
    board, placed = shelf.put([*answers(1, 2), odd])
    one, two, three = (shelf.take(board, place) for place in placed)
    assert torch.equal(one["delta"], torch.ones(5, 3))  # type: ignore[arg-type]
    assert two["alpha"] == 2
    assert two["none"].shape == (0,)  # type: ignore[union-attr]
    for name, value in odd.items():
        assert torch.equal(torch.as_tensor(three[name]), torch.as_tensor(value))
        assert torch.as_tensor(three[name]).dtype == torch.as_tensor(value).dtype
    shelf.close()


def test_boards_are_used_again_once_they_are_read() -> None:
    shelf = Shelf()
    first, _ = shelf.put(answers(1))
    second, placed = shelf.put(answers(2))
    assert first != second
    shelf.give_back(first)
    third, _ = shelf.put(answers(3))
    assert third == first
    assert torch.equal(shelf.take(second, placed[0])["delta"], torch.full((5, 3), 2.0))  # type: ignore[arg-type]
    larger, _ = shelf.put([{"x": torch.zeros(10**6)}])
    assert larger not in (first, second)
    shelf.close()


def test_a_worker_that_is_far_ahead_waits_until_something_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "ROOM", 0)
    shelf = Shelf()
    first, _ = shelf.put(answers(1))
    shelf.put(answers(2))  # two it may always have
    got: list[Board] = []
    waiting = threading.Thread(target=lambda: got.append(shelf.put(answers(3))[0]))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    shelf.give_back(first)
    waiting.join(10)
    assert got == [first]
    shelf.close()


def test_boards_for_which_memory_has_no_room_are_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with little shared memory: writing to it would be a bus error, which nobody can catch."""
    true = shelves._lengthen
    shelf = Shelf()
    memory = shelf._files[0].fileno()

    def small(file: int, start: int, length: int) -> None:
        true(file, start, length)
        if file == memory and start + length > 2**20:
            raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(shelves, "_lengthen", small)
    (first, _), (second, placed) = shelf.put(answers(1)), shelf.put([{"x": torch.arange(10.0**6)}])
    assert (first[0], second[0]) == (0, len(shelf._files) - 1)
    assert torch.equal(shelf.take(second, placed[0])["x"], torch.arange(10.0**6))  # type: ignore[arg-type]
    third, _ = shelf.put(answers(3))
    assert third[0] == 0  # what was lengthened in vain is cut off again
    shelf.close()


@pytest.mark.parametrize("kind", ["mean", "median"])
def test_an_engine_deals_by_what_its_clients_spent(kind: str) -> None:
    """Uneven clients of C-FLAG: all are known after a round, and the two heaviest are apart in the next."""
    settings = {"method": "cflag", "tasks": 1, "rounds": 2, "clients": 5, "zeta": 0.3, "epochs": 1}
    experiment = Experiment(load_config("digits", **settings, mean={"kind": kind}))
    engine = LocalEngine(experiment.host(), 2, mean=experiment.config.mean)
    session = experiment.session(engine)
    session.play(0)
    engine.deal_anew()
    session.play(1)
    engine.close()
    sizes = experiment.benchmark.sizes(0)
    first, second = sorted(sizes, key=sizes.__getitem__, reverse=True)[:2]
    assert engine._deal._last.keys() == sizes.keys()
    assert engine._lane_of[first] != engine._lane_of[second]
    assert min(engine._deal._last, key=engine._deal._last.__getitem__) == min(sizes, key=sizes.__getitem__)


def test_workers_that_are_closed_while_they_start_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SIGTERM then reaches the handler that came along with the fork, which only takes note of it.

    Nor does the first worker see its pipe end: the second has a copy of our end of it.
    """
    monkeypatch.setattr(lanes, "end_with_parent", lambda: time.sleep(0.5))
    host = Experiment(load_config("digits")).host()
    with stop_requests():
        started = [WorkerLane(host, number) for number in range(2)]
        closing = threading.Thread(target=lambda: deque(map(WorkerLane.close, started)), daemon=True)
        closing.start()
        closing.join(timeout=20)
    left = [lane for lane in started if lane.process.is_alive()]
    for lane in left:
        lane.process.kill()
    assert not left


class Relay(Finetune):
    """Client 0 answers only once client 1 has: whoever waits for the first before doing the second waits for ever."""

    second_has_answered = mp.get_context("fork").Event()

    def local_steps(self, client: Client, steps: int, **sent: Any) -> Answer:
        if client.number == 0:
            assert self.second_has_answered.wait(30), "nobody does client 1's work meanwhile"
        else:
            self.second_has_answered.set()
        return super().local_steps(client, steps, **sent)


def test_while_another_process_keeps_us_waiting_we_do_our_own_share() -> None:
    config = resolve(merge(load_raw("digits"), flatten({"clients": 2, "tasks": 1, "rounds": 1, "stack": 1})))
    experiment = Experiment(config)
    experiment.method = Relay(Finetune.Settings(), config)
    engine = LocalEngine(experiment.host(), 2)
    engine._lane_of = {0: 1, 1: 0}  # the first in the order of sums is the other process's
    experiment.session(engine).play(0)
    engine.close()


def test_what_is_made_ahead_is_bounded_stays_as_it_was_and_comes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's learner has one vector for all clients: each answer is that vector."""
    vector = torch.zeros(4)

    class Counting:
        def answers(self) -> Iterator[Reply]:
            for k in range(4):
                yield Reply({"delta": vector.fill_(k)}, 1, Cost(0, 0), {})

    here = HereLane(cast(Any, Counting()))
    monkeypatch.setattr(lanes, "ROOM", 16)
    here.send("answers")
    assert [here.work_ahead() for _ in range(4)] == [True, True, False, False]  # 16 bytes each: the second is too much
    assert [float(here.receive().answer["delta"][0]) for _ in range(2)] == [0, 1]
    assert [here.work_ahead() for _ in range(3)] == [True, True, False]
    assert [float(here.receive().answer["delta"][0]) for _ in range(2)] == [2, 3]
    assert not here.work_ahead()
    here.send("answers")
    here.work_ahead()
    here.send("answers")  # what a stop left undone is gone
    assert float(here.receive().answer["delta"][0]) == 0
    assert float(here.receive().answer["delta"][0]) == 1
