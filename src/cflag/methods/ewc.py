"""EWC-FL: elastic weight consolidation (Kirkpatrick et al., 2017; online form Schwarz et al., 2018), federated.

At the end of a task the diagonal Fisher information of the *global* model is taken as the clients' weighted mean, and
later local steps pay λ/2 Σ_t ‖x − x_t*‖² weighted by it, around the global parameters the tasks ended with. The
original sees all data at once; a weighted mean of the clients' Fishers is the same quantity. The penalty acts on the
very parameters a client trains, through its gradient λ (F x − F x*), taken where the step ends (an implicit step): with
a large Fisher the plain step overshoots and diverges, this one does not, however large λ is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from cflag.conversation import Answer, Ask, Conversation, Value
from cflag.data.samples import Samples
from cflag.errors import UserError
from cflag.methods.base import FedAvg, FedAvgSettings, require_positive
from cflag.methods.space import Around, SearchSpace
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.server import Server


@dataclass(frozen=True)
class EwcSettings(FedAvgSettings):
    """The strength λ, how tasks add up, whose labels the Fisher uses, and on how many samples of a client."""

    strength: float = 100.0
    tasks: Literal["summed", "online"] = "summed"
    decay: float = 0.9
    labels: Literal["empirical", "sampled"] = "empirical"
    fisher_samples: int = 200

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "lr", "strength", "fisher_samples")
        if not 0 <= self.decay <= 1:
            raise UserError(f"{table}.decay = {self.decay} must lie between 0 and 1")


@register("method", "ewc")
class Ewc(FedAvg):
    """FedAvg with a quadratic penalty around what earlier tasks need."""

    Settings = EwcSettings
    at_boundaries = True
    elementwise = ("local_steps",)
    search_space: ClassVar[SearchSpace] = {**FedAvg.search_space, "strength": Around(3.0)}
    settings: EwcSettings

    def sent(self, server: Server) -> dict[str, Value | None]:
        """The Fisher F and the pull F x*, summed over tasks; nothing during the first."""
        return {name: server.state.get(name) for name in ("fisher", "pull")}

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """(v + λ (F x − F x*)) / (1 + lr λ F): the step x' = x − lr (v + λ (F x' − F x*)), solved for x'."""
        gradient = client.value_and_grad(batch)[1]
        if "fisher" not in sent:
            return gradient
        strength, fisher = self.settings.strength, sent["fisher"]
        penalty = strength * (fisher * client.params - sent["pull"])
        implicit: Tensor = (gradient + penalty) / (1 + self.settings.lr * strength * fisher)
        return implicit

    def end_task(self, server: Server) -> Conversation:
        """Add the finished task's Fisher, taken at the global model; of those who leave it, with their part."""
        mean = yield Ask(self.fisher)
        fresh, old, pull = server.part * mean.fisher, server.state.get("fisher"), server.state.get("pull")
        if self.settings.tasks == "online":
            fisher = fresh if old is None else self.settings.decay * old + fresh
            server.state.update(fisher=fisher, pull=fisher * server.params)
        else:
            fresh_pull = fresh * server.params
            server.state["fisher"] = fresh if old is None else old + fresh
            server.state["pull"] = fresh_pull if pull is None else pull + fresh_pull

    def fisher(self, client: Client) -> Answer:
        """The mean over samples of the squared gradient of the log-likelihood, parameter by parameter."""
        rng = client.rng("fisher")
        count = min(self.settings.fisher_samples, len(client.data))
        chosen = client.data[torch.from_numpy(rng.choice(len(client.data), size=count, replace=False))]
        if self.settings.labels == "sampled":  # the true Fisher: labels from the model's own prediction
            drawn = torch.multinomial(client.probabilities(chosen), 1).flatten()
            chosen = replace(chosen, y=drawn)
        return {"fisher": client.mean_squared_gradient(chosen)}
