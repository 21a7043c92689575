"""Erg-FL: experience replay (Chaudhry et al., 2019) in federated learning, with the ring buffer.

Each mini-batch of a local step is joined by one of the same size from the client's own memory, and FedAvg averages
the clients. The original draws from one memory; here each client has its own, as its samples must not leave it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cflag.data.samples import Samples
from cflag.methods.base import FedAvg
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client


@register("method", "replay")
class Replay(FedAvg):
    """FedAvg whose mini-batches are joined by memory samples."""

    uses_memory = True

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """The gradient on the mini-batch and as many memory samples."""
        past = client.replay(len(batch))
        return client.value_and_grad(batch if past is None else Samples.cat([batch, past]))[1]
