"""Neighbouring tasks mix (as in Rainbow Memory's blurry streams, Bang et al., CVPR 2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cflag.data.options import ScheduleOptions
from cflag.data.partitions.base import Dealt, Indices
from cflag.data.schedules.base import Classes
from cflag.data.schedules.together import Together
from cflag.errors import UserError
from cflag.registry import register
from cflag.rng import stream


@dataclass(frozen=True)
class BlurryOptions(ScheduleOptions):
    """The share of a client's training samples of a task that it gets during the tasks before and after."""

    share: float = 0.2

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        if not 0 <= self.share < 1:
            raise UserError(f"{table}.share = {self.share} must be at least 0 and below 1")


@register("schedule", "blurry", "neighbouring tasks mix: a share of each comes with the tasks before and after")
class Blurry(Together):
    """Half of the share goes to each neighbour, at the ends all to the only one. Tests are of a task's own classes."""

    Settings: ClassVar[type[ScheduleOptions]] = BlurryOptions
    settings: BlurryOptions

    def classes(self, pools: Classes) -> Classes:
        """A task has its neighbours' classes, too."""
        if not self.settings.share:
            return pools
        near = [pools[max(0, t - 1) : t + 2] for t in range(len(pools))]
        own_first = [[pools[t], *(p for p in near[t] if p != pools[t])] for t in range(len(pools))]
        return tuple(tuple(dict.fromkeys(c for pool in some for c in pool)) for some in own_first)

    def deal(self, usual: Callable[[int], Dealt], labels: tuple[Indices, Indices], pools: Classes) -> list[Dealt]:
        """Deal as usual, then let every client's samples move."""
        dealt = super().deal(usual, labels, pools)
        mixed = [[[] for _ in range(self.frame.clients)] for _ in dealt]  # type: list[list[list[Indices]]]
        for task, (train, _) in enumerate(dealt):
            near = [t for t in (task - 1, task + 1) if 0 <= t < len(dealt)]
            for client, mine in enumerate(train):
                moved = round(self.settings.share * len(mine)) if near else 0
                shuffled = stream(self.frame.seed, "blurry", client, task).permutation(mine)
                mixed[task][client].append(shuffled[moved:])
                for k, neighbour in enumerate(near):
                    mixed[neighbour][client].append(shuffled[:moved][k :: len(near)])
        trains = [[np.sort(np.concatenate(parts)) for parts in clients] for clients in mixed]
        return [(train, test) for train, (_, test) in zip(trains, dealt, strict=True)]
