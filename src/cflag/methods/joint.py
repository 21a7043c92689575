"""Joint training: the upper bound. Every client keeps all it ever saw and trains on all tasks so far.

Not a continual method: it is what one would get without any limit on memory. The same number of local steps as the
other methods, each on a mini-batch of all tasks so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cflag.client import Client
from cflag.conversation import Answer
from cflag.data.samples import Samples
from cflag.learning.estimators import Components
from cflag.methods.base import FedAvg, FedAvgSettings


@dataclass(frozen=True)
class JointSettings(FedAvgSettings):
    """The learning rate of the local steps."""


class Joint(FedAvg):
    """FedAvg on all tasks so far."""

    Settings = JointSettings
    uses_memory = True

    def batches(self, client: Client) -> Iterator[Samples]:
        """Yield mini-batches of everything the client has seen."""
        past = client.memory.samples
        everything = client.data if past is None else Samples.cat([past, client.data])
        components = Components(client, self.local.batch, "shuffled", everything)
        return (components.parts[j] for j in components.visits())

    def remember(self, client: Client) -> Answer:
        """Keep every sample of the finished task."""
        past = client.memory.samples
        client.memory.samples = client.data if past is None else Samples.cat([past, client.data])
        return {}
