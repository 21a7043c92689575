"""The tally of one question: answers are checked as they come, and counted in the order of the clients' numbers.

Sums of floating-point numbers depend on their order, and answers come in any. So an answer is counted when all those
with smaller numbers are; until then it waits (`Backlog`). A client that is silent, or whose answer is refused, may be
asked again while too few have answered, so those after it wait until the question is over. Nothing is counted before it
is checked, and a refused answer never was in the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cflag.conversation import Reply, shapes
from cflag.engines.finite import check_finite
from cflag.engines.flower.messages import Parcel, Question
from cflag.engines.flower.server.answers import FAULTS, AnswerChecks, Shapes
from cflag.engines.flower.server.backlog import Backlog
from cflag.errors import DivergedError
from cflag.server import Server


class Tally:
    """Takes answers in any order and hands them to `count` in that of the clients asked."""

    def __init__(
        self,
        checks: AnswerChecks,
        question: Question,
        server: Server,
        asked: Sequence[int],
        backlog: Backlog,
        count: Callable[[int, Reply], None],
    ) -> None:
        self.checks = checks
        self.question = question
        self.server = server
        self.backlog = backlog
        self.count = count
        self.good: set[int] = set()
        """Whose answers can be used."""
        self._turns: Iterator[int] = iter(sorted(asked))
        self._next: int | None = next(self._turns, None)
        self.begin(len(asked))

    def begin(self, asked: int) -> None:
        """So many clients are asked now: all at first, then those without a good answer."""
        self._asked = asked
        self._unreadable: dict[int, str] = {}
        self._misshapen: dict[int, str] = {}
        self._infinite: dict[int, DivergedError] = {}
        self._unjudged: dict[int, tuple[Shapes, DivergedError | None]] = {}
        self._found: set[int] = set()

    def hear(self, number: int, parcel: Parcel) -> None:
        """Take in an answer; once it is known what answers look like, it is judged at once."""
        try:
            reply = self.checks.read(number, parcel, self.question, self.server)
        except FAULTS as error:
            self._unreadable[number] = f"refused: {error}"
            return
        self._unjudged[number] = shapes(reply.answer), self._diverged(number, reply)
        self.backlog.put(number, reply)
        expected = self.checks.expected(self.question)
        if expected is None and 2 * len(self._unjudged) > self._asked:  # more than half may agree already
            self._vote()
            expected = self.checks.expected(self.question)
        if expected is not None:
            self._judge(expected)

    def _vote(self) -> Shapes:
        return self.checks.vote([its for its, _ in self._unjudged.values()], self.question, self._asked)

    def _diverged(self, number: int, reply: Reply) -> DivergedError | None:
        try:
            check_finite(reply, number, self.question.name, (self.server.task, self.server.round))
        except DivergedError as error:
            return error
        return None

    def _judge(self, expected: Shapes) -> None:
        for number, (its, diverged) in self._unjudged.items():
            if its != expected:
                self._misshapen[number] = f"refused: it answers {str(its)[:200]}, expected {expected}"
            elif diverged is not None:
                self._infinite[number] = diverged
            else:
                self._found.add(number)
                continue
            self.backlog.take(number)
        self.good |= self._found
        self._unjudged.clear()
        while self._next in self.good:
            self._count()

    def _count(self) -> None:
        number = self._next
        assert number is not None
        if number in self.backlog:
            self.count(number, self.backlog.take(number))
        self._next = next(self._turns, None)

    def settle(self) -> tuple[set[int], dict[int, str]]:
        """Return whose answers since `begin` can be used, and why those of others cannot.

        If nobody's numbers are finite, training diverged.
        """
        if self._unjudged:
            self._judge(self._vote())
        if self._infinite and not self._found:
            raise list(self._infinite.values())[-1]
        infinite = dict.fromkeys(self._infinite, "refused: its answer is not finite")
        return self._found, {**self._unreadable, **self._misshapen, **infinite}

    def finish(self) -> None:
        """Count what still waits: those whom it waits for will not answer any more."""
        while self._next is not None:
            self._count()
