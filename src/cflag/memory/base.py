"""What every replay memory can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from cflag.data.samples import Samples
from cflag.errors import UserError
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MemoryOptions:
    """The size of a client's memory: the paper's m_0 per task, how many are drawn per round, and limits in all."""

    kind: str = "ring"
    per_task: int = 400
    sample: int = 200
    limit_samples: int = 0
    limit_bytes: int = 0
    of: Literal["features", "images"] = "features"
    """What is kept of pictures that went through a backbone: its features, or the pictures, to go through it again."""
    expire_rounds: int = 0
    """For how many rounds after the end of its task a sample is kept; 0 is for good."""
    expire_days: float = 0.0
    """The same in days, by the clock of the client's machine: then numbers depend on when a run runs."""

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        for key in ("per_task", "sample"):
            if getattr(self, key) < 1:
                raise UserError(f"{table}.{key} = {getattr(self, key)} must be at least 1")
        for key in ("limit_samples", "limit_bytes", "expire_rounds", "expire_days"):
            if getattr(self, key) < 0:
                raise UserError(f"{table}.{key} = {getattr(self, key)} must be 0 (no limit) or more")
        for key in ("per_task", "limit_samples"):
            if 0 < getattr(self, key) < self.sample:
                raise UserError(f"{table}.sample = {self.sample} is larger than {table}.{key} = {getattr(self, key)}")

    def capacity(self, samples: Samples) -> int | None:
        """Return how many samples like these may be kept in all, or None where there is no limit."""
        bounds = [self.limit_samples] if self.limit_samples else []
        if self.limit_bytes:
            size = samples.bytes_each()
            bounds.append(self.limit_bytes // size)
            if not bounds[-1]:
                raise UserError(f"memory.limit_bytes = {self.limit_bytes} is less than one sample: {size} bytes")
        return min(bounds) if bounds else None

    def check_limits(self, samples: Samples) -> None:
        """Refuse limits that samples like these cannot live with."""
        limit = self.capacity(samples)
        if limit is not None and limit < self.sample:
            raise UserError(f"memory.sample = {self.sample} is larger than the memory's limit of {limit} samples")


class Memory:
    """Keeps samples; a kind of memory says in `add` which. State is a handful of plain tensors.

    Where it is to keep pictures, `samples` have them beside their features, and `state` has them alone.
    """

    encode: Callable[[Samples], Samples] | None = None
    """What gives pictures their features back, where pictures are kept."""

    def __init__(self, options: MemoryOptions) -> None:
        self.options = options
        self.samples: Samples | None = None
        self.dates: dict[str, str] = {}
        """The day on which the samples of each task were taken; beside the state, since no number depends on it."""

    def __len__(self) -> int:
        return 0 if self.samples is None else len(self.samples)

    @property
    def enabled(self) -> bool:
        """Whether this memory can ever hold anything."""
        return True

    def add(self, samples: Samples, rng: np.random.Generator) -> None:
        """Take what this memory keeps of a finished task's samples."""
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, count: int = 0) -> Samples | None:
        """Draw `count` samples (this round's `sample` by default) without replacement; None while it is empty."""
        if self.samples is None or not len(self.samples):
            return None
        count = min(count or self.options.sample, len(self.samples))
        chosen = np.sort(rng.choice(len(self.samples), size=count, replace=False))
        return self.samples[torch.from_numpy(chosen)]

    def state(self) -> dict[str, Tensor]:
        """Return what must survive a restart."""
        if self.samples is None:
            return {}
        return self.samples.stored().tensors()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self.samples = Samples(**state) if state else None
        if self.encode is not None and self.samples is not None:
            self.samples = self.encode(self.samples)


@register("memory", "none", "keeps nothing")
class NoMemory(Memory):
    """Keeps nothing: C-FLAG is then FedTrack."""

    @property
    def enabled(self) -> bool:
        """It cannot hold anything."""
        return False

    def add(self, samples: Samples, rng: np.random.Generator) -> None:
        """Keep nothing."""
