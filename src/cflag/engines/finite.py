"""Refuse answers that are no longer numbers, before they reach the model."""

from __future__ import annotations

from math import isfinite

from torch import Tensor

from cflag.conversation import Reply, Value
from cflag.errors import DivergedError


def check_finite(reply: Reply, number: int, question: str, when: tuple[int, int]) -> None:
    """Refuse an answer that is no longer a number; `when` are the task and the round, from 0."""
    values = {**reply.answer, **{k: v for k, v in reply.logs.items() if isinstance(v, float)}}
    for name, value in values.items():
        if not _finite(value):
            raise DivergedError(
                f"client {number}'s {name} is not finite in task {when[0] + 1}, round {when[1] + 1} "
                f"(question '{question}'): training diverged; try a smaller learning rate"
            )


def _finite(value: Value) -> bool:
    """Whether all numbers are finite: they are if their sum is; an infinite sum may be too large, so look closer."""
    if not isinstance(value, Tensor):
        return isfinite(value)
    return not value.numel() or isfinite(value.sum().item()) or bool(value.isfinite().all())
