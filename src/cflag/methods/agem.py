"""A-GEM (Chaudhry et al., 2019) in federated learning: local steps that do not point against the memory.

Where a mini-batch gradient has a negative inner product with a gradient on the client's memory, that part of it is
projected away. The original has one memory; here each client projects against its own, and FedAvg averages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cflag.data.samples import Samples
from cflag.methods.base import FedAvg
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client


@register("method", "agem")
class Agem(FedAvg):
    """FedAvg whose mini-batch gradients are projected against the memory gradient when they conflict."""

    uses_memory = True

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """The mini-batch gradient, without its part against the memory gradient."""
        gradient = client.value_and_grad(batch)[1]
        past = client.replay(self.memory_batch(client))
        return gradient if past is None else project(gradient, client.value_and_grad(past)[1])

    def memory_batch(self, client: Client) -> int:
        """How many memory samples a step looks at: as many as C-FLAG draws in a round."""
        return client.memory.options.sample


def project(gradient: Tensor, memory: Tensor) -> Tensor:
    """Return the gradient closest to `gradient` whose inner product with `memory` is not negative."""
    inner, square = gradient @ memory, memory @ memory
    return gradient - inner / square * memory if inner < 0 and square > 0 else gradient
