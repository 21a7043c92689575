"""The engine for one machine: clients one after the other in this process, or spread over worker processes.

Answers are summed in the order of the clients' numbers, whichever process they come from, so the number of workers
changes no number in the result.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cflag.conversation import Answer, Ask, Conversation, Cost, Mean, Occasion, Reply, Value, nbytes
from cflag.engines.host import Count, GlobalModel, Host
from cflag.engines.lanes import HereLane, Lane, WorkerLane
from cflag.errors import CflagError, DivergedError, InterruptedRunError
from cflag.server import Server

Counts = list[list[Count]]
"""A row a client, a column a task."""


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
        self.remarks[number] = {**reply.remarks, **self.remarks.get(number, {})}


class LocalEngine:
    """Carries conversations between one server and the clients of this machine."""

    def __init__(self, host: Host, workers: int, stopped: Callable[[], bool] = lambda: False) -> None:
        self.numbers = list(range(host.benchmark.clients))
        count = min(workers, len(self.numbers))
        self.lanes: list[Lane] = [HereLane(host)] if count <= 1 else [WorkerLane(host, k) for k in range(count)]
        self.stopped = stopped
        self.account = Account()
        self._sent_model: tuple[Tensor | None, int] = (None, 0)

    def converse(self, conversation: Conversation, server: Server) -> None:
        """Carry a conversation to its end."""
        try:
            ask = next(conversation)
            while True:
                ask = conversation.send(self.ask(ask, server))
        except StopIteration:
            return

    def ask(self, ask: Ask, server: Server) -> Mean:
        """Put a question to every client; return the weighted mean of the answers, Σ p_i answer_i."""
        occasion = Occasion(server.task, server.round, sum(server.sizes.values()), len(self.numbers))
        self._count_down(ask, server)
        mean = RunningMean()
        model = GlobalModel(server.params, server.buffers)
        for number, reply in self._each("answer", ask, model, occasion):
            self.account.add(number, reply)
            _check_finite(reply, number, ask, server)
            mean.add(reply.answer, reply.samples / occasion.samples, number)
        return mean.result()

    def evaluate(self, server: Server, tasks: Sequence[int], sent: Mapping[str, Value | None]) -> Counts:
        """Test the global model, and what a method sends with it, on every client's held-out samples of these tasks."""
        model = GlobalModel(server.params, server.buffers)
        given = {name: value for name, value in sent.items() if value is not None}
        return [counts for _, counts in self._each("evaluate", list(tasks), model, server.task, given)]

    def save(self, folder: Path, stamp: str) -> dict[int, str]:
        """Save the clients that changed; return the files they are in."""
        return {n: name for n, name in self._each("save", folder, stamp) if name is not None}

    def restore(self, folder: Path, names: dict[int, str]) -> None:
        """Bring every client back to the saved state."""
        for _ in self._each("restore", folder, names):
            pass

    def peak_mb(self) -> float:
        """Return the largest memory of this process and of its workers, added."""
        replies = [peak for _, peak in self._each("peak_mb")][: len(self.lanes)]
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        return own + sum(replies) if len(self.lanes) > 1 else own

    def settle(self) -> Account:
        """Return the account since the last time, and open a new one."""
        account, self.account = self.account, Account()
        return account

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Carry conversations that are measurement: what they cost and remark stays out of the account."""
        account, sent = self.account, self._sent_model
        self.account = Account()
        yield
        self.account, self._sent_model = account, sent

    def close(self) -> None:
        """Stop the workers."""
        for lane in self.lanes:
            lane.close()

    def _each(self, command: str, *args: Any) -> Any:
        """Yield (client, reply) in the order of clients, all lanes working at once."""
        for k, lane in enumerate(self.lanes):
            lane.send(command, self.numbers[k :: len(self.lanes)], *args)
        for number in self.numbers:
            yield number, self.lanes[number % len(self.lanes)].receive()
            if self.stopped():
                raise InterruptedRunError("stopped")

    def _count_down(self, ask: Ask, server: Server) -> None:
        """The global model travels once for as long as it does not change, the rest with each question."""
        size = nbytes(ask.sent)
        if not self.model_sent(server):
            size += nbytes({"params": server.params, "buffers": server.buffers})
            self.note_model_sent(server)
        self.account.bytes_down += size * len(self.numbers)

    def model_sent(self, server: Server) -> bool:
        """Return whether clients already have the global model as it is."""
        sent, version = self._sent_model
        return sent is server.params and version == server.params._version

    def note_model_sent(self, server: Server) -> None:
        """From now on clients have the global model, until it changes."""
        self._sent_model = (server.params, server.params._version)


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
        if not (torch.isfinite(value).all() if isinstance(value, Tensor) else isfinite(value)):
            raise DivergedError(
                f"client {number}'s {name} is not finite in task {server.task + 1}, round {server.round + 1} "
                f"(question '{ask.question}'): training diverged; try a smaller learning rate"
            )
