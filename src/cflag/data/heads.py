"""Heads: which outputs may answer for a sample.

All heads are rows of one last layer, and a mask says which of them are open. In the task-incremental setting the
task's own head answers. In the class-incremental setting heads are appended: those of all classes seen so far are
open. A closed output gets no gradient, so a head that is not yet appended keeps its initial weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Heads:
    """Masks logits by a sample's task and the tasks seen so far; `own` is (tasks, outputs), boolean."""

    def __init__(self, own: Tensor, by_task: bool) -> None:
        self.by_task = by_task
        self.own = own
        self._up_to = own.cumsum(0) > 0
        self._own = _Closed(~own)
        self._seen: dict[tuple[int, ...], _Closed] = {}

    def outputs(self, tasks: Sequence[int]) -> Tensor:
        """Return which outputs belong to any of these tasks."""
        return self.own[list(tasks)].any(0)

    def open(self, task: int, seen: Sequence[int]) -> Tensor:
        """Return which outputs are open for a sample of a task while these are the tasks seen so far."""
        return self.own[task] if self.by_task else self.outputs(seen)

    def before(self, tasks: Sequence[int]) -> list[Tensor]:
        """Return the output numbers of each softmax of earlier tasks: a head per task, or all heads appended so far."""
        rows = [self.own[task] for task in tasks] if self.by_task else [self.outputs(tasks)] if len(tasks) else []
        return [row.nonzero().flatten() for row in rows]

    def mask(self, logits: Tensor, tasks: Tensor, seen: tuple[int, ...]) -> Tensor:
        """Return the logits with closed outputs at minus infinity.

        By adding it: unlike that of filling it in, the gradient of a sum costs nothing.
        """
        return self._of(seen).mask(logits, tasks)

    def closes(self, seen: tuple[int, ...]) -> bool:
        """Whether any output is closed for samples of any task while these are the tasks seen so far."""
        return self._of(seen).any

    def shift(self, tasks: Tensor, seen: tuple[int, ...]) -> Tensor:
        """Return what `mask` adds to the logits of samples."""
        return self._of(seen).shift.index_select(0, tasks)

    def readings(self, scores: Tensor, tasks: Tensor, seen: tuple[int, ...]) -> list[Tensor]:
        """Return the scores twice: with a sample's own task known, and not known: all outputs seen so far are open."""
        return [closed.mask(scores, tasks) for closed in (self._own, self._closed(seen))]

    @property
    def shared(self) -> bool:
        """Whether every task has all outputs."""
        return not self._own.any

    def _of(self, seen: tuple[int, ...]) -> _Closed:
        return self._own if self.by_task else self._closed(seen)

    def _closed(self, seen: tuple[int, ...]) -> _Closed:
        """Return what is closed when these tasks are seen; a sample of a later one has all up to it open, too."""
        if seen not in self._seen:
            rows = self.outputs(seen).repeat(len(self.own), 1)
            later = [task for task in range(len(self.own)) if task not in seen]
            rows[later] |= self._up_to[later]
            self._seen[seen] = _Closed(~rows)
        return self._seen[seen]


class _Closed:
    """Which outputs may not answer for samples of each task."""

    def __init__(self, rows: Tensor) -> None:
        self.any = bool(rows.any())
        self.shift = torch.zeros(rows.shape).masked_fill(rows, -torch.inf)

    def mask(self, logits: Tensor, tasks: Tensor) -> Tensor:
        """Return logits with those that a sample's task does not allow at minus infinity."""
        if not self.any:  # a model with a loss of its own may then have any number of outputs
            return logits
        return logits + self.shift.to(logits.device).index_select(0, tasks)
