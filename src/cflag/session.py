"""A session: a method, the engine that carries its questions, and the server. It is what drives rounds, everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cflag.account import Counts
from cflag.conversation import Ask, Conversation, Moment
from cflag.data.schedules.base import Plan
from cflag.engines.engine import Engine
from cflag.methods.base import Method
from cflag.rng import stream
from cflag.server import Server


class Session:
    """Goes through tasks and rounds: begin_task → round, round, ... → end_task."""

    def __init__(
        self, method: Method, engine: Engine, server: Server, cohort_size: int | None = None, tail: int = 0
    ) -> None:
        self.method = method
        self.engine = engine
        self.server = server
        self.cohort_size = cohort_size
        """How many clients take part in a round, drawn anew for each; None means all."""
        self.tail = tail
        """How many of a task's last rounds have their models averaged at its end."""
        self.due: list[int] | None = None
        """The clients that are in a task in this round; None means all."""

    def play(self, done: int) -> None:
        """Play the round after `done` finished ones, with what comes before and after a task for those who change."""
        self.enter(*divmod(done, self.server.rounds))
        noticed = self.preview() if self.server.streams else []
        if begins := self._beginning():
            self.begin_task(begins)
        self.round()
        if self.server.round >= self.server.rounds - self.tail:
            self.server.add_to_tail()
        told = self.engine.schedule.told
        if leaves := self._changing(self.plan.last) if told else noticed:
            self.server.take_tail()
            self.end_task(leaves)
            if not told:
                self.begin_task(leaves)  # what comes next has begun already, as far as they can tell

    def enter(self, task: int, round_: int = 0) -> None:
        """Go to a round of a task, by the server's clock."""
        server, schedule = self.server, self.engine.schedule
        server.task, server.round = task, round_
        server.streams, server.one_pass = schedule.streams, schedule.one_pass
        if not server.sizes or round_ == 0 or not schedule.together:
            server.sizes = self.engine.sizes(server.done)
        self.due = self.engine.due(server.done)
        self._look_around()

    def _look_around(self) -> None:
        """Find out which tasks were begun and left, and by whom; nothing to tell where all are in the same task.

        Without boundaries nothing is ever left: what was there in an earlier round is the past, which memories hold.
        Where samples pass by, memories are those of clients that were drawn before.
        """
        server = self.server
        server.own_moment, server.pasts = None, frozenset()
        if self.due is None and self.engine.schedule.together:
            return
        plan, done, has = self.plan, server.done, self.engine.has()
        begun = (plan.first >= 0) & (plan.first <= done) & has
        ends = plan.last if self.engine.schedule.told else plan.first
        left = (ends >= 0) & (ends < done) & has
        pasts: set[int] = set(np.flatnonzero(left.any(1)).tolist())
        server.pasts = frozenset(pasts & server.passed_by if server.streams else pasts)
        server.own_moment = Moment(_tasks(begun), _tasks(left))

    def begin_task(self, whom: Sequence[int] = ()) -> None:
        """Let the method prepare a task, with those who begin one, or with everyone who is there."""
        self._around(self.method.begin_task(self.server), whom)

    def round(self) -> None:
        """Let the method play one round, with the clients of its cohort."""
        cohort, server = self.cohort(), self.server
        present = self.engine.everyone if cohort is None else cohort
        if not present:
            return
        if server.own_moment is not None:
            mixed = 0 < sum(number in server.pasts for number in present) < len(present)
            server.own_moment = replace(server.own_moment, mixed=mixed)
        self.engine.converse(self.method.round(server), server, cohort)
        if server.streams:
            self._around(self.method.pass_by(server), present)
            server.passed_by.update(present)

    def end_task(self, whom: Sequence[int] = ()) -> None:
        """Let the method finish a task, with those who leave one, or with everyone: memories are filled here."""
        self._around(self.method.end_task(self.server), whom)

    def preview(self) -> list[int]:
        """Let all who take part test the model on what they are about to learn; return who noticed a drift there.

        Both are told client by client, in logs, since a mean would not say who. So there is none of it where nobody may
        know of single clients. It is measurement and not counted. What a method has at hand for its answers will do:
        to prepare more it would have to look at samples that are still to be tested.
        """
        server, engine, cohort = self.server, self.engine, self.cohort()
        if engine.warden is not None or not engine.hears_logs or cohort == []:
            return []
        with engine.uncounted():
            engine.ask(Ask(self.method.preview, **self.method.eval_payload(server)), server, cohort)
            logs = engine.account.logs
        tested = {number: min(_count(log, "tested"), server.sizes[number]) for number, log in logs.items()}
        right = sum(min(_count(logs[number], "right"), most) for number, most in tested.items())
        engine.account.prequential = (right, sum(tested.values()))
        detected = engine.schedule.settings.boundaries == "detected"
        engine.account.noticed = sorted(n for n, log in logs.items() if detected and _count(log, "noticed"))
        return engine.account.noticed

    def _beginning(self) -> list[int]:
        """Return the clients that begin a task; without boundaries, those for whom everything begins."""
        if self.engine.schedule.told:
            return self._changing(self.plan.first)
        first = np.where((self.plan.first >= 0) & self.engine.has(), self.plan.first, self.plan.total)
        return self._changing(first.min(1, keepdims=True))

    def _changing(self, rounds: NDArray[np.int64]) -> list[int]:
        """Return the clients, of those who are there, whose first or last round of a task this is."""
        here: list[int] = np.flatnonzero((rounds == self.server.done).any(1)).tolist()
        due = None if self.due is None else set(self.due)
        return here if due is None else [number for number in here if number in due]

    def _around(self, conversation: Conversation, whom: Sequence[int]) -> None:
        """Carry a conversation with some clients, or with everyone who is there."""
        server, present = self.server, self.engine.everyone if self.due is None else self.due
        if not whom or len(whom) == len(present):
            self.engine.converse_around(conversation, server, self.due)
            return
        server.part = sum(server.sizes.get(number, 0) for number in whom) / sum(server.sizes.values())
        self.engine.converse_around(conversation, server, whom)
        server.part = 1.0

    def prepare_eval(self) -> None:
        """Let the method ask all who ever had a task, and are not gone, for what its answers need beside the model."""
        server, engine = self.server, self.engine
        if self.due is None:
            engine.converse(self.method.before_eval(server), server)
            return
        present, latest = server.sizes, self.plan.latest(server.done, engine.has())
        there, sizes = np.flatnonzero(latest >= 0), engine.all_sizes()
        known = {c: int(sizes[c, latest[c]]) for c in there.tolist()}
        server.sizes = {client: size for client, size in known.items() if size}
        engine.converse(self.method.before_eval(server), server, sorted(server.sizes))
        server.sizes = present

    def evaluate(self, tasks: Sequence[int], counted: bool = True) -> Counts:
        """Test the global model on every client's held-out samples of these tasks, the method's own way.

        What the method asks for it is counted as cost, unless the test is for a curve alone.
        """
        with nullcontext() if counted else self.engine.uncounted():
            self.prepare_eval()
        return self.engine.test(self.server, tasks, self.method.eval_payload(self.server))

    def own_tasks(self) -> Sequence[int]:
        """Return the task of every client in this round, where they have clocks of their own."""
        return () if self.engine.schedule.together else self.plan.now(self.server.done).tolist()

    @property
    def plan(self) -> Plan:
        """Every client's clock."""
        return self.engine.schedule.plan

    @property
    def is_milestone(self) -> bool:
        """Whether some client leaves a task after this round."""
        return self.server.done in self.plan.ends

    def cohort(self) -> Sequence[int] | None:
        """Draw the clients that take part in a round, or None where everyone does; others stand in for those away."""
        everyone, count = self.due, self.cohort_size
        clients = len(self.engine.everyone) if everyone is None else len(everyone)
        if count is None or count >= clients:
            return everyone
        rng, away = stream(self.server.seed, "cohort", self.server.task, self.server.round), self.engine.away()
        drawn = rng.choice(clients, size=count, replace=False).tolist()
        if everyone is not None:
            away = frozenset(place for place, number in enumerate(everyone) if number in away)
        spare = rng.permutation([n for n in range(clients) if n not in drawn]).tolist() if away else []
        present = [number for number in [*drawn, *spare] if number not in away]
        absent = [number for number in drawn if number in away]  # where too few are here, the engine waits for them
        chosen = sorted([*present, *absent][:count])
        return chosen if everyone is None else [everyone[place] for place in chosen]


def _tasks(by_client: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the tasks that any client has."""
    return tuple(int(task) for task in np.flatnonzero(by_client.any(0)))


def _count(log: Mapping[str, float | str], name: str) -> int:
    """Return a number that a client logged; nothing where it is none."""
    value = log.get(name, 0)
    return max(0, int(value)) if isinstance(value, int | float) else 0
