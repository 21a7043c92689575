"""The exchange: a question goes to several clients, and their answers come back, or the reason why one did not."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Message, RecordDict

from cflag.engines.flower.messages import Bundle, GarbageError, Parcel, Position, Question, let_go, pack, unpack
from cflag.engines.flower.server.post import NO_ANSWER, Letter, Post, failures
from cflag.engines.flower.server.roll import HELLO, Roll
from cflag.engines.flower.trail import read_trail, stamp
from cflag.errors import one_line
from cflag.privacy.accounting import BudgetError

ROOM = 2**26
"""Bytes an answer may have beyond eight times the size of the question's tensors."""
AT_ONCE = 2**28
"""Bytes of answers, each as large as the question, that are fetched at a time; others wait at the SuperLink."""
TRIALS = 3
"""How often a question is sent at most: once, once more where it got lost, once more where tensors were lost."""


class Exchange:
    """Sends questions over the wire; a tensor that a client still holds is not sent to it again."""

    def __init__(self, post: Post, roll: Roll, experiment: str, deadline: float) -> None:
        self.post = post
        self.roll = roll
        self.experiment = experiment
        self.deadline = deadline
        self.attempt = secrets.token_hex(8)
        """This start of the server: a client that hears of a new one goes back to the server's checkpoint."""
        self.floors: dict[int, Position] = {}
        """The earliest question that a restarted server may ask a client again, where it is an old one."""
        self._holds: dict[int, frozenset[str]] = {}

    def ask(
        self,
        question: Question,
        numbers: Sequence[int],
        hear: Callable[[int, Parcel], None],
        tasks: Sequence[int] | None = None,
    ) -> dict[int, str]:
        """Put one question, or with `tasks` a test, to clients; hand over what is heard, return why others were not.

        A client that is silent until the deadline and then says hello lost the question, or its answer got lost: it is
        asked once more. One that lost its copy of a tensor is sent it again.
        """
        kind, extra = ("train", {}) if tasks is None else ("evaluate", {"tasks": list(tasks)})
        bundle, head = Bundle(question.tensors()), {**question.head(), **extra}
        at_once = max(1, AT_ONCE // max(1, sum(tensor.nbytes for tensor in bundle.tensors.values())))
        heard: set[int] = set()
        why: dict[int, str] = {}
        left = list(numbers)
        for trial in range(TRIALS):
            letters = self._letters(kind, head, bundle, left)
            answered: set[int] = set()
            again: list[int] = []
            for number, message in self.post.exchange(letters, self.deadline, at_once):
                answered.add(number)
                try:
                    parcel = self._open(number, message, bundle)
                    if tasks is None:
                        self._follow(number, question.position, parcel[0])
                except GarbageError as error:
                    why[number] = str(error)
                    continue
                finally:
                    let_go(message)
                if parcel[0].get("lacks"):
                    self.forget(number)
                    again.append(number)
                else:
                    heard.add(number)
                    hear(number, parcel)
                del parcel  # or it would be held while the next one comes
            silent = [number for number in left if number not in answered]
            left = again + ([] if trial else self._alive(silent))
            if not left:
                break
        why.update(failures(numbers, heard | set(why), f"{NO_ANSWER} within {self.deadline:g} s"))
        return why

    def address(self, head: Mapping[str, Any], bundle: Bundle) -> dict[str, Any]:
        """Return a question's head with what says where it belongs."""
        floors = {str(number): list(position) for number, position in sorted(self.floors.items())}
        where = {"experiment": self.experiment, "attempt": self.attempt, "floors": floors}
        return {**head, "tensors": bundle.digests, **where}

    def forget(self, number: int) -> None:
        """Assume that a client holds no tensor any more."""
        self._holds.pop(number, None)

    def _letters(self, kind: str, head: Mapping[str, Any], bundle: Bundle, numbers: Sequence[int]) -> dict[int, Letter]:
        """Write the letters; clients that hold the same tensors get the same content, which Flower stores once."""
        whole = self.address(head, bundle)
        contents: dict[frozenset[str], RecordDict] = {}
        letters = {}
        for number in numbers:
            needs = bundle.without(self._holds.get(number, frozenset()))
            key = frozenset(needs)
            if key not in contents:
                contents[key] = pack(whole, needs)
            letters[number] = Letter(self.roll.members[number].node, kind, contents[key])
        return letters

    def _open(self, number: int, message: Message, bundle: Bundle) -> Parcel:
        """Read a reply and check that it is this client's; a node that Flower lost counts as silent."""
        if message.has_error():
            raise GarbageError(f"{NO_ANSWER}: {message.error.reason}")
        limit = 8 * sum(tensor.nbytes for tensor in bundle.tensors.values()) + ROOM
        try:
            head, tensors = unpack(message.content, limit)
        except GarbageError as error:
            raise GarbageError(f"refused: {error}") from None
        if head.get("experiment") != self.experiment:
            raise GarbageError(f"refused: it answers for experiment {str(head.get('experiment'))[:40]}")
        if "spent" in head:
            raise BudgetError(one_line(head["spent"]))
        if "error" in head:
            raise GarbageError(f"{NO_ANSWER}: {head['error']}")
        if head.get("number") != number:
            raise GarbageError(f"refused: it answers as client {str(head.get('number'))[:20]}")
        holds = head.get("holds", [])
        self._holds[number] = frozenset(map(str, holds)) if isinstance(holds, list) else frozenset()
        return head, tensors

    def _follow(self, number: int, position: Position, head: Mapping[str, Any]) -> None:
        """Refuse the answer of a client whose state is not the one it had; under secure aggregation none is told."""
        if head.get("lacks") or ("trail" not in head and number not in self.roll.register.answered):
            return
        try:
            why = self.roll.register.follow(number, stamp(position), read_trail(head.get("trail")))
        except GarbageError as error:
            why = str(error)
        if why:
            self.roll.distrust(number, why)
            raise GarbageError(f"refused: {why}")

    def _alive(self, silent: Sequence[int]) -> list[int]:
        """Return which silent clients are idle, so that the question or its answer must have been lost."""
        connected = self.post.nodes()
        letters = {
            number: Letter(self.roll.members[number].node, "query", self.roll.hello)
            for number in silent
            if self.roll.members[number].node in connected
        }
        return sorted(number for number, message in self.post.exchange(letters, min(HELLO, 10.0)) if message)
