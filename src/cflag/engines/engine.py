"""What every engine does: carry conversations between a server and clients, and keep the account of their cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cflag import process, registry
from cflag.account import Account, Counts
from cflag.conversation import Ask, Conversation, Mean, Reply, RoundContext, Value, nbytes
from cflag.data.schedules.base import Schedule
from cflag.engines.bundles import Bundle, bundle_size, reply_of
from cflag.errors import CflagError
from cflag.means.base import PLAIN, AnswerMean, MeanOptions
from cflag.means.shares import believed, outliers, shares
from cflag.privacy.warden import Warden
from cflag.server import Server
from cflag.states.store import StateStore


class Engine(ABC):
    """Carries conversations between one server and its clients, wherever they are."""

    hears_logs: ClassVar[bool] = True
    """Whether clients' own logs reach the server."""

    def __init__(self, schedule: Schedule, mean: MeanOptions = PLAIN, ratios: Mapping[str, str] | None = None) -> None:
        self.schedule = schedule
        self.everyone = range(schedule.frame.clients)
        self.options = mean
        self.ratios = ratios or {}
        self.kind: type[AnswerMean] = registry.get("mean", mean.kind)
        self.account = Account()
        self._sent = Sent()
        self.warden: Warden | None = None
        """In a private run: who looks after means, ε and the budget."""
        self.heard: Sequence[int] = ()
        """The clients whose answers are in the last mean."""

    @abstractmethod
    def ask(self, ask: Ask, server: Server, cohort: Sequence[int] | None = None) -> Mean:
        """Put a question to every client of a cohort; return the weighted mean of the answers, Σ p_i answer_i."""

    @abstractmethod
    def evaluate(self, server: Server, tasks: Sequence[int], sent: Mapping[str, Value | None]) -> Counts:
        """Test the global model, and what a method sends with it, on every client's held-out samples of these tasks."""

    @abstractmethod
    def all_sizes(self) -> NDArray[np.int64]:
        """Return how many samples each client has of each task, (clients, tasks); 0 for one that never was here."""

    @abstractmethod
    def has(self) -> NDArray[np.bool_]:
        """Return which clients have samples of which tasks, (clients, tasks), as far as is known."""

    def sizes(self, done: int) -> dict[int, int]:
        """Return how many samples, as far as they count, each client has in a round; who has none is left out."""
        return believed(self.schedule.sizes(done, self.all_sizes()), self.options.max_share)

    def due(self, done: int) -> list[int] | None:
        """Return the clients that are in a task, with samples of it, or None where that is everyone.

        One that never was here is taken to have some.
        """
        has = self.has()
        if self.schedule.together and bool(has.all()):
            return None
        sizes, now = self.all_sizes(), self.schedule.plan.now(done)
        here, counts = self.schedule.portions(done, sizes)
        tasks = now[here]
        due: list[int] = here[has[here, tasks] & ((sizes[here, tasks] == 0) | (counts > 0))].tolist()
        return due

    def context(self, server: Server, numbers: Sequence[int]) -> RoundContext:
        """Return what clients may know when they are asked something together."""
        samples = sum(server.sizes[number] for number in numbers)
        return RoundContext(server.task, server.round, samples, len(numbers), server.own_moment)

    def save(self, store: StateStore, stamp: str) -> None:  # noqa: B027 (clients may keep their state themselves)
        """Save the clients that changed."""

    def restore(self, store: StateStore) -> None:  # noqa: B027 (clients may find it themselves)
        """Clients are from now on what a store says."""

    def peak_mb(self) -> float:
        """Return the largest memory this engine's processes on this machine ever had, added."""
        return process.peak_mb()

    def close(self) -> None:  # noqa: B027 (an engine may start nothing)
        """Stop what the engine started."""

    def away(self) -> frozenset[int]:
        """Return the clients that cannot be asked at present."""
        return frozenset()

    def kept(self) -> dict[str, Any]:
        """Return what the engine itself must find again after a restart: tensors and JSON values."""
        return {}

    def take_back(self, kept: Mapping[str, Any]) -> None:  # noqa: B027 (most engines keep nothing)
        """Take back what `kept` returned."""

    def converse(self, conversation: Conversation, server: Server, cohort: Sequence[int] | None = None) -> None:
        """Carry a conversation with a cohort, or with everyone, to its end."""
        try:
            ask = next(conversation)
            while True:
                ask = conversation.send(self._mean(ask, server, cohort))
        except StopIteration:
            return

    def converse_around(self, conversation: Conversation, server: Server, cohort: Sequence[int] | None = None) -> None:
        """Carry a conversation before or after a task, with all who begin or leave one; a round has logs of its own."""
        logs = dict(self.account.logs)
        self.converse(conversation, server, cohort)
        self.account.logs = logs

    def mean_of(self, replies: Mapping[int, Reply], context: RoundContext) -> Mean:
        """Refuse what is absurd beside the others, count the rest, and make one answer of it."""
        answers = {number: replies[number].answer for number in sorted(replies)}
        refused = outliers(answers, self.options.outlier, self.ratios)
        self.refuse(refused)
        good = {number: replies[number] for number in answers if number not in refused}
        if not self.kind.needs_each and self.options.max_share == 1:
            total = Total(self, context, list(good))
            for number, reply in good.items():
                total.add(number, reply)
            return total.result()
        for number, reply in good.items():
            self.account.add(number, reply, nbytes(reply.answer))
        self.heard, mean = list(good), self.kind(self.options, self.ratios)
        p = shares({number: reply.samples for number, reply in good.items()}, self.options.max_share)
        for number, reply in good.items():
            mean.add(reply.answer, p[number], number)
        return mean.result()

    def refuse(self, why: Mapping[int, str]) -> None:
        """Enter into the account whose answers are refused, and why."""
        self.account.missing.update(why)

    def _mean(self, ask: Ask, server: Server, cohort: Sequence[int] | None) -> Mean:
        """Return the mean answer as the method may see it: in a private run with noise, within the budget."""
        if ask.whom == "past":
            cohort = [number for number in (self.everyone if cohort is None else cohort) if number in server.pasts]
        if self.warden is None:
            return self.ask(ask, server, cohort)
        where = server.task, server.round
        self.warden.before(ask.question, where, self.everyone if cohort is None else cohort)
        mean = self.ask(ask, server, cohort)
        self.warden.heard(self.account.uses)
        sizes = {number: server.sizes[number] for number in self.heard}
        return self.warden.after(ask, mean, where, server.params, sizes)

    def test(self, server: Server, tasks: Sequence[int], sent: Mapping[str, Value | None]) -> Counts:
        """Test the global model; in a private run the counts may be noised, too."""
        if self.warden is None:
            return self.evaluate(server, tasks, sent)
        where = server.task, server.round
        self.warden.before_test(where)
        return self.warden.tested(self.evaluate(server, tasks, sent), where, server.params)

    def testers(self, server: Server) -> Sequence[int]:
        """Return the clients that test the global model: all who have begun something and are not gone."""
        return self.everyone if self.schedule.together else self.schedule.members(server.done)

    def placed(self, rows: Mapping[int, Tensor], tasks: Sequence[int]) -> Counts:
        """Return counts of all clients, zeros for those that did not test."""
        like = next(iter(rows.values()), torch.zeros(len(tasks), 3, dtype=torch.long))
        counts = like.new_zeros(len(self.everyone), *like.shape)
        if rows:
            counts[list(rows)] = torch.stack(list(rows.values()))
        return counts

    def settle(self) -> Account:
        """Return the account since the last time, and open a new one."""
        account, self.account = self.account, Account()
        if self.warden is not None:
            account.epsilon, account.anonymous = self.warden.epsilon(), True
        return account

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Carry conversations that are measurement: their cost and logs stay out of the account."""
        account, sent = self.account, self._sent
        self.account = Account()
        yield
        self.account, self._sent = account, sent

    def count_down(self, ask: Ask, server: Server, numbers: Sequence[int]) -> None:
        """The global model travels to a client once for as long as it does not change, the rest with each question."""
        sent, before = self._sent.plus(server, numbers), self._sent.holders(server)
        whole = nbytes({"params": server.params, "buffers": server.buffers}) * (len(sent.clients) - len(before))
        self.account.bytes_down += nbytes(ask.sent) * len(numbers) + whole
        self._sent = sent

    def model_sent(self, server: Server) -> list[int]:
        """Return the clients that already have the global model as it is."""
        return sorted(self._sent.holders(server))

    def note_model_sent(self, server: Server, numbers: Iterable[int]) -> None:
        """From now on these clients have the global model, until it changes."""
        self._sent = self._sent.plus(server, numbers)


@dataclass(frozen=True)
class Sent:
    """Which clients have which global model: a tensor, as it was when it had this version."""

    params: Tensor | None = None
    version: int = 0
    clients: frozenset[int] = frozenset()

    def holders(self, server: Server) -> frozenset[int]:
        """Return the clients that have the global model as it is."""
        same = self.params is server.params and self.version == server.params._version
        return self.clients if same else frozenset()

    def plus(self, server: Server, numbers: Iterable[int]) -> Sent:
        """Return the same after the model went to these clients, too."""
        return Sent(server.params, server.params._version, self.holders(server) | frozenset(numbers))


class Total:
    """Σ p_i answer_i over the clients that are heard, as it grows in the order of their numbers, bundle by bundle."""

    def __init__(self, engine: Engine, context: RoundContext, asked: Sequence[int]) -> None:
        self.engine = engine
        self.context = context
        self.mean = engine.kind(engine.options, engine.ratios)
        self.heard: list[int] = []
        self.samples = 0
        size = bundle_size(len(asked))
        self._bundle_of = {number: k // size for k, number in enumerate(asked)} if size > 1 else {}
        self._open: tuple[int, AnswerMean] | None = None
        """A bundle that is not complete, and its sum so far."""

    def add(self, number: int, reply: Reply) -> None:
        """Count an answer."""
        self._enter(number, reply, nbytes(reply.answer))
        self._sum_for(number).add(reply.answer, reply.samples / self.context.samples, number)

    def add_bundle(self, numbers: Sequence[int], bundle: Bundle) -> None:
        """Count a whole bundle's answers, which are summed already; its clients, in their order."""
        for number, note in zip(numbers, bundle.notes, strict=True):
            if note is not None:
                self._enter(number, reply_of(note, {}), bundle.bytes_each)
        self._close()
        if bundle.total:
            self.mean.add(bundle.total, 1.0, numbers[0])

    def result(self) -> Mean:
        """Return the mean, and let the engine know who was heard."""
        self._close()
        self.engine.heard = self.heard
        return rescaled(self.mean.result(), self.context.samples, self.samples)

    def _enter(self, number: int, reply: Reply, size: int) -> None:
        self.heard.append(number)
        self.engine.account.add(number, reply, size)
        self.samples += reply.samples

    def _sum_for(self, number: int) -> AnswerMean:
        """Return the sum that a client's answer goes to: its bundle's, or the whole one where there are none."""
        if not self._bundle_of:
            return self.mean
        place = self._bundle_of[number]
        if self._open is None or self._open[0] != place:
            self._close()
            self._open = place, self.engine.kind(self.engine.options, self.engine.ratios)
        return self._open[1]

    def _close(self) -> None:
        """Add a bundle's sum to the whole one: as it is, for it is weighted."""
        if self._open is not None:
            self.mean.add(self._open[1].result(), 1.0, self._open[0])
            self._open = None


def rescaled(total: Mean, asked: int, heard: int) -> Mean:
    """Return a sum with the weights n_i / asked as the mean over those who were heard: their weights add up to one."""
    if not heard:
        raise CflagError("no client has a sample left that it may learn from: all are forgotten")
    return total if heard == asked else Mean({name: value * (asked / heard) for name, value in total.items()})
