"""Samples: what a client trains on, keeps in memory and is tested with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """n samples: `x` (n, ...), labels `y` and the `task` each came with."""

    x: Tensor
    y: Tensor
    task: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Tensor | slice) -> Samples:
        return Samples(self.x[index], self.y[index], self.task[index])

    def split(self, size: int) -> list[Samples]:
        """Cut into consecutive pieces of `size` samples; the last may be smaller."""
        pieces = zip(self.x.split(size), self.y.split(size), self.task.split(size), strict=True)
        return [Samples(x, y, task) for x, y, task in pieces]

    def to(self, device: torch.device) -> Samples:
        """Return the samples on a device."""
        return Samples(self.x.to(device), self.y.to(device), self.task.to(device))

    @staticmethod
    def cat(parts: Sequence[Samples]) -> Samples:
        """Join samples in the order given."""
        return Samples(
            torch.cat([p.x for p in parts]),
            torch.cat([p.y for p in parts]),
            torch.cat([p.task for p in parts]),
        )
