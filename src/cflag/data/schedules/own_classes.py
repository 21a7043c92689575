"""Every client draws classes of its own for each task (as in AF-FCL, Wuerkaixi et al., ICLR 2024)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cflag.data.options import ScheduleOptions
from cflag.data.partitions.base import Dealt, Indices
from cflag.data.partitions.rounding import dealt_by
from cflag.data.schedules.base import Classes, Frame
from cflag.data.schedules.together import Together
from cflag.errors import UserError
from cflag.registry import register
from cflag.rng import stream


@dataclass(frozen=True)
class OwnClassesOptions(ScheduleOptions):
    """How many classes a client has in a task, and how many of them are from the task's own."""

    classes: int = 0
    """Of each client in each task; 0: as many as the scenario gives the task."""
    overlap: float = 0.5
    """The share of a client's classes that it draws from the scenario's classes of the task, like all others; the rest
    is from those of other tasks. 1: nothing else, 0: nothing of it."""

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        if self.classes < 0 or not 0 <= self.overlap <= 1:
            raise UserError(f"{table}.classes must be 0 or more, and {table}.overlap between 0 and 1")


@register("schedule", "own-classes", "every client draws classes of its own for each task")
class OwnClasses(Together):
    """All change at the same time. A class's samples are shared out among all who have it, in whichever task."""

    Settings: ClassVar[type[ScheduleOptions]] = OwnClassesOptions
    deals = True
    settings: OwnClassesOptions

    def __init__(self, settings: OwnClassesOptions, frame: Frame) -> None:
        super().__init__(settings, frame)
        self._drawn: dict[Classes, list[Classes]] = {}

    def drawn(self, pools: Classes) -> list[Classes]:
        """Return each client's classes of each task; of those of other tasks, the ones it had least come first."""
        if pools not in self._drawn:
            self._drawn[pools] = [self._of_client(client, pools) for client in range(self.frame.clients)]
        return self._drawn[pools]

    def _of_client(self, client: int, pools: Classes) -> Classes:
        every, mine, had = sorted({c for pool in pools for c in pool}), [], dict.fromkeys(sum(pools, ()), 0)
        for task, pool in enumerate(pools):
            count = self.settings.classes or len(pool)
            if count > len(every):
                raise UserError(f"schedule.classes = {count} is more than the {len(every)} classes there are")
            rng = stream(self.frame.seed, "own classes", client, task)
            common = min(round(self.settings.overlap * count), len(pool))
            chosen = rng.permutation(pool)[:common].tolist()
            others = rng.permutation(
                [c for c in every if c not in pool] or [c for c in pool if c not in chosen]
            ).tolist()
            rest = [c for c in rng.permutation(pool).tolist() if c not in chosen]
            chosen += [c for c in [*sorted(others, key=had.__getitem__), *rest] if c not in chosen][: count - common]
            for label in chosen:
                had[label] += 1
            mine.append(tuple(sorted(chosen)))
        return tuple(mine)

    def classes(self, pools: Classes) -> Classes:
        """A task has all that anyone learns in it."""
        drawn = self.drawn(pools)
        return tuple(tuple(sorted({c for mine in drawn for c in mine[task]})) for task in range(len(pools)))

    def deal(self, usual: Callable[[int], Dealt], labels: tuple[Indices, Indices], pools: Classes) -> list[Dealt]:
        """Share every class out among those who hold it, in train and test alike, by Dirichlet(ζ)."""
        drawn, frame = self.drawn(pools), self.frame
        places = [(client, task) for client in range(frame.clients) for task in range(len(pools))]
        every = sorted({label for mine in drawn for some in mine for label in some})
        rngs = [stream(frame.seed, "own classes deal", label) for label in every]
        shares = np.zeros((len(every), len(places)))
        for row, label in enumerate(every):
            holders = [place for place, (client, task) in enumerate(places) if label in drawn[client][task]]
            shares[row, holders] = rngs[row].dirichlet(np.full(len(holders), frame.zeta))
        halves = []
        for of in labels:
            of_class = [rng.permutation(np.flatnonzero(of == label)) for rng, label in zip(rngs, every, strict=True)]
            halves.append(dealt_by(of_class, shares))
        train, test = halves
        return [(train[task :: len(pools)], test[task :: len(pools)]) for task in range(len(pools))]
