"""The engine that carries conversations over Flower, to clients that may be slow, away, or wrong.

Answers are summed in the order of the clients' numbers, as in every engine, so with all clients there the numbers are
those of the local engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from cflag import registry
from cflag.account import Counts
from cflag.config import Config
from cflag.conversation import Ask, Conversation, Mean, Reply, RoundContext, Value
from cflag.data.schedules.base import make_schedule
from cflag.data.spec import Spec
from cflag.engines.engine import Engine, Total
from cflag.engines.flower.messages import Parcel, Position, Question
from cflag.engines.flower.server.answers import FAULTS, AnswerChecks, checked_counts
from cflag.engines.flower.server.attendance import Attendance
from cflag.engines.flower.server.backlog import ROOM, Backlog
from cflag.engines.flower.server.exchange import Exchange
from cflag.engines.flower.server.missed import Missed
from cflag.engines.flower.server.post import Post
from cflag.engines.flower.server.register import Register
from cflag.engines.flower.server.roll import Roll
from cflag.engines.flower.server.tally import Tally
from cflag.engines.host import GlobalModel
from cflag.problems.base import find
from cflag.server import Server


class FlowerEngine(Engine):
    """Carries conversations between one server and the clients behind Flower's grid."""

    def __init__(
        self, grid: Grid, config: Config, experiment: str, say: Callable[[str], None], register: Register
    ) -> None:
        super().__init__(make_schedule(config), config.mean, registry.get("method", config.method).ratios)
        self.config = config
        self.post = Post(grid)
        self.roll = Roll(self.post, experiment, config, say, register, self.schedule)
        self.exchange = Exchange(self.post, self.roll, experiment, config.deadline)
        self.missed = Missed(self.exchange, say)
        self.attendance = Attendance(
            self.roll, self.exchange, self.missed, config, say, lambda why: self.account.missing.update(why)
        )
        self.checks = AnswerChecks(self.size_in)
        self.clock = Clock()
        self.problem = find(config.problem)
        self.spec: Spec
        """Of the benchmark that clients agree on."""
        self._around = False

    def gather(self, done: int) -> Spec:
        """Wait for the clients that have begun after so many rounds; return the spec of their benchmark."""
        self.spec = self.roll.gather(done)
        return self.spec

    def away(self) -> frozenset[int]:
        """Return the clients that cannot be asked at present."""
        self.roll.look()
        return frozenset(self.everyone) - self.roll.present

    def all_sizes(self) -> NDArray[np.int64]:
        """Return how many samples clients say they have of tasks; 0 for one that never was here."""
        sizes = np.zeros((len(self.everyone), self.schedule.frame.tasks), np.int64)
        for number, member in self.roll.members.items():
            sizes[number] = member.sizes
        return sizes

    def size_in(self, number: int, context: RoundContext) -> int:
        """Return how many samples a client, by what it says of its tasks, has in a round."""
        done = context.task * self.config.rounds + context.round
        has = np.array(self.roll.sizes[number]) > 0
        task = context.task if context.own is None else self.schedule.plan.task(number, done, has)
        return self.schedule.size(number, task, self.roll.size(number, task), done)

    def has(self) -> NDArray[np.bool_]:
        """Return which clients have samples of which tasks; of those who never were here nobody knows better."""
        has = np.ones((len(self.everyone), self.schedule.frame.tasks), np.bool_)
        for number, sizes in self.roll.sizes.items():
            has[number] = np.array(sizes) > 0
        return has

    def converse_around(self, conversation: Conversation, server: Server, cohort: Sequence[int] | None = None) -> None:
        """Carry a conversation before or after a task; a client that misses it will catch up."""
        self._around = True
        super().converse_around(conversation, server, cohort)
        self._around = False

    def ask(self, ask: Ask, server: Server, cohort: Sequence[int] | None = None) -> Mean:
        """Put a question to the clients of a cohort that are here; return the weighted mean of the good answers."""
        numbers = list(self.everyone if cohort is None else cohort)
        position = self.clock.next(server)
        self.attendance.see_off(self.schedule.gone(server.done))
        needed = min(max(self.config.min_clients, self.kind.least(self.options)), len(numbers))
        self.attendance.wait_for(needed, set(numbers))
        self._count_in(numbers, server)
        asked = [number for number in numbers if number in self.roll.present and number in server.sizes]
        for number in numbers:
            if number not in self.roll.present:
                self.account.missing.setdefault(number, self.roll.why_away(number))
        context = self.context(server, asked)
        model = GlobalModel(server.params, server.buffers)
        question = Question(ask.question, ask.sent, model, context, position)
        self.count_down(ask, server, asked)
        mean, heard = self.collect(question, asked, needed, server)
        if self._around:
            self.missed.add(question, set(numbers) - heard)
        return mean

    def _count_in(self, numbers: Sequence[int], server: Server) -> None:
        """Count in who came since the round began, unless it turns out to have no samples, and leave out who left."""
        for number in set(server.sizes) - set(self.roll.members):  # was expelled
            del server.sizes[number]
        came = self.roll.present.intersection(numbers) - set(server.sizes)
        found = self.sizes(server.done) if came else {}
        server.sizes.update({number: found[number] for number in sorted(came) if number in found})

    def collect(self, question: Question, asked: Sequence[int], needed: int, server: Server) -> tuple[Mean, set[int]]:
        """Return the mean answer to a question, and whose answers are in it; a repeated question is answered once."""

        one_by_one = not (self.kind.needs_each or self.options.outlier or self.options.max_share < 1)
        total, held = Total(self, question.context, asked), dict[int, Reply]()
        count = total.add if one_by_one else held.__setitem__
        with Backlog(self.roll.register.run, ROOM if one_by_one else inf) as backlog:
            tally = Tally(self.checks, question, server, asked, backlog, count)

            def once(left: Sequence[int]) -> dict[int, bool]:
                present = [number for number in left if number in self.roll.present]
                tally.begin(len(left))
                why = self.exchange.ask(question, present, tally.hear)
                good, refused = tally.settle()
                self.attendance.note({**why, **refused})
                return dict.fromkeys(good, True)

            self.attendance.ask_until_enough(f"question '{question.name}'", asked, needed, once)
            tally.finish()
        return total.result() if one_by_one else self.mean_of(held, question.context), tally.good

    def refuse(self, why: Mapping[int, str]) -> None:
        """Refuse answers like any others that cannot be used; they count as heard, so nobody can hold up a run so."""
        self.attendance.note(why)

    def evaluate(self, server: Server, tasks: Sequence[int], sent: Mapping[str, Value | None]) -> Counts:
        """Let every client that is here test the global model on its own held-out samples of these tasks."""
        question, needed = question_of_test(server, sent, self.clock.now), self.config.min_clients

        def once(left: Sequence[int]) -> dict[int, Tensor]:
            present = [number for number in left if number in self.roll.present]
            heard: dict[int, Parcel] = {}
            why = self.exchange.ask(question, present, heard.__setitem__, tasks)
            counts = {}
            for number, (head, _) in heard.items():
                try:
                    sizes = [self.roll.members[number].test_sizes[t] for t in tasks]
                    counts[number] = checked_counts(head["counts"], sizes, self.problem, self.spec.classes)
                except FAULTS as error:
                    why[number] = f"refused: {error}"
            self.attendance.note(why)
            return counts

        testers = self.testers(server)
        needed = min(needed, len(testers))
        self.attendance.wait_for(needed, set(testers))
        return self.placed(self.attendance.ask_until_enough("the test", testers, needed, once), tasks)

    def kept(self) -> dict[str, Any]:
        """Return the questions that some clients still have to catch up on, and who the clients are."""
        return {**self.missed.kept(), **self.roll.kept()}

    def take_back(self, kept: Mapping[str, Any]) -> None:
        """Take back what `kept` returned."""
        self.missed.take_back(kept)
        self.roll.take_back(kept)


class Clock:
    """Counts questions, so that each has a position of its own."""

    def __init__(self) -> None:
        self.now: Position = (-1, 0)

    def next(self, server: Server) -> Position:
        """Return the position of the next question: the rounds finished before it, and the questions since then."""
        done = server.task * server.rounds + server.round
        self.now = (done, self.now[1] + 1) if self.now[0] == done else (done, 0)
        return self.now


def question_of_test(server: Server, sent: Mapping[str, Value | None], now: Position) -> Question:
    """Return the question that carries a test: it has no name, and changes no client."""
    given = {name: value for name, value in sent.items() if value is not None}
    model = GlobalModel(server.params, server.buffers)
    return Question("", given, model, RoundContext(server.task, server.round, 0, 0, server.own_moment), now)
