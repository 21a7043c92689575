"""Heads: which outputs may answer for a sample.

All heads are rows of one last layer, and a mask says which of them are open. In the task-incremental setting the
task's own head answers. In the class-incremental setting heads are appended: those of all classes seen so far are
open. A closed output gets no gradient, so a head that is not yet appended keeps its initial weights.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Heads:
    """Masks logits by a sample's task and the task being learned; `own` is (tasks, outputs), boolean."""

    def __init__(self, own: Tensor, by_task: bool) -> None:
        self.by_task = by_task
        self.open = own if by_task else own.cumsum(0) > 0
        self._closed = ~self.open
        self._all_open = bool(self.open.all())

    def mask(self, logits: Tensor, tasks: Tensor, current: int) -> Tensor:
        """Return the logits with closed outputs at minus infinity."""
        if self._all_open:
            return logits
        rows = tasks if self.by_task else tasks.clamp(min=current)
        return logits.masked_fill(self._closed.to(logits.device)[rows], -torch.inf)
