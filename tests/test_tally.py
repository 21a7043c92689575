"""The Flower server counts answers as they come: in the order of numbers, within bounded memory, and only good ones."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from cflag.conversation import Cost, Reply, RoundContext
from cflag.engines.flower.messages import Parcel, Question
from cflag.engines.flower.server import engine as flower_engine
from cflag.engines.flower.server import exchange
from cflag.engines.flower.server.answers import AnswerChecks
from cflag.engines.flower.server.backlog import Backlog
from cflag.engines.flower.server.tally import Tally
from cflag.engines.host import GlobalModel
from cflag.errors import DivergedError
from cflag.means.mean import RunningMean
from cflag.server import Server
from tests.support.grid import FakeGrid, Fleet, local, numbers

pytestmark = pytest.mark.usefixtures("no_figures")

SIZE = 5
MODEL = GlobalModel(torch.zeros(SIZE), torch.zeros(0))
QUESTION = Question("gradients", {}, MODEL, RoundContext(0, 0, 100, 10), (0, 0))
SERVER = Server(torch.zeros(SIZE), torch.zeros(0), 2, None)  # type: ignore[arg-type]


def answer(number: int, **tensors: Any) -> Parcel:
    """Return a good answer of a client, whose numbers round when they are added, or one with other tensors."""
    drawn = torch.Generator().manual_seed(number)
    head = {"position": [0, 0], "samples": 10, "numbers": {"f": number / 7}, "cost": [1, 0], "logs": {}}
    return head, tensors or {"g": torch.randn(SIZE, generator=drawn) * 10 ** (number % 5), "none": torch.zeros(0)}


class Sums:
    """What an engine does with answers, and in which order it gets them."""

    def __init__(self) -> None:
        self.mean = RunningMean()
        self.order: list[int] = []

    def add(self, number: int, reply: Reply) -> None:
        self.order.append(number)
        self.mean.add(reply.answer, 0.1, number)


def tally(backlog: Backlog, asked: Iterable[int], sums: Sums, checks: AnswerChecks | None = None) -> Tally:
    return Tally(checks or AnswerChecks(lambda *_: 10), QUESTION, SERVER, list(asked), backlog, sums.add)


def in_order(who: Iterable[int]) -> Any:
    """Return the sum of these clients' answers, one after the other."""
    sums = Sums()
    for number in sorted(who):
        head, tensors = answer(number)
        sums.add(number, Reply({**tensors, **head["numbers"]}, 10, Cost(1, 0), {}))
    return sums.mean.result()


def same_bits(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].numpy().tobytes() == other[name].numpy().tobytes() if name != "f" else one[name] == other[name]


known = AnswerChecks(lambda *_: 10)
known.vote([{"f": (), "g": (SIZE,), "none": (0,)}], QUESTION, 1)


@settings(max_examples=60, deadline=None)
@given(
    st.permutations(range(8)), st.sets(st.integers(0, 7), max_size=7), st.sampled_from([0, 50, 10**9]), st.booleans()
)
def test_any_order_gives_the_bits_of_the_clients_order(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], away: set[int], room: int, new: bool
) -> None:
    """Whoever is away, and however few answers may wait in memory."""
    sums = Sums()
    with Backlog(tmp_path_factory.getbasetemp(), room) as backlog:
        counting = tally(backlog, range(8), sums, None if new else known)
        for number in order:
            if number not in away:
                counting.hear(number, answer(number))
        good, refused = counting.settle()
        counting.finish()
    assert (good, refused) == (set(range(8)) - away, {})
    assert sums.order == sorted(good)
    same_bits(sums.mean.result(), in_order(good))


def test_an_answer_is_counted_once_those_before_it_are(tmp_path: Path) -> None:
    """Seen before, the question's answers are judged as they come; a new one's when more than half agree."""
    sums = Sums()
    with Backlog(tmp_path) as backlog:
        counting = tally(backlog, range(4), sums, known)
        for number, counted in ((1, []), (3, []), (0, [0, 1]), (2, [0, 1, 2, 3])):
            counting.hear(number, answer(number))
            assert sums.order == counted
        late = Sums()
        counting = tally(backlog, range(4), late)
        for number, counted in ((0, []), (1, []), (3, [0, 1]), (2, [0, 1, 2, 3])):
            counting.hear(number, answer(number))
            assert late.order == counted


@pytest.mark.parametrize("checks", [None, known])
def test_bad_answers_are_never_in_the_sum_and_a_later_good_one_is_in_its_place(
    checks: AnswerChecks | None, tmp_path: Path
) -> None:
    sums, infinite = Sums(), torch.full((SIZE,), float("inf"))
    with Backlog(tmp_path, room=0) as backlog:
        counting = tally(backlog, range(6), sums, checks)
        counting.hear(0, answer(0))
        counting.hear(1, answer(1, g=torch.ones(SIZE + 1), none=torch.zeros(0)))
        counting.hear(2, ({**answer(2)[0], "samples": 10**6}, answer(2)[1]))
        counting.hear(3, answer(3, g=infinite, none=torch.zeros(0)))
        counting.hear(4, answer(4))
        counting.hear(5, answer(5))
        good, refused = counting.settle()
        assert good == {0, 4, 5}
        assert refused[1].startswith("refused: it answers {'g': (6,)")
        assert refused[2].startswith("refused: it counts 1000000 samples; it has 10")
        assert refused[3] == "refused: its answer is not finite"
        assert sums.order == [0], "client 1 may be asked again, and comes before 4"
        counting.begin(3)
        counting.hear(1, answer(1))
        assert counting.settle() == ({1}, {})
        counting.finish()
    assert sums.order == [0, 1, 4, 5]
    same_bits(sums.mean.result(), in_order([0, 1, 4, 5]))


def test_where_nobody_is_finite_training_diverged(tmp_path: Path) -> None:
    with Backlog(tmp_path) as backlog:
        counting = tally(backlog, range(2), Sums(), known)
        for number in range(2):
            counting.hear(number, answer(number, g=torch.full((SIZE,), float("nan")), none=torch.zeros(0)))
        with pytest.raises(DivergedError, match="client 1's g is not finite"):
            counting.settle()


def test_a_backlog_holds_no_more_in_memory_than_it_may_and_leaves_no_file(tmp_path: Path) -> None:
    replies = {n: Reply({"g": torch.randn(100), "f": 1.0}, 10, Cost(1, 0), {}) for n in range(5)}
    with Backlog(tmp_path, room=900) as backlog:
        for number, reply in replies.items():
            backlog.put(number, reply)
        assert sorted(backlog._here) == [0, 1]
        assert not list(tmp_path.iterdir()), "the file has no name"
        for number in (3, 0, 4, 2, 1):
            assert torch.equal(backlog.take(number).answer["g"], replies[number].answer["g"])  # type: ignore[arg-type]
            assert number not in backlog
        assert backlog._file is not None
        assert backlog._file.seek(0, 2) == 0, "what was taken out takes no room"


class Shuffling(FakeGrid):
    """Hands replies out in any order, some only at a later look."""

    drawn = random.Random(3)
    most = 0

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        wanted = [key for key in ids if key in self.replies and self.drawn.random() < 0.6]
        self.most = max(self.most, sum(self.replies[key].metadata.message_type == "train" for key in wanted))
        self.drawn.shuffle(wanted)
        return super().pull_messages(wanted)


@pytest.mark.parametrize("room", [0, 2**28])
def test_a_fleet_whose_answers_come_in_any_order_has_the_local_engines_bits(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where none may wait in memory and they are fetched one at a time."""
    monkeypatch.setattr(flower_engine, "ROOM", room)
    monkeypatch.setattr(exchange, "AT_ONCE", max(1, room))
    fleet = Fleet(tmp_path, clients=5, min_clients=5, samples_per_class=40, deadline=5.0)
    fleet.grid = grid = Shuffling(fleet.nodes)
    fleet.run()
    local(tmp_path, clients=5, samples_per_class=40)
    assert numbers(fleet.path) == numbers(tmp_path / "local")
    assert grid.most == 1 if not room else grid.most > 1
