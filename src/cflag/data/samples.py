"""Samples: what a client trains on, keeps in memory and is tested with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

NOBODY = -1
"""The subject of a sample of which nobody knows whose it is."""


@dataclass(frozen=True)
class Samples:
    """n samples: `x` (n, ...), labels `y`, the `task` each came with and, where a method wants them, `logits`.

    Labels are what the problem says: (n,) classes, (n,) or (n, k) numbers, (n, k) zeros and ones, (n, T) classes.
    """

    x: Tensor
    y: Tensor
    task: Tensor
    logits: Tensor | None = None
    """What a model once answered, (n, outputs): the target of a distillation."""
    subject: Tensor | None = None
    """Whose each sample is, where the source knows; no number depends on it."""
    index: Tensor | None = None
    """Which of its client's samples of a task each is, where a private run counts their uses; negative: nobody's."""

    picture: Tensor | None = None
    """What features in `x` were made of, where memories keep that in their place."""

    def __len__(self) -> int:
        return self.y.shape[0]  # len() of a tensor takes seven times as long

    @cached_property
    def of_task(self) -> Mapping[int, int]:
        """How many samples there are of each task."""
        return Counter(self.task.tolist())

    @property
    def classified(self) -> bool:
        """Whether each sample has a single class."""
        return self.y.dim() == 1 and not self.y.is_floating_point()

    def of(self, task: int) -> int:
        """Return how many samples there are of a task."""
        return self.task.tolist().count(task)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: t for name in NAMES if (t := getattr(self, name)) is not None}

    def stored(self) -> Samples:
        """Return the samples as a memory stores them: pictures, where there are some, in the place of features."""
        return self if self.picture is None else replace(self, x=self.picture, picture=None)

    def bytes_each(self) -> int:
        """Return what one sample takes in a memory, without whose it is: limits count what is learned from."""
        return sum(t[:1].nbytes for name, t in self.stored().tensors().items() if name != "subject")

    def __getitem__(self, index: Tensor | slice) -> Samples:
        if isinstance(index, torch.Tensor) and index.dtype == torch.long:  # what most are, in a third of the time
            return self._each(lambda t: t.index_select(0, index))
        return self._each(lambda t: t[index])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Samples:
        """Return the samples with every tensor changed."""
        tensors = self.x, self.y, self.task, self.logits, self.subject, self.index, self.picture
        return Samples(*[None if t is None else change(t) for t in tensors])  # type: ignore[arg-type]

    def split(self, size: int) -> list[Samples]:
        """Cut into consecutive pieces of `size` samples; the last may be smaller."""
        count = len(self)
        if count <= size:
            return [self]
        return [self[start : start + size] for start in range(0, count, size)]

    def to(self, device: torch.device) -> Samples:
        """Return the samples on a device."""
        if self.x.device == device:
            return self
        return self._each(lambda t: t.to(device))

    @staticmethod
    def cat(parts: Sequence[Samples]) -> Samples:
        """Join samples in the order given; logits stay only if all have them, subjects if any have."""
        if any(part.subject is not None for part in parts):
            parts = [p if p.subject is not None else replace(p, subject=torch.full_like(p.task, NOBODY)) for p in parts]
        names = set.intersection(*(set(part.tensors()) for part in parts))
        return Samples(**{name: torch.cat([p.tensors()[name] for p in parts]) for name in names})


NAMES = tuple(field.name for field in fields(Samples))
"""What samples are made of."""
