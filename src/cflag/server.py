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
    logs: dict[str, Any] = field(default_factory=dict)

    def generator(self, purpose: str) -> torch.Generator:
        """Return the server's random stream for a purpose in this round."""
        return torch.Generator().manual_seed(torch_seed(self.seed, purpose, self.task, self.round))

    def log(self, **values: float | str) -> None:
        """Note something about this round for the metrics."""
        self.logs.update(loggable(values))
