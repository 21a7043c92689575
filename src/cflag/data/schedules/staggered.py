"""Groups of clients switch one after the other (as in Powder, Piao et al., ICML 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cflag.data.options import ScheduleOptions
from cflag.data.schedules.base import Plan, Schedule
from cflag.errors import UserError
from cflag.registry import register


@dataclass(frozen=True)
class StaggeredOptions(ScheduleOptions):
    """How many groups there are, and after how many rounds the next one switches."""

    groups: int = 2
    every: int = 1

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        for key in ("groups", "every"):
            if getattr(self, key) < 1:
                raise UserError(f"{table}.{key} = {getattr(self, key)} must be at least 1")


@register("schedule", "staggered", "groups of clients switch to the next task one after the other")
class Staggered(Schedule):
    """All begin together; the second group switches `every` rounds after the first, and so on; all end together."""

    Settings: ClassVar[type[ScheduleOptions]] = StaggeredOptions
    settings: StaggeredOptions

    def planned(self) -> Plan:
        """Neighbours are in a group; the first group's last task is the longest."""
        frame, groups = self.frame, self.settings.groups
        if groups > frame.clients:
            raise UserError(f"schedule.groups = {groups} is more than the {frame.clients} clients")
        delay = np.arange(frame.clients) * groups // frame.clients * self.settings.every
        first = np.arange(frame.tasks) * frame.rounds + delay[:, None]
        first[:, 0] = 0
        end = np.full((frame.clients, 1), frame.tasks * frame.rounds + (groups - 1) * self.settings.every)
        return Plan.of(first, np.hstack([first[:, 1:], end]) - 1)
