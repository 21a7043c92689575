"""A round is a conversation: the server asks all clients one question and gets the weighted mean of the answers.

A method writes the conversation as a generator of `Ask`s; an engine carries it. The method cannot tell which
engine that is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from cflag.errors import CflagError, UserError

if TYPE_CHECKING:
    from torch import Tensor

Value: TypeAlias = "Tensor | float"
"""What travels: a tensor or a number."""

Answer = dict[str, Value]
"""A client's answer to a question; every client answers with the same keys and shapes."""


class Ask:
    """A question to every client: one of the method's own functions, with what the server sends along."""

    whom: Literal["all", "past"] = "all"
    """Everyone who takes part in the round, or those of them who have left a task before."""

    def __init__(self, question: Callable[..., Answer], **sent: Value | None) -> None:
        self.question = question.__name__
        self.sent = {name: value for name, value in sent.items() if value is not None}

    def of_past(self) -> Ask:
        """Return the question as one to those who have a past alone; weights are theirs among themselves."""
        self.whom = "past"
        return self

    @classmethod
    def named(cls, question: str, sent: Mapping[str, Value], method: object) -> Ask:
        """Return a question that came by name, as one of a method's own functions."""
        function = None if question.startswith("_") else getattr(method, question, None)
        if not callable(function):
            raise CflagError(f"{type(method).__name__} has no question '{question}'")
        return cls(function, **sent)


class Mean(dict[str, Any]):
    """The weighted mean of the clients' answers, Σ p_i answer_i, read as `mean.g` or `mean["g"]`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the clients' answers hold no '{name}'; they hold {list(self)}") from None


Conversation = Generator[Ask, Mean, None]
"""What `Method.round` is: it yields questions and is sent the mean answers."""


@dataclass(frozen=True)
class Moment:
    """Where everybody is, under a schedule that lets clients be in different tasks."""

    seen: tuple[int, ...]
    """The tasks that anyone has begun, in ascending order."""
    left: tuple[int, ...]
    """The tasks that anyone has left, in ascending order."""
    mixed: bool = False
    """Whether some of those who take part have left a task before, and others have not."""

    @classmethod
    def together(cls, task: int) -> Moment:
        """Return where everybody is who goes from task to task with all others."""
        return cls(tuple(range(task + 1)), tuple(range(task)))


@dataclass(frozen=True)
class Own:
    """Where a client is by its own clock."""

    task: int
    past: tuple[int, ...]
    """The tasks that it has left and had samples of."""
    open: Tensor | None = None
    """Which outputs are open for it, where that is its own matter."""
    pieces: int = 0
    """Into how many mini-batches its samples of a round are cut, in order, where each is seen once; else 0."""
    told: bool = True
    """Whether it is told when a task begins and ends; if not, `past` is every task that was there in earlier rounds."""
    streams: bool = False
    """Whether samples pass by, so that a client that never took part has nothing in its memory."""


@dataclass(frozen=True)
class RoundContext:
    """When a question is asked, and of whom: what a client may know beside the question itself."""

    task: int
    round: int
    samples: int
    """Current samples of all clients asked; a client's weight p_i is its own number over this."""
    clients: int
    """How many clients are asked: the paper's N."""
    own: Moment | None = None
    """Where everybody is; None where all are in the same task."""

    @cached_property
    def moment(self) -> Moment:
        """Where everybody is."""
        return self.own or Moment.together(self.task)

    @property
    def when(self) -> tuple[int, int]:
        """The task and the round by the server's clock, which tells rounds apart."""
        return self.task, self.round


@dataclass
class Cost:
    """What a client spent on a question: gradient evaluations in samples, on current and on memory data."""

    current: int = 0
    memory: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.current + other.current, self.memory + other.memory)


@dataclass(frozen=True)
class Reply:
    """A client's answer with what is not averaged: its size, its cost, and logs for the metrics."""

    answer: Answer
    samples: int
    cost: Cost
    logs: Mapping[str, float | str]
    uses: int = 0
    """Where a private run protects samples: how often the client's most used one was used, in all."""


def nbytes(values: Mapping[str, Value]) -> int:
    """Return the size of what travels: tensors as they are, a number as 8 bytes."""
    return sum(v.numel() * v.element_size() if isinstance(v, torch.Tensor) else 8 for v in values.values())


def shapes(answer: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each value of an answer."""
    return {k: tuple(v.shape) if isinstance(v, torch.Tensor) else () for k, v in answer.items()}


LONGEST = 40
"""Characters of a word that a client logs."""


def loggable(values: Mapping[str, Any]) -> dict[str, float | str]:
    """Return what a method logs as plain numbers and short words; refuse anything else."""
    return {name: _loggable(name, value) for name, value in values.items()}


def _loggable(name: str, value: Any) -> float | str:
    if isinstance(value, str):
        return value[:LONGEST]
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, int | float):
        return int(value) if isinstance(value, bool) else value
    raise UserError(f"log({name}=...) takes a number or a word, not {type(value).__name__}")
