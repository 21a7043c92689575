"""Every client has the tasks in an order of its own (as in FedWeIT, Yoon et al., ICML 2021)."""

from __future__ import annotations

import numpy as np

from cflag.data.schedules.base import Plan, Schedule, steady
from cflag.registry import register
from cflag.rng import stream


@register("schedule", "own-order", "every client has the tasks in a seeded order of its own")
class OwnOrder(Schedule):
    """All change at the same time, but not to the same task."""

    def planned(self) -> Plan:
        """Draw a permutation of the tasks for each client."""
        frame = self.frame
        orders = [stream(frame.seed, "own order", client).permutation(frame.tasks) for client in range(frame.clients)]
        return steady(np.stack(orders), frame.rounds)
