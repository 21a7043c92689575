"""Everybody learns the same task at the same time, as in the paper."""

from __future__ import annotations

import numpy as np

from cflag.data.schedules.base import Plan, Schedule
from cflag.registry import register


@register("schedule", "together", "everybody learns the same task at the same time")
class Together(Schedule):
    """Task after task, so many rounds each."""

    def planned(self) -> Plan:
        """Give all clients one row."""
        frame = self.frame
        first = np.arange(frame.tasks) * frame.rounds
        shape = (frame.clients, frame.tasks)
        return Plan(np.broadcast_to(first, shape), np.broadcast_to(first + frame.rounds - 1, shape))

    @property
    def together(self) -> bool:
        """It is what it is named after; where samples pass by, everyone has a past of its own."""
        return not self.streams
