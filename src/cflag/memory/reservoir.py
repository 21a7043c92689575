"""Reservoir sampling (Vitter, 1985): at any time a uniform sample of everything seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from cflag.data.samples import Samples
from cflag.memory.base import Memory, MemoryOptions
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@register("memory", "reservoir", "a uniform sample of all that was ever seen")
class Reservoir(Memory):
    """Keeps a uniform sample of all tasks so far: `per_task` samples in all, or the limit where one is set."""

    def __init__(self, options: MemoryOptions) -> None:
        super().__init__(options)
        self.seen = 0

    def add(self, samples: Samples, rng: np.random.Generator) -> None:
        """Let a finished task's samples pass by, one after the other."""
        limit = self.options.capacity(samples)
        capacity = self.options.per_task if limit is None else limit
        old = len(self)
        together = samples if self.samples is None else Samples.cat([self.samples, samples])
        slots = list(range(old))
        for k in range(len(samples)):
            self.seen += 1
            if len(slots) < capacity:
                slots.append(old + k)
            else:
                slot = int(rng.integers(self.seen))
                if slot < capacity:
                    slots[slot] = old + k
        self.samples = together[torch.tensor(slots, dtype=torch.long)]

    def state(self) -> dict[str, Tensor]:
        """Return the samples and how many were seen."""
        return {**super().state(), "seen": torch.tensor(self.seen)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        kept = dict(state)
        self.seen = int(kept.pop("seen", torch.tensor(0)))
        super().restore(kept)
