"""Every client has the tasks in an order of its own (as in FedWeIT, Yoon et al., ICML 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cflag.data.options import ScheduleOptions
from cflag.data.schedules.base import Plan, Schedule
from cflag.errors import UserError
from cflag.registry import register
from cflag.rng import stream


@dataclass(frozen=True)
class OwnOrderOptions(ScheduleOptions):
    """By how much clients' moments of switching differ."""

    jitter: float = 0.0
    """0: all switch at the same time; 0.5: each switches up to half a task's rounds earlier or later, drawn anew for
    every client and switch."""

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        if not 0 <= self.jitter <= 0.5:
            raise UserError(f"{table}.jitter = {self.jitter} must lie between 0 and 0.5")


@register("schedule", "own-order", "every client has the tasks in a seeded order of its own")
class OwnOrder(Schedule):
    """All begin and end together."""

    Settings: ClassVar[type[ScheduleOptions]] = OwnOrderOptions
    settings: OwnOrderOptions

    def planned(self) -> Plan:
        """Draw a permutation of the tasks, and the moments of switching, for each client."""
        frame, shape = self.frame, (self.frame.clients, self.frame.tasks)
        first, last = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for client in range(frame.clients):
            order = stream(frame.seed, "own order", client).permutation(frame.tasks)
            begins, ends = self._switches(client)
            first[client, order], last[client, order] = begins, ends
        return Plan.of(first, last)

    def _switches(self, client: int) -> tuple[list[int], list[int]]:
        """Return the first and last rounds of a client's first, second, ... task; each has one round at least."""
        frame, early = self.frame, [0] * self.frame.tasks
        if self.settings.jitter:
            shifts = stream(frame.seed, "own switches", client).uniform(-1, 1, frame.tasks) * self.settings.jitter
            early = [round(shift * frame.rounds) for shift in shifts]
        begins = [0]
        for position in range(1, frame.tasks):
            begins.append(max(begins[-1] + 1, position * frame.rounds + early[position]))
        total = frame.tasks * frame.rounds
        begins = [min(begin, total - (frame.tasks - position)) for position, begin in enumerate(begins)]
        return begins, [*(begin - 1 for begin in begins[1:]), total - 1]
