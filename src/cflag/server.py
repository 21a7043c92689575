"""The public side: the global model and what a method keeps at the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cflag.conversation import Moment, loggable
from cflag.rng import torch_seed

if TYPE_CHECKING:
    from cflag.learning.learner import Learner


@dataclass
class Server:
    """What a method sees of the server.

    `state` holds tensors and JSON values that survive restarts. `sizes` are the numbers of current samples of the
    clients, which give the weights p_i.
    """

    params: Tensor
    """The global model x_t, flat."""
    buffers: Tensor
    """The global batch-norm statistics, flat; empty for a model without."""
    rounds: int
    """T, the number of rounds of each task."""
    learner: Learner
    """A model to compute with, for methods whose server does; load parameters into it first."""
    seed: int = 0
    task: int = 0
    """By the server's own clock, which goes on every `rounds` rounds; clients may be in other tasks."""
    round: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    own_moment: Moment | None = None
    """Where clients are, where they are not all in the same task."""
    pasts: frozenset[int] = frozenset()
    """In a mixed round: the clients that have left a task before."""
    one_pass: bool = False
    """Whether each sample is seen in one local step only."""
    streams: bool = False
    """Whether samples pass by, so that memories take them in round by round."""
    passed_by: set[int] = field(default_factory=set)
    """The clients by whom samples have passed: who took part in a round before."""
    part: float = 1.0
    """Around a task: the part of all present samples that those who begin or leave one have; 1 for everyone."""
    state: dict[str, Any] = field(default_factory=dict)
    tail: dict[str, Any] = field(default_factory=dict)
    """The mean of a task's last models so far, where `average_tail` asks for it."""
    logs: dict[str, Any] = field(default_factory=dict)

    @property
    def moment(self) -> Moment:
        """Which tasks anyone has begun, and left."""
        return self.own_moment or Moment.together(self.task)

    @property
    def done(self) -> int:
        """How many rounds are finished."""
        return self.task * self.rounds + self.round

    @property
    def slices(self) -> dict[str, slice]:
        """Where each trained parameter lies in `params`, by its name in the model's state."""
        return self.learner.slices

    def generator(self, purpose: str) -> torch.Generator:
        """Return the server's random stream for a purpose in this round."""
        return torch.Generator().manual_seed(torch_seed(self.seed, purpose, self.task, self.round))

    def add_to_tail(self) -> None:
        """Take the global model into the mean of the task's last models (Polyak and Ruppert)."""
        count = self.tail["count"] = self.tail.get("count", 0) + 1
        for name, now in (("params", self.params), ("buffers", self.buffers)):
            self.tail[name] = self.tail[name].lerp(now, 1 / count) if count > 1 else now.clone()

    def take_tail(self) -> None:
        """Let the mean of the task's last models, if one was kept, take the global model's place."""
        if self.tail:
            self.params, self.buffers = self.tail["params"], self.tail["buffers"]
            self.tail = {}

    def log(self, **values: float | str) -> None:
        """Note something about this round for the metrics."""
        self.logs.update(loggable(values))
