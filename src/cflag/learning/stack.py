"""Clients side by side: the gradients of small dense nets, several clients' in one operation.

Such a gradient is a dozen kernels of a few microseconds, and calling them costs more than they do. Clients that answer
the same question want gradients of the same shape, step after step, so one batched kernel serves a whole stack.

A method stays written for one client. Each client of a stack answers in a greenlet: where it asks for a gradient it
waits, and the next one goes on; when all wait, their gradients are computed together. Greenlets and not generators:
a gradient is asked for deep inside a method (`direction`, an estimator, a table), and generators would make one of
every function on the way there, users' own included.

Stacks change no number. Only gradients of the same shape go together, as padding would change sums; when a shape first
comes up, stacked and looped gradients are compared bit for bit, and where they differ that shape stays looped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor

from cflag.data.samples import Samples
from cflag.learning.dense import Nets, aligned_rows

if TYPE_CHECKING:
    from cflag.learning.learner import Learner, Loss

T = TypeVar("T")
Gradient = tuple[float, Tensor]
"""A mean loss and its gradient."""

NUMBERS, LEAST = 600_000, 8
"""Parameters of a whole stack, and clients of one: more do not stay in a core's cache, and nets of which fewer do keep
their kernels busy by themselves. Measured: 256-256-10 is as fast in a stack of 32 as alone, 1280-100 is slower."""


class Place(Protocol):
    """Where a client computes: its parameters, and a way to their gradients."""

    params: Tensor

    def close(self, closed: Tensor | None) -> None:
        """Close outputs for this client: what is to be added to them, or None."""
        ...

    def learner(self) -> Learner:
        """Return the process's one model, at this client's parameters."""
        ...

    def value_and_grad(self, samples: Samples, loss: Loss | None) -> Gradient:
        """Return the mean loss on samples and its gradient."""
        ...


class Alone:
    """The place of a client that has the process's model to itself: its parameters are the model's."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.params = learner.params

    def close(self, closed: Tensor | None) -> None:
        """Close outputs."""
        self._learner.closed = closed

    def learner(self) -> Learner:
        """Return the model."""
        return self._learner

    def value_and_grad(self, samples: Samples, loss: Loss | None) -> Gradient:
        """Return the mean loss on samples and its gradient."""
        return self._learner.value_and_grad(samples, loss)


class Seat:
    """The place of a client in a stack: a row of parameters beside those of others."""

    def __init__(self, learner: Learner, params: Tensor) -> None:
        self._learner = learner
        self.params = params
        self.closed: Tensor | None = None

    def close(self, closed: Tensor | None) -> None:
        """Close outputs."""
        self.closed = closed

    def learner(self) -> Learner:
        """Return the process's model with this row as its parameters: for whatever is not a stacked gradient."""
        self._learner.params.copy_(self.params)
        self._learner.closed = self.closed
        return self._learner

    def value_and_grad(self, samples: Samples, loss: Loss | None) -> Gradient:
        """Wait until the others want a gradient, too; another loss than the task's is computed at once."""
        if loss is not None:
            return self.learner().value_and_grad(samples, loss)
        hub = getcurrent().parent
        assert hub is not None
        random, grad = torch.default_generator.get_state(), torch.is_grad_enabled()
        gradient: Gradient = hub.switch(samples)
        torch.default_generator.set_state(random)  # what others drew in the meantime is theirs
        _set_grad(grad)
        return gradient


class Stack:
    """Seats for clients that answer side by side, at most `size` of them."""

    def __init__(self, learner: Learner, size: int) -> None:
        self._learner = learner
        self._width = learner.params.numel()
        fitting = NUMBERS // self._width if learner.stacks() else 1
        self.size = min(size, fitting) if fitting >= LEAST else 1
        self._rows = aligned_rows(self.size if self.size > 1 else 0, self._width, learner.params.dtype)
        self._in_a_row: dict[tuple[int, int], Nets] = {}
        """Nets of seats in a row, which lie in the same memory every time: the first seat, and how many there are."""
        self._good: dict[tuple[int, ...], bool] = {}
        """Which shapes of mini-batches have the same gradients to the bit in a stack and by themselves."""
        self._idle: list[greenlet] = []
        """Greenlets without a job: the system takes longer to give a new one memory than a client for a gradient."""

    def seats(self, count: int, params: Tensor) -> list[Seat]:
        """Return places for so many clients, all at the global model."""
        rows = self._rows[:count]
        rows.copy_(params)
        self._taken = [Seat(self._learner, row) for row in rows]
        return self._taken

    def rows(self, count: int) -> Tensor:
        """Return the parameters at the first seats, a row each."""
        return self._rows[:count]

    def run(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Carry out one job at each seat, all side by side; return what they return."""
        runners, self._idle = self._runners(len(jobs)), []  # after a failure they are in the middle of something
        results: dict[int, T] = {}
        waiting: dict[tuple[int, ...], dict[int, Samples]] = {}
        grad = torch.is_grad_enabled()
        sent: Mapping[int, Any] = dict(enumerate(jobs))
        while sent:
            for k, value in sent.items():
                got = runners[k].switch(value)
                _set_grad(grad)  # one that waits within `no_grad` must not take it away from others
                if isinstance(got, _Done):
                    results[k] = got.result
                else:
                    waiting.setdefault(tuple(got.x.shape), {})[k] = got
            # The largest group goes on; the others may have grown by then.
            shape = max(waiting, key=lambda shape: len(waiting[shape]), default=())
            sent = self._gradients(shape, dict(sorted(waiting.pop(shape, {}).items())))
        self._idle = runners
        return [results[k] for k in range(len(jobs))]

    def _runners(self, count: int) -> list[greenlet]:
        """Return so many greenlets, or more, that switch back here; those of another thread cannot."""
        here = getcurrent()
        idle = [runner for runner in self._idle if runner.parent is here]
        return idle + [greenlet(_carry_out) for _ in range(count - len(idle))]

    def _gradients(self, shape: tuple[int, ...], group: Mapping[int, Samples]) -> dict[int, Any]:
        """Return the gradients of clients on mini-batches of one shape: stacked, where that changes no bit."""
        if len(group) <= 1 or not self._same_bits(shape):
            return self._looped(group)
        seats = tuple(group)
        closed = [self._taken[k].closed for k in seats]
        values, gradients = self._learner.values_and_grads(self._nets(seats), joined(list(group.values())), closed)
        return dict(zip(seats, zip(values, gradients.unbind(0), strict=True), strict=True))

    def gradients(self, seats: Sequence[int], samples: Samples) -> tuple[list[float], Tensor]:
        """Return the mean losses and gradients, a row each, at some seats on mini-batches of one size, in their order.

        Rows are never next to each other in memory: what torch does to a matrix of such rows it does row by row.
        """
        if self._same_bits((len(samples) // len(seats), *samples.x.shape[1:])):
            closed = [self._taken[k].closed for k in seats]
            return self._learner.values_and_grads(self._nets(tuple(seats)), samples, closed)
        alone = self._looped(dict(zip(seats, samples.split(len(samples) // len(seats)), strict=True)))
        rows = aligned_rows(len(seats), self._width, self._rows.dtype)
        return [value for value, _ in alone.values()], torch.stack([row for _, row in alone.values()], out=rows)

    def _nets(self, seats: tuple[int, ...]) -> Nets:
        """Return the parameters at some seats as the nets of a stack: copies, where the seats are not all in a row."""
        first, count = seats[0], len(seats)
        if seats[-1] - first + 1 > count:
            return self._learner.nets(self._rows.index_select(0, torch.tensor(seats)))
        if (first, count) not in self._in_a_row:
            self._in_a_row[first, count] = self._learner.nets(self._rows[first : first + count])
        return self._in_a_row[first, count]

    def _same_bits(self, shape: tuple[int, ...]) -> bool:
        """Say whether mini-batches of a shape may be stacked; tried when it first comes up."""
        if shape not in self._good:
            self._good[shape] = self._learner.stacks(shape[0])
        return self._good[shape]

    def _looped(self, group: Mapping[int, Samples]) -> dict[int, Gradient]:
        """Return the gradients one by one."""
        return {k: self._taken[k].learner().value_and_grad(samples) for k, samples in group.items()}


def joined(batches: Sequence[Samples]) -> Samples:
    """Join samples, but for what gradients do not need."""
    return Samples(*(torch.cat(parts) for parts in zip(*((b.x, b.y, b.task) for b in batches), strict=True)))


def _set_grad(enabled: bool) -> None:
    """Switch autograd on or off where it is not so already: asking takes a fraction of the time."""
    if torch.is_grad_enabled() != enabled:
        torch.set_grad_enabled(enabled)


@dataclass(frozen=True)
class _Done:
    """What a job came to."""

    result: Any


def _carry_out(job: Callable[[], Any]) -> None:
    """Carry out one job after the other: what a greenlet does for as long as it lives."""
    hub = getcurrent().parent
    assert hub is not None
    while True:
        job = hub.switch(_Done(job()))
