"""The engine that carries conversations over Flower, to clients that may be slow, away, or wrong.

Answers are summed in the order of the clients' numbers, as in every engine, so with all clients there the numbers are
those of the local engine.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from cflag import process
from cflag.account import Counts
from cflag.config import Config
from cflag.conversation import Ask, Conversation, Mean, Reply, RoundContext, Value
from cflag.data.spec import Spec
from cflag.engines.engine import Engine, RunningMean, check_finite
from cflag.engines.flower.messages import Bundle, GarbageError, Position, Question, pack, unpack
from cflag.engines.flower.server.answers import FAULTS, checked_counts, read_reply
from cflag.engines.flower.server.post import NO_ANSWER, POLL, Letter, Post, failures
from cflag.engines.flower.server.roll import HELLO, Roll, shapes
from cflag.engines.host import GlobalModel
from cflag.errors import CflagError, DivergedError
from cflag.server import Server

ROOM = 2**26
"""Bytes an answer may have beside eight times the model."""


@dataclass
class Missed:
    """A question around a task that some clients did not hear; they answer it before anything later."""

    question: Question
    clients: set[int]


class FlowerEngine(Engine):
    """Carries conversations between one server and the clients behind Flower's grid."""

    def __init__(
        self,
        grid: Grid,
        config: Config,
        experiment: str,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(config.clients)
        self.config = config
        self.experiment = experiment
        self.attempt = secrets.token_hex(8)
        self.say = say
        self.post = Post(grid)
        self.roll = Roll(self.post, experiment, config, say)
        self.missed: list[Missed] = []
        self._holds: dict[int, frozenset[str]] = {}
        self._shapes: dict[tuple[str, int], dict[str, tuple[int, ...]]] = {}
        self._position: Position = (-1, 0)
        self._lasting = False
        self._floors: dict[int, Position] = {}

    def gather(self) -> Spec:
        """Wait for the clients; return the spec of their benchmark."""
        return self.roll.gather()

    def away(self) -> frozenset[int]:
        """Return the clients that cannot be asked at present."""
        self.roll.look()
        return frozenset(self.everyone) - self.roll.present

    def sizes(self, task: int) -> dict[int, int]:
        """Return how many samples each client that ever was here has of a task."""
        return {number: self.roll.size(number, task) for number in sorted(self.roll.members)}

    def converse_around(self, conversation: Conversation, server: Server) -> None:
        """Carry a conversation before or after a task; who misses it will catch up."""
        self._lasting = True
        super().converse_around(conversation, server)
        self._lasting = False

    def ask(self, ask: Ask, server: Server, cohort: Sequence[int] | None = None) -> Mean:
        """Put a question to every client of a cohort that is there; return the weighted mean of the good answers."""
        numbers = list(self.everyone if cohort is None else cohort)
        position = self._next_position(server)
        needed = min(self.config.min_clients, len(numbers))
        self._wait_for(needed, set(numbers))
        asked = [number for number in numbers if number in self.roll.present]
        self.account.missing |= {n: self.account.missing.get(n, "away") for n in numbers if n not in asked}
        for number in asked:  # who joined since the task began
            server.sizes.setdefault(number, self.roll.size(number, server.task))
        context = RoundContext(server.task, server.round, sum(server.sizes[n] for n in asked), len(asked))
        model = GlobalModel(server.params, server.buffers)
        question = Question(ask.question, ask.sent, model, context, position)
        self.count_down(ask, server, asked)
        mean, heard = self.collect(question, asked, needed, ask, server)
        if self._lasting:
            self._note_missed(question, set(numbers) - heard)
        return mean

    def collect(
        self, question: Question, asked: Sequence[int], needed: int, ask: Ask, server: Server
    ) -> tuple[Mean, set[int]]:
        """Return the mean answer to a question, and whose answers are in it."""
        replies = self._replies(question, asked, needed, ask, server)
        return self._mean(replies, question.context), set(replies)

    def _mean(self, replies: Mapping[int, Reply], context: RoundContext) -> Mean:
        """Sum in the order of numbers; where clients are missing, the weights of the others add up to one again."""
        mean = RunningMean()
        for number in sorted(replies):
            reply = replies[number]
            self.account.add(number, reply)
            mean.add(reply.answer, reply.samples / context.samples, number)
        heard = sum(reply.samples for reply in replies.values())
        total = mean.result()
        if heard == context.samples:
            return total
        return Mean({name: value * (context.samples / heard) for name, value in total.items()})

    def _replies(
        self, question: Question, asked: Sequence[int], needed: int, ask: Ask, server: Server
    ) -> dict[int, Reply]:
        """Ask until enough good answers are there; a question may be repeated, it is answered once."""
        good: dict[int, Reply] = {}
        end = time.monotonic() + self.config.patience
        while True:
            good.update(self._once(question, [number for number in asked if number not in good], ask, server))
            if len(good) >= needed:
                return good
            if time.monotonic() > end:
                raise CflagError(
                    f"question '{question.name}' has {len(good)} good answers and min_clients = {needed}; "
                    f"gave up after {self.config.patience:.0f} s"
                )
            self._wait_for(needed, set(asked))
            time.sleep(POLL)

    def _wait_for(self, needed: int, among: set[int]) -> None:
        """Wait until so many of these clients are here and have caught up."""
        end = time.monotonic() + self.config.patience
        self.welcome()
        while len(self.roll.present & among) < needed:
            self.roll.wait_for(needed, among)
            self.welcome()
            if time.monotonic() > end + self.config.deadline:
                raise CflagError(f"clients come and go; min_clients = {needed} were never here together")

    def _once(self, question: Question, asked: Sequence[int], ask: Ask, server: Server) -> dict[int, Reply]:
        """Ask each of these clients once; those that do not answer well are noted as missing, with the reason."""
        present = [number for number in asked if number in self.roll.present]
        heard, why = self._exchange("train", question.head(), question.tensors(), present)
        replies: dict[int, Reply] = {}
        for number, (head, tensors) in heard.items():
            try:
                replies[number] = read_reply(number, head, tensors, question, server)
            except FAULTS as error:
                why[number] = f"refused: {error}"
        self._drop_misshapen(replies, question, len(asked), why)
        self._drop_infinite(replies, why, ask, server)
        self.note(why)
        return replies

    def evaluate(self, server: Server, tasks: Sequence[int], sent: Mapping[str, Value | None]) -> Counts:
        """Let every client that is there test the global model on its own held-out samples of these tasks."""
        given = {name: value for name, value in sent.items() if value is not None}
        model = GlobalModel(server.params, server.buffers)
        question = Question("", given, model, RoundContext(server.task, server.round, 0, 0), self._position)
        head = {**question.head(), "tasks": list(tasks)}
        counts = torch.zeros(len(self.everyone), len(tasks), 3, dtype=torch.long)
        tested: set[int] = set()
        end = time.monotonic() + self.config.patience
        while True:
            self._wait_for(self.config.min_clients, set(self.everyone))
            heard, why = self._exchange("evaluate", head, question.tensors(), sorted(self.roll.present - tested))
            for number, (said, _) in heard.items():
                try:
                    sizes = [self.roll.members[number].test_sizes[t] for t in tasks]
                    counts[number] = checked_counts(said["counts"], sizes)
                    tested.add(number)
                except FAULTS as error:
                    why[number] = f"refused: {error}"
            self.note(why)
            if len(tested) >= self.config.min_clients:
                return counts
            if time.monotonic() > end:
                raise CflagError(f"{len(tested)} clients tested the model and min_clients = {self.config.min_clients}")
            time.sleep(POLL)

    def save(self, folder: Path, stamp: str) -> dict[int, str]:
        """Clients keep their state themselves."""
        return {}

    def restore(self, folder: Path, names: Mapping[int, str]) -> None:
        """Clients find their state themselves, by the position of the question they are asked."""

    def kept(self) -> dict[str, Any]:
        """Return the questions that someone still has to catch up on."""
        self._floors = self._earliest_missed()
        kept: dict[str, Any] = {"missed": [{**m.question.head(), "clients": sorted(m.clients)} for m in self.missed]}
        for k, missed in enumerate(self.missed):
            kept.update({f"missed.{k}.{name}": tensor for name, tensor in missed.question.tensors().items()})
        return kept

    def take_back(self, kept: Mapping[str, Any]) -> None:
        """Take back what `kept` returned."""
        self.missed = []
        for k, head in enumerate(kept.get("missed", [])):
            prefix = f"missed.{k}."
            tensors = {name.removeprefix(prefix): v for name, v in kept.items() if name.startswith(prefix)}
            self.missed.append(Missed(Question.read(head, tensors), set(head["clients"])))
        self._floors = self._earliest_missed()

    def _earliest_missed(self) -> dict[int, Position]:
        """Return the first question that each client has still to catch up on; a restarted server asks it again."""
        earliest: dict[int, Position] = {}
        for missed in self.missed:
            for number in missed.clients:
                earliest[number] = min(missed.question.position, earliest.get(number, missed.question.position))
        return earliest

    def peak_mb(self) -> float:
        """Return the largest memory of the server's own process; clients are elsewhere."""
        return process.peak_mb()

    def close(self) -> None:
        """Nothing here was started by the engine."""

    # Who is there -----------------------------------------------------------------------------------------------------

    def welcome(self) -> None:
        """Let in who came (back), after they caught up with the tasks that changed meanwhile."""
        self.roll.look()
        for number in sorted(self.roll.present):
            for missed in [m for m in self.missed if number in m.clients]:
                question = missed.question
                heard, why = self._exchange("train", question.head(), question.tensors(), [number])
                if number not in heard:
                    self.note(why)
                    break
                missed.clients.discard(number)
                self.say(f"client {number} caught up on task {question.context.task + 1} ('{question.name}')")
        self.missed = [m for m in self.missed if m.clients]

    def note(self, why: Mapping[int, str]) -> None:
        """Write down who was missing and why; who is silent is away until it says hello."""
        for number, reason in why.items():
            self.account.missing[number] = reason
            self.say(f"client {number}: {reason}")
            self._holds.pop(number, None)
            if reason.startswith(NO_ANSWER):
                self.roll.lose(number)

    def _note_missed(self, question: Question, clients: set[int]) -> None:
        if clients:
            still = Question(
                question.name,
                {k: v.clone() if isinstance(v, Tensor) else v for k, v in question.sent.items()},
                GlobalModel(question.model.params.clone(), question.model.buffers.clone()),
                question.context,
                question.position,
            )
            self.missed.append(Missed(still, clients))

    def _next_position(self, server: Server) -> Position:
        done = server.task * server.rounds + server.round
        self._position = (done, self._position[1] + 1) if self._position[0] == done else (done, 0)
        return self._position

    # Over the wire ----------------------------------------------------------------------------------------------------

    def _exchange(
        self, kind: str, head: Mapping[str, Any], tensors: Mapping[str, Tensor], numbers: Sequence[int]
    ) -> tuple[dict[int, tuple[dict[str, Any], dict[str, Tensor]]], dict[int, str]]:
        """Put one question to clients; return what was heard, and why the others were not.

        A client that is silent until the deadline and then says hello lost the question, or its answer got lost: it is
        asked once more. One that lost its copy of a tensor is sent it again.
        """
        bundle, seconds = Bundle(tensors), self.config.deadline
        heard: dict[int, tuple[dict[str, Any], dict[str, Tensor]]] = {}
        why: dict[int, str] = {}
        left = list(numbers)
        for trial in range(3):
            letters = self._letters(kind, head, bundle, left)
            answered: set[int] = set()
            again: list[int] = []
            for number, message in self.post.exchange(letters, seconds):
                answered.add(number)
                try:
                    parcel = self._open(number, message, bundle)
                except GarbageError as error:
                    why[number] = str(error)
                    continue
                if parcel[0].get("lacks"):
                    self._holds.pop(number, None)
                    again.append(number)
                else:
                    heard[number] = parcel
            silent = [number for number in left if number not in answered]
            left = again + ([] if trial else self._alive(silent))
            if not left:
                break
        why.update(failures(numbers, {**heard, **why}, f"{NO_ANSWER} within {seconds:g} s"))
        return heard, why

    def _alive(self, silent: Sequence[int]) -> list[int]:
        """Return which silent clients are idle, so that the question or its answer must have been lost."""
        connected = self.post.nodes()
        letters = {
            number: Letter(self.roll.members[number].node, "query", self.roll.hello)
            for number in silent
            if self.roll.members[number].node in connected
        }
        return sorted(number for number, message in self.post.exchange(letters, min(HELLO, 10.0)) if message)

    def address(self, head: Mapping[str, Any], bundle: Bundle) -> dict[str, Any]:
        """Return a question's head with what says where it belongs."""
        floors = {str(number): list(position) for number, position in sorted(self._floors.items())}
        where = {"experiment": self.experiment, "attempt": self.attempt, "floors": floors}
        return {**head, "tensors": bundle.digests, **where}

    def _letters(self, kind: str, head: Mapping[str, Any], bundle: Bundle, numbers: Sequence[int]) -> dict[int, Letter]:
        """Write the letters; clients that hold the same tensors get the same content, which Flower stores once."""
        whole = self.address(head, bundle)
        contents: dict[frozenset[str], Any] = {}
        letters = {}
        for number in numbers:
            needs = bundle.without(self._holds.get(number, frozenset()))
            key = frozenset(needs)
            if key not in contents:
                contents[key] = pack(whole, needs)
            letters[number] = Letter(self.roll.members[number].node, kind, contents[key])
        return letters

    def _open(self, number: int, message: Message, bundle: Bundle) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Read a reply as far as the wire is concerned; a node that Flower lost counts as silent."""
        if message.has_error():
            raise GarbageError(f"{NO_ANSWER}: {' '.join(str(message.error.reason).split())[:300]}")
        limit = 8 * sum(tensor.nbytes for tensor in bundle.tensors.values()) + ROOM
        try:
            head, tensors = unpack(message.content, limit)
        except GarbageError as error:
            raise GarbageError(f"refused: {error}") from None
        if head.get("experiment") != self.experiment:
            raise GarbageError(f"refused: it answers for experiment {str(head.get('experiment'))[:40]}")
        if "error" in head:
            raise GarbageError(f"{NO_ANSWER}: {str(head['error'])[:300]}")
        if head.get("number") != number:
            raise GarbageError(f"refused: it answers as client {str(head.get('number'))[:20]}")
        holds = head.get("holds", [])
        self._holds[number] = frozenset(map(str, holds)) if isinstance(holds, list) else frozenset()
        return head, tensors

    def _drop_misshapen(self, replies: dict[int, Reply], question: Question, asked: int, why: dict[int, str]) -> None:
        """An answer must have the names and shapes that this question's answers had, or that most have.

        Where two have as many votes, the one that looks more like the model is taken.
        """
        if not replies:
            return
        key, model = (question.name, question.context.task), question.model
        votes = Counter(tuple(sorted(shapes(reply.answer).items())) for reply in replies.values())
        like = {tuple(model.params.shape), tuple(model.buffers.shape), ()}
        best = max(votes, key=lambda vote: (votes[vote], sum(shape in like for _, shape in vote)))
        expected = self._shapes.get(key, dict(best))
        if 2 * votes[best] > asked:
            self._shapes.setdefault(key, dict(best))
        for number in list(replies):
            given = shapes(replies[number].answer)
            if given != expected:
                why[number] = f"refused: it answers {str(given)[:200]}, expected {expected}"
                del replies[number]

    def _drop_infinite(self, replies: dict[int, Reply], why: dict[int, str], ask: Ask, server: Server) -> None:
        """One client whose numbers are not finite is refused; if nobody's are, training diverged."""
        last: DivergedError | None = None
        for number in list(replies):
            try:
                check_finite(replies[number], number, ask, server)
            except DivergedError as error:
                last = error
                why[number] = "refused: its answer is not finite"
                del replies[number]
        if last is not None and not replies:
            raise last
