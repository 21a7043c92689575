"""The class-balanced ring buffer of the paper's experiments."""

from __future__ import annotations

import numpy as np
import torch

from cflag.data.samples import Samples
from cflag.memory.base import Memory
from cflag.registry import register


@register("memory", "ring", "class-balanced ring buffer: per_task samples of each task")
class Ring(Memory):
    """Keeps `per_task` samples of each task, as many of each class as of any other where there are enough.

    A ring for each class of each task, or for each task where samples have no single class: under a limit all rings
    shrink alike and lose their oldest samples first.
    """

    def add(self, samples: Samples, rng: np.random.Generator) -> None:
        """Keep a class-balanced choice of a finished task, then shrink all rings to the limit."""
        shuffled = samples[torch.from_numpy(rng.permutation(len(samples)))]
        fresh = shuffled[balanced(rings(shuffled), self.options.per_task)]
        kept = fresh if self.samples is None else Samples.cat([self.samples, fresh])
        limit = self.options.capacity(samples)
        if limit is not None and len(kept) > limit:
            newest_first = kept[torch.arange(len(kept) - 1, -1, -1)]
            keep = balanced(rings(newest_first), limit)
            kept = newest_first[keep.flip(0)]
        self.samples = kept


def rings(samples: Samples) -> list[torch.Tensor]:
    """Return the positions of each (task, class) ring's samples, in order; of each task's where none has a class."""
    labels = samples.task * (int(samples.y.max()) + 1) + samples.y if samples.classified else samples.task
    return [torch.nonzero(labels == ring).flatten() for ring in labels.unique()]


def balanced(rings: list[torch.Tensor], count: int) -> torch.Tensor:
    """Choose `count` positions, the first of each ring, the rings' shares differing by one where they can.

    Small rings give all they have; what they leave goes to the others, the latest rings first.
    """
    shares = [0] * len(rings)
    left = min(count, sum(len(r) for r in rings))
    while left:
        hungry = [k for k, ring in enumerate(rings) if shares[k] < len(ring)]
        even = left // len(hungry)
        for k in reversed(hungry):
            more = min(max(even, 1), len(rings[k]) - shares[k], left)
            shares[k] += more
            left -= more
    chosen = torch.cat([ring[:share] for ring, share in zip(rings, shares, strict=True)])
    return chosen.sort().values
