"""The engine for one machine: clients one after the other in this process, or spread over worker processes.

Answers are summed in the order of the clients' numbers, whichever process they come from, so the number of workers
changes no number in the result.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cflag.conversation import Answer, Ask, Conversation, Cost, Mean, Occasion, Reply, Value, nbytes
from cflag.engines.host import GlobalModel, Host, Whom
from cflag.engines.lanes import HereLane, Lane, WorkerLane
from cflag.errors import CflagError, DivergedError, InterruptedRunError
from cflag.server import Server

Counts = Tensor
"""(clients, tasks, 3): right answers with the task known, right answers without, and samples."""

TEST_BATCH = 500
"""Clients with few held-out samples are tested together, so many at a time; whatever the number of workers."""


class Account:
    """What a round cost, and what clients remarked in it."""

    def __init__(self) -> None:
        self.cost = Cost()
        self.bytes_up = 0
        self.bytes_down = 0
        self.remarks: dict[int, dict[str, float | str]] = {}

    def add(self, number: int, reply: Reply) -> None:
        """Enter a client's reply; of a remark made in two questions of a round the first counts."""
        self.cost += reply.cost
        self.bytes_up += nbytes(reply.answer)
        if reply.remarks:
            self.remarks[number] = {**reply.remarks, **self.remarks.get(number, {})}

    def remarkers(self) -> list[int]:
        """Return the clients that remarked something: those that took part in the round itself."""
        return sorted(self.remarks)


class LocalEngine:
    """Carries conversations between one server and the clients of this machine."""

    def __init__(self, host: Host, workers: int, stopped: Callable[[], bool] = lambda: False) -> None:
        self.benchmark = host.benchmark
        self.everyone = range(host.benchmark.clients)
        count = min(workers, len(self.everyone))
        self.lanes: list[Lane] = [HereLane(host)] if count <= 1 else [WorkerLane(host, k) for k in range(count)]
        self.stopped = stopped
        self.account = Account()
        self.files: dict[int, Path] = {}
        self._lane_of: dict[int, int] = {}
        self._sent = Sent()

    def converse(self, conversation: Conversation, server: Server, cohort: Sequence[int] | None = None) -> None:
        """Carry a conversation with a cohort, or with everyone, to its end."""
        try:
            ask = next(conversation)
            while True:
                ask = conversation.send(self.ask(ask, server, cohort))
        except StopIteration:
            return

    def converse_around(self, conversation: Conversation, server: Server) -> None:
        """Carry a conversation before or after a task, with everyone; remarks are for those of a round alone."""
        remarks = dict(self.account.remarks)
        self.converse(conversation, server)
        self.account.remarks = remarks

    def ask(self, ask: Ask, server: Server, cohort: Sequence[int] | None = None) -> Mean:
        """Put a question to every client of a cohort; return the weighted mean of the answers, Σ p_i answer_i."""
        numbers = self.everyone if cohort is None else cohort
        occasion = Occasion(server.task, server.round, sum(server.sizes[n] for n in numbers), len(numbers))
        self._count_down(ask, server, numbers)
        mean = RunningMean()
        model = GlobalModel(server.params, server.buffers)
        for number, reply in self._answers(numbers, ask, model, occasion):
            self.account.add(number, reply)
            _check_finite(reply, number, ask, server)
            mean.add(reply.answer, reply.samples / occasion.samples, number)
        return mean.result()

    def evaluate(self, server: Server, tasks: Sequence[int], sent: Mapping[str, Value | None]) -> Counts:
        """Test the global model, and what a method sends with it, on every client's held-out samples of these tasks."""
        model = GlobalModel(server.params, server.buffers)
        given = {name: value for name, value in sent.items() if value is not None}
        groups = list(self._test_groups(tasks))
        shares = [groups[k :: len(self.lanes)] for k in range(len(self.lanes))]
        self._send("evaluate", shares, list(tasks), model, server.task, given)
        return torch.cat([self._receive(k % len(self.lanes)) for k in range(len(groups))])

    def save(self, folder: Path, stamp: str) -> dict[int, str]:
        """Save the clients that changed; return the files they are in."""
        names: dict[int, str] = {}
        for lane in self.lanes:
            lane.send("save", folder, stamp)
        for k in range(len(self.lanes)):
            names.update(self._receive(k))
        self.files.update({number: folder / name for number, name in names.items()})
        self._lane_of.clear()  # what is saved any lane can load
        return names

    def restore(self, folder: Path, names: Mapping[int, str]) -> None:
        """Clients are from now on what was saved under these names; each is loaded when it is first asked."""
        self.files = {number: folder / name for number, name in names.items()}

    def peak_mb(self) -> float:
        """Return the largest memory of this process and of its workers, added."""
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        if len(self.lanes) == 1:
            return own
        for lane in self.lanes:
            lane.send("peak_mb")
        peaks: list[float] = [self._receive(k) for k in range(len(self.lanes))]
        return own + sum(peaks)

    def settle(self) -> Account:
        """Return the account since the last time, and open a new one."""
        account, self.account = self.account, Account()
        return account

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Carry conversations that are measurement: what they cost and remark stays out of the account."""
        account, sent = self.account, self._sent
        self.account = Account()
        yield
        self.account, self._sent = account, sent

    def close(self) -> None:
        """Stop the workers."""
        for lane in self.lanes:
            lane.close()

    def _answers(self, numbers: Sequence[int], *args: Any) -> Iterator[tuple[int, Reply]]:
        """Yield (client, reply) in the order given, all lanes working at once."""
        shares: list[list[Whom]] = [[] for _ in self.lanes]
        lanes = []
        for position, number in enumerate(numbers):
            # A client that was asked since the last save stays where it is: its changes and its scratch are there.
            lane = self._lane_of.setdefault(number, position % len(self.lanes))
            shares[lane].append((number, self.files.get(number)))
            lanes.append(lane)
        self._send("answer", shares, *args)
        for number, lane in zip(numbers, lanes, strict=True):
            yield number, self._receive(lane)

    def _send(self, command: str, shares: Sequence[Sequence[Any]], *args: Any) -> None:
        """Give every lane its share of a command."""
        for lane, share in zip(self.lanes, shares, strict=True):
            lane.send(command, share, *args)

    def _receive(self, lane: int) -> Any:
        reply = self.lanes[lane].receive()
        if self.stopped():
            raise InterruptedRunError("stopped")
        return reply

    def _test_groups(self, tasks: Sequence[int]) -> Iterator[list[int]]:
        """Yield clients in order, in groups that are worth a batch."""
        group: list[int] = []
        samples = 0
        for client in self.everyone:
            group.append(client)
            samples += sum(self.benchmark.test_size(client, task) for task in tasks)
            if samples >= TEST_BATCH:
                yield group
                group, samples = [], 0
        if group:
            yield group

    def _count_down(self, ask: Ask, server: Server, numbers: Sequence[int]) -> None:
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
        """Return the state of things after the model went to these clients, too."""
        return Sent(server.params, server.params._version, self.holders(server) | frozenset(numbers))


class RunningMean:
    """One running sum, whatever the number of clients."""

    def __init__(self) -> None:
        self.total: dict[str, Any] = {}
        self.first: int | None = None

    def add(self, answer: Answer, weight: float, number: int) -> None:
        """Add a client's answer times its weight."""
        if self.first is None:
            self.first = number
            self.total = {k: v * weight for k, v in answer.items()}
            return
        if _shapes(answer) != _shapes(self.total):
            raise CflagError(
                f"client {number} answered {_shapes(answer)} where client {self.first} answered {_shapes(self.total)}"
            )
        for name, value in answer.items():
            if isinstance(value, Tensor):
                self.total[name].add_(value, alpha=weight)
            else:
                self.total[name] += weight * value

    def result(self) -> Mean:
        """Return the sum: the weights add up to one."""
        return Mean(self.total)


def _shapes(answer: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {k: tuple(v.shape) if isinstance(v, Tensor) else () for k, v in answer.items()}


def _check_finite(reply: Reply, number: int, ask: Ask, server: Server) -> None:
    """Refuse an answer that is no longer a number, before it reaches the model."""
    values = {**reply.answer, **{k: v for k, v in reply.remarks.items() if isinstance(v, float)}}
    for name, value in values.items():
        if not _finite(value):
            raise DivergedError(
                f"client {number}'s {name} is not finite in task {server.task + 1}, round {server.round + 1} "
                f"(question '{ask.question}'): training diverged; try a smaller learning rate"
            )


def _finite(value: Value) -> bool:
    """Whether all numbers are: where their sum is, they are; where it is not, it may be too large a sum."""
    if not isinstance(value, Tensor):
        return isfinite(value)
    return isfinite(value.sum().item()) or bool(value.isfinite().all())
