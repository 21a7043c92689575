"""The public side: the global model and what a method keeps at the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cflag.conversation import loggable
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
    round: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    tail: dict[str, Any] = field(default_factory=dict)
    """The mean of a task's last models so far, where `average_tail` asks for it."""
    logs: dict[str, Any] = field(default_factory=dict)

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
