"""Clients of a stack that answer as one: what is a vector to a client is a matrix here, with a row for each.

In a stack a method's lines still run once for every client, and around a tiny net's gradient they cost more than it
does. Where they do the same to every number by itself, as x -= lr * direction does, they may as well run once, on all
clients' parameters. A method says of which of its questions that is true (`Method.elementwise`), and is written for
one client all the same. What each client draws, counts and answers is its own, to the bit: a process lets clients
answer as one only after the first who did had the same bits by themselves (`engines/host.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cflag.conversation import Answer, Reply
from cflag.errors import UserError
from cflag.learning.dense import aligned_rows
from cflag.learning.estimators import Cut
from cflag.learning.stack import Stack, joined

if TYPE_CHECKING:
    from cflag.client import Client

Batches = Sequence[NDArray[np.int64]]
"""A mini-batch of every client: which of all their samples."""


class Choir:
    """Several clients as a method sees one, at the first seats of a stack."""

    def __init__(self, stack: Stack, clients: Sequence[Client], method: str) -> None:
        self._params = stack.rows(len(clients))
        self.start = clients[0].start
        self.buffers = clients[0].buffers
        self._stack = stack
        self._clients = clients
        self._samples = joined([client.data for client in clients])
        self._method = method

    @property
    def params(self) -> Tensor:
        """The local parameters, a row each; change them in place."""
        return self._params

    @params.setter
    def params(self, value: Tensor) -> None:
        if value is not self._params:
            self._params.copy_(value)

    def __getattr__(self, name: str) -> Any:
        raise UserError(
            f"{self._method} wants client.{name}, which clients that answer as one do not have in common: leave the "
            "question out of its `elementwise`"
        )

    def batches(self, size: int) -> Iterator[Batches]:
        """Yield every client's next mini-batch: the same samples as by itself."""
        firsts = accumulate((len(client.data) for client in self._clients), initial=0)
        cuts = [Cut(client, size, "shuffled") for client in self._clients]
        return zip(*[cut.indices(first) for cut, first in zip(cuts, firsts, strict=False)], strict=True)

    def value_and_grad(self, batches: Batches) -> tuple[float, Tensor]:
        """Return each client's gradient on its mini-batch, counted as its cost; there is no loss of all."""
        sizes: dict[int, list[int]] = {}
        for seat, batch in enumerate(batches):
            sizes.setdefault(len(batch), []).append(seat)
        parts = list[Tensor]()
        for size, seats in sizes.items():
            chosen = self._samples[torch.from_numpy(np.concatenate([batches[k] for k in seats]))]
            losses, rows = self._stack.gradients(seats, chosen)
            parts.append(rows)
            for k, loss in zip(seats, losses, strict=True):
                self._clients[k].note(loss, size)
        if len(parts) == 1:
            return nan, parts[0]
        gradients = aligned_rows(len(batches), self.params.shape[1], self.params.dtype)
        for seats, rows in zip(sizes.values(), parts, strict=True):
            gradients.index_copy_(0, torch.tensor(seats), rows)
        return nan, gradients

    def answers(self, answer: Answer) -> list[Answer]:
        """Return each client's own answer: its row of every matrix; what else there is they have in common."""
        count = len(self._clients)
        rows = {n: v.unbind(0) for n, v in answer.items() if isinstance(v, Tensor) and v.dim() == 2 and len(v) == count}
        return [answer | {name: own[k] for name, own in rows.items()} for k in range(count)]


def told(replies: Sequence[Reply | None]) -> list[Any]:
    """Return what is in replies as it is now, to be compared: two are the same if every bit of theirs is.

    Answers may be parts of the stack, which the next who answer overwrite.
    """
    return [reply and _told(reply) for reply in replies]


def _told(reply: Reply) -> tuple[Any, ...]:
    """Return what is in a reply, comparable; what is not a number is equal to itself."""
    tensors = {n: v.numpy().tobytes() if isinstance(v, Tensor) else v for n, v in reply.answer.items()}
    return tensors, reply.samples, reply.cost, {name: str(value) for name, value in reply.logs.items()}
