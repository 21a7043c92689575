"""DER++-FL: dark experience replay (Buzzega et al., 2020), federated; the strongest simple rehearsal method.

Memory samples keep the logits that the model had for them. A local step pays for the current mini-batch, for moving
away from those logits on one memory batch (α), and for wrong labels on another (β). The original stores logits while
it learns, from the model of that moment; here a client stores those of the global model at the end of a task, and pays
only for outputs that were open then, since heads appended later must stay free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from cflag.conversation import Answer
from cflag.data.samples import Samples
from cflag.methods.base import FedAvg, FedAvgSettings, require_positive
from cflag.methods.space import Around, SearchSpace
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client


@dataclass(frozen=True)
class DerppSettings(FedAvgSettings):
    """The weights of the logits' and of the labels' replay."""

    alpha: float = 0.3
    beta: float = 0.5

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "lr", "alpha", "beta")


@register("method", "derpp")
class Derpp(FedAvg):
    """FedAvg with replay of stored logits and of labels."""

    Settings = DerppSettings
    search_space: ClassVar[SearchSpace] = {**FedAvg.search_space, "alpha": Around(), "beta": Around()}
    settings: DerppSettings
    uses_memory = True

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """∇ [loss + α ‖h(x') − z'‖² + β loss on another memory batch]."""
        gradient = client.value_and_grad(batch)[1]
        first, second = client.replay(len(batch)), client.replay(len(batch))
        if first is None or second is None:
            return gradient

        def moved(outputs: Tensor, samples: Samples) -> Tensor:
            assert samples.logits is not None
            error = (outputs - samples.logits)[~samples.logits.isnan()]
            return error.square().mean()

        dark = client.value_and_grad(first, moved)[1]
        plain = client.value_and_grad(second)[1]
        return gradient + self.settings.alpha * dark + self.settings.beta * plain

    def remember(self, client: Client) -> Answer:
        """Keep samples together with the global model's logits; those of outputs that are closed now are none."""
        closed = ~client.heads.open(client.task, client.context.moment.seen)
        logits = client.outputs(client.data).cpu().masked_fill(closed, torch.nan)
        client.memory.add(replace(client.data, logits=logits), client.rng("remember"))
        return {}
