"""Joint training: the upper bound. Every client keeps all it ever saw and trains on all tasks so far.

Not a continual method: it is what one would get without any limit on memory. A round makes as many passes over all
tasks so far as the other methods make over the current one, so it takes more steps with every task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cflag.conversation import Answer
from cflag.data.samples import Samples
from cflag.learning.estimators import Components
from cflag.methods.base import FedAvg
from cflag.registry import register

if TYPE_CHECKING:
    from cflag.client import Client
    from cflag.server import Server


@register("method", "joint")
class Joint(FedAvg):
    """FedAvg on all tasks so far."""

    uses_memory = True

    def steps(self, server: Server) -> int:
        """E for one task's data, times the tasks that anyone has begun: they have as many samples each or so."""
        return super().steps(server) * len(server.moment.seen)

    def batches(self, client: Client) -> Iterator[Samples]:
        """Yield mini-batches of everything the client has seen."""
        past = client.memory.samples
        everything = client.data if past is None else Samples.cat([past, client.data])
        return Components(client, self.local.batch, "shuffled", everything).batches()

    def remember(self, client: Client) -> Answer:
        """Keep every sample of the finished task."""
        past = client.memory.samples
        client.memory.samples = client.data if past is None else Samples.cat([past, client.data])
        return {}
