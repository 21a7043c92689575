"""LwF-FL: learning without forgetting (Li & Hoiem, 2018), federated.

The global model with which the previous task ended is a teacher: on current data, what the student answers with the
old heads is kept close to what the teacher answered, by a distillation loss of temperature T. No sample is kept. The
original warms up new heads first, which our fixed schedule of rounds leaves out. Current labels are learned against
the current task's own outputs, in the class-incremental setting too: against all heads, labels that never name an old
class would teach the old heads to be silent. The teacher's parameters travel with each round and are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from cflag.data.samples import Samples
from cflag.learning.distillation import distillation
from cflag.methods.base import FedAvg, FedAvgSettings, require_positive
from cflag.methods.space import Around, SearchSpace
from cflag.methods.taught import Taught
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client


@dataclass(frozen=True)
class LwfSettings(FedAvgSettings):
    """The weight of the distillation and its temperature T."""

    strength: float = 1.0
    temperature: float = 2.0

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "lr", "strength", "temperature")


@register("method", "lwf")
class Lwf(Taught):
    """FedAvg with distillation from the previous global model on current data."""

    Settings = LwfSettings
    problems = ("classes",)
    at_boundaries = True
    search_space: ClassVar[SearchSpace] = {**FedAvg.search_space, "strength": Around()}
    settings: LwfSettings

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """The gradient of the task's loss plus the distillation's."""
        if "teacher" not in sent or not client.old:
            return client.value_and_grad(batch)[1]
        answers = client.outputs(batch, sent["teacher"], sent["teacher_buffers"])
        old = client.heads.before(client.old)

        def both(outputs: Tensor, samples: Samples) -> Tensor:
            kept = distillation(outputs, answers, old, self.settings.temperature)
            return client.own_loss(outputs, samples) + self.settings.strength * kept

        return client.value_and_grad(batch, both)[1]
