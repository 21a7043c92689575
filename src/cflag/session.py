"""A session: a method, the engine that carries its questions, and the server. It is what drives rounds, everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from cflag.account import Counts
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

    def play(self, done: int) -> None:
        """Play the round after `done` finished ones, with what comes before a task's first and after its last round."""
        self.enter(*divmod(done, self.server.rounds))
        if self.server.round == 0:
            self.begin_task()
        self.round()
        if self.server.round >= self.server.rounds - self.tail:
            self.server.add_to_tail()
        if self.is_last_round:
            self.server.take_tail()
            self.end_task()

    def enter(self, task: int, round_: int = 0) -> None:
        """Go to a round of a task."""
        server = self.server
        if not server.sizes or round_ == 0:
            server.sizes = self.engine.sizes(task)
        server.task, server.round = task, round_

    def begin_task(self) -> None:
        """Let the method prepare a task, with everyone."""
        self.engine.converse_around(self.method.begin_task(self.server), self.server)

    def round(self) -> None:
        """Let the method play one round, with the clients of its cohort."""
        self.engine.converse(self.method.round(self.server), self.server, self.cohort())

    def end_task(self) -> None:
        """Let the method finish a task, with everyone: memories are filled here."""
        self.engine.converse_around(self.method.end_task(self.server), self.server)

    def prepare_eval(self) -> None:
        """Let the method ask everyone for what its answers need beside the model."""
        self.engine.converse(self.method.before_eval(self.server), self.server)

    def evaluate(self, tasks: Sequence[int], counted: bool = True) -> Counts:
        """Test the global model on every client's held-out samples of these tasks, the method's own way.

        What the method asks for it is counted as cost, unless the test is for a curve alone.
        """
        with nullcontext() if counted else self.engine.uncounted():
            self.prepare_eval()
        return self.engine.test(self.server, tasks, self.method.eval_payload(self.server))

    @property
    def is_last_round(self) -> bool:
        """Whether this is a task's last round."""
        return self.server.round == self.server.rounds - 1

    def cohort(self) -> Sequence[int] | None:
        """Draw the clients that take part in a round, or None where everyone does; others stand in for those away."""
        clients, count = len(self.engine.everyone), self.cohort_size
        if count is None or count == clients:
            return None
        rng, away = stream(self.server.seed, "cohort", self.server.task, self.server.round), self.engine.away()
        drawn = rng.choice(clients, size=count, replace=False).tolist()
        spare = rng.permutation([n for n in range(clients) if n not in drawn]).tolist() if away else []
        present = [number for number in [*drawn, *spare] if number not in away]
        absent = [number for number in drawn if number in away]  # where too few are here, the engine waits for them
        return sorted([*present, *absent][:count])
