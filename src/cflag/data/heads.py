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
        self.own = own
        self.seen = own.cumsum(0) > 0
        self.open = own if by_task else self.seen
        self._closed = {name: _Closed(~rows) for name, rows in (("own", own), ("seen", self.seen), ("open", self.open))}

    def of_task(self, tasks: Tensor) -> Tensor:
        """Return which outputs were open when samples of these tasks were learned, a row each."""
        return self.open.to(tasks.device)[tasks]

    def before(self, current: int) -> list[Tensor]:
        """Return the output numbers of each earlier softmax: a head per task, or all heads appended so far."""
        rows = self.open[:current] if self.by_task else self.open[max(current - 1, 0) : current]
        return [row.nonzero().flatten() for row in rows]

    def mask(self, logits: Tensor, tasks: Tensor, current: int) -> Tensor:
        """Return the logits with closed outputs at minus infinity."""
        return self._closed["open"].mask(logits, tasks if self.by_task else tasks.clamp(min=current))

    def right(self, scores: Tensor, labels: Tensor, tasks: Tensor, current: int) -> Tensor:
        """Return (n, 2): is the answer right among the task's own classes, and among all classes seen so far."""
        readings = (("own", tasks), ("seen", tasks.clamp(min=current)))
        answers = [self._closed[name].mask(scores, rows).argmax(1) for name, rows in readings]
        return torch.stack([answer == labels for answer in answers], dim=1)


class _Closed:
    """Which outputs may not answer for samples of each task."""

    def __init__(self, rows: Tensor) -> None:
        self.any = bool(rows.any())
        self.shift = torch.zeros(rows.shape).masked_fill(rows, -torch.inf)

    def mask(self, logits: Tensor, tasks: Tensor) -> Tensor:
        """Return logits with those that a sample's task does not allow at minus infinity.

        By adding it: unlike that of filling it in, the gradient of a sum costs nothing.
        """
        if not self.any:  # a model with a loss of its own may then have any number of outputs
            return logits
        return logits + self.shift.to(logits.device).index_select(0, tasks)
