"""What a schedule is: every client's own clock, and what it has of a task in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cflag import registry
from cflag.data.options import BenchmarkOptions, ScheduleOptions
from cflag.data.partitions.base import Dealt, Indices
from cflag.errors import UserError

NEVER = -1
"""The first and last round of a task that a client never gets, and the task of a client that is in none."""

Rounds = NDArray[np.int64]
"""A round for each client and task, or for each client."""

Classes = tuple[tuple[int, ...], ...]
"""The classes of each task."""


@dataclass(frozen=True)
class Frame:
    """What a schedule plans with: how many clients and tasks there are, the rounds of a task, the seed, ζ."""

    clients: int
    tasks: int
    rounds: int
    seed: int
    zeta: float = 1e5


@dataclass(frozen=True)
class Plan:
    """Every client's first and last round of every task, (clients, tasks); NEVER for a task that it does not get.

    A client has a task once, and one at a time. Between two of them, and in `breaks` within one, it is absent.
    """

    first: Rounds
    last: Rounds
    gone: Rounds | None = None
    """The round from which on each client is gone for good; None: nobody goes."""
    breaks: tuple[tuple[int, int, int], ...] = ()
    """A client, and the first and last round of an absence within a task."""

    @classmethod
    def of(cls, first: Rounds, last: Rounds, gone: Rounds | None = None,
           breaks: tuple[tuple[int, int, int], ...] = ()) -> Plan:  # fmt: skip
        """Return a plan, after a look at whether every client has one task at a time."""
        plan = cls(first, last, gone, breaks)
        plan.check()
        return plan

    def check(self) -> None:
        """Refuse clients that would be in two tasks at once, and a task that nobody gets."""
        order = np.argsort(self.first, axis=1, kind="stable")
        begins, ends = (np.take_along_axis(rounds, order, 1) for rounds in (self.first, self.last))
        clash = (begins[:, 1:] >= 0) & (begins[:, :-1] >= 0) & (begins[:, 1:] <= ends[:, :-1])
        for client, position in np.argwhere(clash)[:1]:
            one, two = sorted(order[client, position : position + 2] + 1)
            when = begins[client, position + 1] + 1
            raise UserError(f"schedule: client {client} is in tasks {one} and {two} at once, in round {when}")
        for task in np.flatnonzero((self.first < 0).all(0))[:1]:
            raise UserError(f"schedule: nobody gets task {task + 1}")

    @cached_property
    def total(self) -> int:
        """How many rounds there are."""
        return int(self.last.max()) + 1

    @cached_property
    def ends(self) -> frozenset[int]:
        """The rounds after which some client leaves a task."""
        return frozenset(int(r) for r in np.unique(self.last) if r >= 0)

    def fewest(self, cohort: int) -> int:
        """Return how many clients are asked something together at least: in a round, or as they begin or leave a task.

        Those of a round who have left a task before may be asked apart from those who have not. Where a cohort is
        drawn, it may have as many of the others as there are.
        """
        groups = []
        for done in range(self.total):
            here, left = self.now(done) >= 0, ((self.last >= 0) & (self.last < done)).any(1)
            drawn, new = min(cohort, int(here.sum())), int((here & ~left).sum())
            with_past = [max(1, drawn - new)] if (here & left).any() else []
            changing = [int((rounds == done).any(1).sum()) for rounds in (self.first, self.last)]
            groups += [drawn, *with_past, *changing]
        return min(count for count in groups if count)

    def now(self, done: int) -> NDArray[np.int64]:
        """Return the task that each client is in after so many finished rounds; NEVER where it is absent."""
        here = (self.first <= done) & (done <= self.last) & (self.first >= 0)
        for client, begin, end in self.breaks:
            if begin <= done <= end:
                here[client] = False
        return np.where(here.any(1), here.argmax(1), NEVER)

    def latest(self, done: int, has: NDArray[np.bool_] | bool = True) -> NDArray[np.int64]:
        """Return the task that each client is in, or was in last, of those that it has samples of, (clients, tasks).

        NEVER before its first, and once it is gone.
        """
        begun = np.where((self.first >= 0) & (self.first <= done) & has, self.first, NEVER)
        task = np.where(begun.max(1) >= 0, begun.argmax(1), NEVER)
        return task if self.gone is None else np.where(done < self.gone, task, NEVER)

    def task(self, client: int, done: int, has: NDArray[np.bool_] | bool = True) -> int:
        """Return `latest` of one client, from its own row."""
        first = self.first[client]
        begun = np.where((first >= 0) & (first <= done) & has, first, NEVER)
        gone = self.gone is not None and done >= self.gone[client]
        return NEVER if gone or begun.max() < 0 else int(begun.argmax())

    def began(self, client: int, done: int) -> tuple[int, ...]:
        """Return the tasks that a client has begun, this round's included."""
        return tuple(int(t) for t in np.flatnonzero((self.first[client] >= 0) & (self.first[client] <= done)))

    def past(self, client: int, done: int) -> tuple[int, ...]:
        """Return the tasks that a client has left before this round."""
        return tuple(int(t) for t in np.flatnonzero((self.last[client] >= 0) & (self.last[client] < done)))


_LAST: dict[tuple[type[Any], str, Frame], Plan] = {}
"""The plan that was made last: for 100,000 clients it takes seconds, and a run asks for it in several places."""


class Schedule(ABC):
    """Who is in which task when. A kind is a file beside this one; most only say `plan`."""

    Settings: ClassVar[type[Any]] = ScheduleOptions
    one_pass: ClassVar[bool] = False
    """Whether each sample is seen in one local step only, in order: `steps` mini-batches a round, no epochs."""
    deals: ClassVar[bool] = False
    """Whether it deals samples itself, so that a partition has no say."""

    def __init__(self, settings: Any, frame: Frame) -> None:
        self.settings = settings
        self.frame = frame

    @cached_property
    def plan(self) -> Plan:
        """Every client's clock."""
        key = (type(self), repr(self.settings), self.frame)
        if key not in _LAST:
            plan = self.planned()
            _LAST.clear()
            _LAST[key] = plan
        return _LAST[key]

    @abstractmethod
    def planned(self) -> Plan:
        """Make the plan."""

    def classes(self, pools: Classes) -> Classes:
        """Return the classes that occur in each task, from those that the scenario gives it."""
        return pools

    def deal(self, usual: Callable[[int], Dealt], labels: tuple[Indices, Indices], pools: Classes) -> list[Dealt]:
        """Deal all tasks; `usual` deals one as the partition does, `labels` are the classes of both halves' samples."""
        return [usual(task) for task in range(self.frame.tasks)]

    def portion(self, size: int, number: int) -> range:
        """Return which of a client's samples of a task it has in its round of that number, from 0: here all."""
        return range(size)

    # What follows from it ---------------------------------------------------------------------------------------------

    @property
    def told(self) -> bool:
        """Whether clients are told when a task begins and ends."""
        return bool(self.settings.boundaries == "told")

    @property
    def streams(self) -> bool:
        """Whether samples pass by: a memory takes in each round's own, since no task is known as a whole."""
        return not self.told

    @property
    def together(self) -> bool:
        """Whether everybody always is in the same task, so that nobody needs to be told."""
        return False

    def size(self, client: int, task: int, size: int, done: int) -> int:
        """Return how many of its samples of a task a client has in a round."""
        return len(self.portion(size, done - int(self.plan.first[client, task])))

    def portions(self, done: int, sizes: NDArray[np.int64]) -> tuple[Rounds, NDArray[np.int64]]:
        """Return the clients that are in a task, and how many samples each has in this round.

        `sizes` are how many each client has of each task in all; 0 for one that nobody knows.
        """
        now = self.plan.now(done)
        here = np.flatnonzero(now != NEVER)
        ages = done - self.plan.first[here, now[here]]
        pairs, which = np.unique(np.stack([sizes[here, now[here]], ages]), axis=1, return_inverse=True)
        counts = np.array([len(self.portion(size, age)) for size, age in pairs.T.tolist()], np.int64)
        return here, counts[which.reshape(-1)]

    def sizes(self, done: int, sizes: NDArray[np.int64]) -> dict[int, int]:
        """Return how many samples each client that is in a task has in this round, where it has some."""
        here, counts = self.portions(done, sizes)
        return dict(zip(here[counts > 0].tolist(), counts[counts > 0].tolist(), strict=True))

    def ends(self, client: int) -> NDArray[np.int64]:
        """Return after how many rounds of the run a client leaves each task; 0 for one that it does not get."""
        ends: NDArray[np.int64] = self.plan.last[client] + 1
        return ends

    def gone(self, done: int) -> list[int]:
        """Return the clients that have left for good."""
        gone = self.plan.gone
        return [] if gone is None else [int(c) for c in np.flatnonzero(gone <= done)]

    def members(self, done: int) -> list[int]:
        """Return the clients that have begun something and are not gone."""
        return [int(c) for c in np.flatnonzero(self.plan.latest(done) >= 0)]


def total_rounds(options: BenchmarkOptions) -> int:
    """Return how many rounds a run with these options has in all."""
    return make_schedule(options).plan.total


def own_rounds(options: BenchmarkOptions) -> int:
    """Return the same where clients have clocks of their own, and 0 where they are together."""
    return 0 if make_schedule(options).together else total_rounds(options)


def make_schedule(options: BenchmarkOptions) -> Schedule:
    """Build the schedule that options ask for."""
    frame = Frame(options.clients, options.tasks, options.rounds, options.seed, options.zeta)
    made: Schedule = registry.get("schedule", options.schedule.kind)(options.schedule, frame)
    return made
