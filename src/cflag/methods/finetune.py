"""Fine-FL: FedAvg (McMahan et al., 2017) on the current task and nothing against forgetting.

Clients take E mini-batch steps and send their displacement. Unlike common FedAvg code, every client takes the same
number of steps, as all methods here do, so that comparisons are at equal cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from cflag.client import Client
from cflag.conversation import Answer, Ask, Conversation
from cflag.errors import UserError
from cflag.learning.estimators import Components, minibatch
from cflag.learning.optimisers import make_optimiser
from cflag.methods.base import Method
from cflag.server import Server


@dataclass(frozen=True)
class FinetuneSettings:
    """The learning rate of the local steps."""

    lr: float = 0.05

    def check(self) -> None:
        """Refuse numbers that cannot work."""
        if not self.lr > 0:
            raise UserError(f"finetune.lr = {self.lr} must be positive")


class Finetune(Method):
    """FedAvg on the current task."""

    Settings = FinetuneSettings

    def round(self, server: Server) -> Conversation:
        """Ask for local training; move by the mean displacement."""
        mean = yield Ask(self.local_steps, steps=self.steps(server))
        server.params -= mean.delta
        server.buffers = mean.buffers

    def local_steps(self, client: Client, steps: int) -> Answer:
        """E mini-batch steps on the current task from the global model."""
        start = client.params.clone()
        components = Components(client, self.local.batch, "shuffled")
        optimiser = make_optimiser(self.local.optimizer)
        for v in islice(minibatch(components, components.visits()), steps):
            client.params -= self.settings.lr * optimiser(v)
        return {"delta": start - client.params, "buffers": client.buffers}
