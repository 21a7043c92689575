"""Checks of what clients answer: everything in it may be wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cflag.conversation import Answer, Cost, Reply, RoundContext
from cflag.engines.flower.messages import GarbageError, Parcel, Question
from cflag.errors import one_line
from cflag.problems.base import Problem
from cflag.server import Server

FAULTS = (GarbageError, KeyError, TypeError, ValueError, OverflowError, RuntimeError)
"""What reading an answer may raise, whatever is in it."""
NUMBERS = ("loss", "memory_loss")
"""Logs that must be numbers: the metrics hold their mean over clients."""
LONGEST = 40
"""Characters that a log in words, and a name, may have."""
MOST_LOGS = 64
MOST = 2**40
"""Gradients that a client may say it has computed for a question, and uses of one of its samples."""


Shapes = dict[str, tuple[int, ...]]
"""The names in an answer, and the shape of each."""


class AnswerChecks:
    """Tells good answers from bad ones; remembers the shapes that the answers to a question have."""

    def __init__(self, claimed: Callable[[int, RoundContext], int]) -> None:
        self.claimed = claimed
        """How many samples a client has in a round, by what it said when it came."""
        self._shapes: dict[tuple[object, ...], Shapes] = {}

    def read(self, number: int, parcel: Parcel, question: Question, server: Server) -> Reply:
        """Read a client's answer, and check all of it that does not depend on other answers."""
        return read_reply(*parcel, question, self.claimed(number, question.context), server)

    def expected(self, question: Question) -> Shapes | None:
        """Return the names and shapes that this question's answers had before; None where it is new."""
        return self._shapes.get(_key(question))

    def vote(self, given: Sequence[Shapes], question: Question, asked: int) -> Shapes:
        """Return the names and shapes that most answers to a new question have; more than half of `asked` settle it.

        If two have equally many votes, the one that looks more like the model wins.
        """
        model = question.model
        votes = Counter(tuple(sorted(its.items())) for its in given)
        like = {tuple(model.params.shape), tuple(model.buffers.shape), ()}
        best = max(votes, key=lambda vote: (votes[vote], sum(shape in like for _, shape in vote)))
        if 2 * votes[best] > asked:
            self._shapes.setdefault(_key(question), dict(best))
        return dict(best)


def _key(question: Question) -> tuple[object, ...]:
    """Return what decides how answers to a question look."""
    moment = question.context.moment
    return question.name, question.context.task, bool(moment.left), moment.mixed


def read_reply(
    head: Mapping[str, Any], tensors: Mapping[str, Tensor], question: Question, samples: int, server: Server
) -> Reply:
    """Read an answer, and check all of it that does not depend on other answers."""
    if head["position"] != list(question.position):
        raise GarbageError(f"it answers question {head['position']}, asked was {list(question.position)}")
    if head["samples"] != samples:
        raise GarbageError(f"it counts {head['samples']} samples; it has {samples}")
    numbers = {one_line(k, LONGEST): _number(v) for k, v in dict(head["numbers"]).items()}
    current, memory = (_count(v, "gradients") for v in head["cost"])
    if len(head["logs"]) > MOST_LOGS or len(head["numbers"]) > MOST_LOGS:
        raise GarbageError(f"it logs {len(head['logs'])} things; at most {MOST_LOGS} are allowed")
    logs = {one_line(k, LONGEST): _log_value(str(k), v) for k, v in dict(head["logs"]).items()}
    for name, tensor in tensors.items():
        if tensor.dtype != server.params.dtype:
            raise GarbageError(f"its {name[:40]} is {tensor.dtype}, expected {server.params.dtype}")
    answer: Answer = {one_line(k, LONGEST): v.to(server.params.device) for k, v in tensors.items()}
    uses = _count(head.get("uses", 0), "uses of a sample")
    return Reply({**answer, **numbers}, head["samples"], Cost(current, memory), logs, uses)


def checked_counts(counts: Any, sizes: Sequence[int], problem: Problem, outputs: int) -> Tensor:
    """Refuse sums over held-out samples that are impossible."""
    rows = torch.tensor(counts, dtype=torch.long if problem.whole else torch.float64)
    width = problem.width(outputs)
    if rows.shape != (len(sizes), 2 * width + 1) or rows[:, -1].tolist() != list(sizes):
        raise GarbageError(f"its test counts are not of {list(sizes)} samples")
    sums, samples = rows[:, :-1].double().numpy(), rows[:, -1].double().numpy()
    if not (problem.possible(sums[:, :width], samples) and problem.possible(sums[:, width:], samples)):
        raise GarbageError("its test counts are not between none and all, or otherwise impossible")
    return rows


def _number(value: Any) -> float:
    """Return a plain number, or refuse."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GarbageError(f"{str(value)[:40]} is not a number")
    float(value)  # an integer may be too large to compute with
    return value


def _count(value: Any, what: str) -> int:
    """Return how often something happened, or refuse what cannot be."""
    if not 0 <= _number(value) <= MOST:
        raise GarbageError(f"it counts {str(value)[:40]} {what}")
    return int(value)


def _log_value(name: str, value: Any) -> float | str:
    """Return what a client logs: a number, or a few words where the metrics need no number."""
    if not isinstance(value, str) or name in NUMBERS:
        return _number(value)
    if len(value) > LONGEST:
        raise GarbageError(f"its log '{name[:40]}' has {len(value)} characters; at most {LONGEST} are allowed")
    return one_line(value, LONGEST)
