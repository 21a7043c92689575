"""Questions around a task that some clients missed; a client answers them, in order, before anything later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cflag.engines.flower.messages import Parcel, Position, Question
from cflag.engines.flower.server.exchange import Exchange
from cflag.engines.host import GlobalModel


@dataclass
class MissedQuestion:
    """A question as it was asked, and the clients that still have to answer it."""

    question: Question
    clients: set[int]


class Missed:
    """Keeps the missed questions, asks them again, and puts them into checkpoints."""

    def __init__(self, exchange: Exchange, say: Callable[[str], None]) -> None:
        self.exchange = exchange
        self.say = say
        self.questions: list[MissedQuestion] = []
        self._earliest: dict[int, Position] = {}

    def add(self, question: Question, clients: set[int]) -> None:
        """Keep a question for clients that missed it, with copies of its tensors: the model goes on changing."""
        if clients:
            sent = {k: v.clone() if isinstance(v, Tensor) else v for k, v in question.sent.items()}
            model = GlobalModel(question.model.params.clone(), question.model.buffers.clone())
            still = Question(question.name, sent, model, question.context, question.position)
            self.questions.append(MissedQuestion(still, clients))

    def catch_up(self, present: Iterable[int]) -> dict[int, str]:
        """Ask clients what they missed; return why some did not answer."""
        failed: dict[int, str] = {}
        for number in sorted(present):
            for missed in [m for m in self.questions if number in m.clients]:
                question = missed.question
                heard: dict[int, Parcel] = {}
                why = self.exchange.ask(question, [number], heard.__setitem__)
                if number not in heard:
                    failed |= why
                    break
                missed.clients.discard(number)
                self.say(f"client {number} caught up on task {question.context.task + 1} ('{question.name}')")
        self.questions = [m for m in self.questions if m.clients]
        return failed

    def drop(self, number: int) -> None:
        """A client need not catch up any more."""
        for missed in self.questions:
            missed.clients.discard(number)
        self.questions = [m for m in self.questions if m.clients]

    def kept(self) -> dict[str, Any]:
        """Return what a restarted server must know, for the checkpoint."""
        self._set_floors()
        heads = [{**m.question.head(), "clients": sorted(m.clients)} for m in self.questions]
        kept: dict[str, Any] = {"missed": heads}
        for k, missed in enumerate(self.questions):
            kept.update({f"missed.{k}.{name}": tensor for name, tensor in missed.question.tensors().items()})
        return kept

    def take_back(self, kept: Mapping[str, Any]) -> None:
        """Take back what `kept` returned."""
        self.questions = []
        for k, head in enumerate(kept.get("missed", [])):
            prefix = f"missed.{k}."
            tensors = {name.removeprefix(prefix): v for name, v in kept.items() if name.startswith(prefix)}
            self.questions.append(MissedQuestion(Question.read(head, tensors), set(head["clients"])))
        self._set_floors()

    def _set_floors(self) -> None:
        """A server that restarts from this checkpoint, or the one before, asks the first missed question again."""
        earliest: dict[int, Position] = {}
        for missed in self.questions:
            for number in missed.clients:
                earliest[number] = min(missed.question.position, earliest.get(number, missed.question.position))
        before, self._earliest = self._earliest, earliest
        self.exchange.floors = before | {n: min(at, before.get(n, at)) for n, at in earliest.items()}
