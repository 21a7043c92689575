"""Clients come with later tasks, leave for good, or never get a task (as in GLFC, Dong et al., CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cflag.data.options import ScheduleOptions
from cflag.data.schedules.base import NEVER, Plan, Schedule
from cflag.errors import UserError
from cflag.registry import register
from cflag.rng import stream


@dataclass(frozen=True)
class JoiningOptions(ScheduleOptions):
    """How many clients come, and how many go, with each task after the first, and who gets no new task."""

    join: int = 0
    """Clients that come with each task after the first; those with the highest numbers come last."""
    leave: int = 0
    """Clients that leave for good with each task after the first; those with the lowest numbers leave first."""
    lacking: float = 0.0
    """The share of the clients that sits a task out, drawn anew for each after the first; newcomers do not."""

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        for key in ("join", "leave"):
            if getattr(self, key) < 0:
                raise UserError(f"{table}.{key} = {getattr(self, key)} must be 0 or more")
        if not 0 <= self.lacking < 1:
            raise UserError(f"{table}.lacking = {self.lacking} must be at least 0 and below 1")


@register("schedule", "joining", "clients come with later tasks, leave for good, or sit a task out")
class Joining(Schedule):
    """All who are there change at the same time."""

    Settings: ClassVar[type[ScheduleOptions]] = JoiningOptions
    settings: JoiningOptions

    def planned(self) -> Plan:
        """The first task has all who come neither later nor never."""
        frame, settings = self.frame, self.settings
        start = frame.clients - settings.join * (frame.tasks - 1)
        if start < 1 or start + (settings.join - settings.leave) * (frame.tasks - 1) < 1:
            raise UserError(
                f"schedule.join = {settings.join} and schedule.leave = {settings.leave} a task leave no client of "
                f"{frame.clients} in the first or the last of {frame.tasks} tasks; lower them or take more clients"
            )
        first = np.full((frame.clients, frame.tasks), NEVER)
        gone = np.full(frame.clients, frame.tasks * frame.rounds)
        for task in range(frame.tasks):
            went, came = settings.leave * task, start + settings.join * task
            gone[went - settings.leave : went] = task * frame.rounds
            old = np.arange(went, came - settings.join if task else came)
            rng = stream(frame.seed, "lacking", task)
            without = rng.choice(old, int(settings.lacking * len(old)), replace=False) if task else old[:0]
            first[went:came, task] = task * frame.rounds
            first[without, task] = NEVER
        return Plan.of(first, np.where(first >= 0, first + frame.rounds - 1, NEVER), gone)
