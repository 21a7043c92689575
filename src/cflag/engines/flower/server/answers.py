"""Reading what a client answers: everything in it may be wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cflag.conversation import Answer, Cost, Reply
from cflag.engines.flower.messages import GarbageError, Question
from cflag.server import Server

FAULTS = (GarbageError, KeyError, TypeError, ValueError, OverflowError, RuntimeError)
"""What reading an answer may raise, whatever is in it."""


def read_reply(
    number: int, head: Mapping[str, Any], tensors: Mapping[str, Tensor], question: Question, server: Server
) -> Reply:
    """Check all of an answer that does not depend on the others'."""
    if head["position"] != list(question.position):
        raise GarbageError(f"it answers question {head['position']}, asked was {list(question.position)}")
    if head["samples"] != server.sizes[number]:
        raise GarbageError(f"it counts {head['samples']} samples; it has {server.sizes[number]}")
    numbers = {str(k): _number(v) for k, v in dict(head["numbers"]).items()}
    current, memory = (int(_number(v)) for v in head["cost"])
    logs = {str(k): _log_value(str(k), v) for k, v in dict(head["logs"]).items()}
    for name, tensor in tensors.items():
        if tensor.dtype != server.params.dtype:
            raise GarbageError(f"its {str(name)[:40]} is {tensor.dtype}, expected {server.params.dtype}")
    answer: Answer = {k: v.to(server.params.device) for k, v in tensors.items()}
    return Reply({**answer, **numbers}, head["samples"], Cost(current, memory), logs)


def _number(value: Any) -> float:
    """Return a plain number, or refuse."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GarbageError(f"{str(value)[:40]} is not a number")
    float(value)  # an integer may be too large to compute with
    return value


def _log_value(name: str, value: Any) -> float | str:
    """Return a remark: a word for the case, a number for everything else."""
    if name == "case" and isinstance(value, str):
        return value[:40]
    return _number(value)


def checked_counts(counts: Any, sizes: Sequence[int]) -> Tensor:
    """Refuse counts of right answers that cannot be."""
    rows = torch.tensor(counts, dtype=torch.long)
    if rows.shape != (len(sizes), 3) or rows[:, 2].tolist() != list(sizes):
        raise GarbageError(f"its test counts are not of {list(sizes)} samples")
    if bool((rows[:, :2] < 0).any()) or bool((rows[:, :2] > rows[:, 2:]).any()):
        raise GarbageError("its test counts are not between none and all")
    return rows
