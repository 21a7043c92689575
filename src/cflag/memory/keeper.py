"""The keeper of a process's memories: nothing forgotten is learned from or taken, and nothing is kept for too long."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import torch

from cflag.conversation import RoundContext
from cflag.data.samples import Samples
from cflag.data.schedules.base import Schedule
from cflag.memory.base import Memory, MemoryOptions
from cflag.memory.erase import list_of, too_old
from cflag.memory.forgotten import Forgotten
from cflag.memory.homes import age_in_rounds, today


class Keeper:
    """Knows the lists of what was forgotten, and how long memories may keep samples."""

    def __init__(self, options: MemoryOptions, schedule: Schedule) -> None:
        self.limits = options.expire_rounds, options.expire_days
        self.schedule = schedule
        self.lists: dict[int | None, Forgotten] = {}
        self._now: tuple[RoundContext | None, date] = (None, today())

    def watch(self, home: Path, client: int | None = None) -> None:
        """From now on follow a home's list: for one client, or for all that have none of their own."""
        if client not in self.lists:
            self.lists[client] = list_of(home)

    def look(self) -> bool:
        """Read lists that changed; say whether one did."""
        return sum(forgotten.look() for forgotten in self.lists.values()) > 0

    def allowed(self, client: int, samples: Samples) -> Samples:
        """Return the samples that a client may learn from."""
        forgotten = self.lists.get(client) or self.lists.get(None)
        return samples if forgotten is None else forgotten.without(samples)

    def expire(self, client: int, memory: Memory, context: RoundContext) -> None:
        """Take out of a client's memory what is too old at the beginning of a round."""
        if memory.samples is None or self.limits == (0, 0):
            return
        if context != self._now[0]:  # one day for all questions of a round
            self._now = context, today()
        done = context.task * self.schedule.frame.rounds + context.round
        age = age_in_rounds(memory.samples.task, torch.tensor(self.schedule.ends(client)), done)
        old = too_old(memory.samples, self.limits, age, memory.dates, self._now[1])
        if bool(old.all()):
            memory.samples = None
        elif bool(old.any()):
            memory.samples = memory.samples[~old]


def dated(memory: Memory) -> dict[str, str]:
    """Return the day on which each task's samples were taken: today where they are new."""
    assert memory.samples is not None
    tasks = [str(task) for task in memory.samples.task.unique().tolist()]
    memory.dates = {task: memory.dates.get(task, today().isoformat()) for task in tasks}
    return memory.dates
