"""C-FLAG-Balanced: replay under C-FLAG's rule, with losses that uneven clients agree on and one Adam. Not the paper's.

Two things drive uneven clients apart: each learns how often *it* meets a class, and an Adam of its own turns even the
last bit of that into steps of full size. Here a round is one exchange:

    client:  π_c = (part of class c in its current samples) + pull (part of c in its memory)
             every loss is taken at f + log π in the place of the outputs f
    k:       v_k, p_k  the gradients on a current mini-batch and on as many memory samples, at x_k
             α_k = pull − min(0, ⟨p_k, v_k⟩) / ‖p_k‖²
             x_{k+1} = x_k − β Adam(v_k + α_k p_k)
    server:  averages the models and Adam's two moments; everybody goes on from both

With log π (the balanced softmax of Ren et al., 2020; logit adjustment, Menon et al., 2021) the model learns what a
sample looks like in each class and leaves how often that class comes to log π: clients that differ in class shares
alone have the same minimiser. α_k is the interference rule of Algorithm 2 in each step. What each part buys, what it
costs and what it leaves out of Algorithm 1 is in docs/cflag-balanced.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from cflag.conversation import Answer, Ask, Conversation
from cflag.data.samples import Samples
from cflag.errors import UserError
from cflag.learning.memory_gradient import weight_of
from cflag.learning.observed import RATES_FIGURE
from cflag.learning.optimizers import Adam, averaged_moments
from cflag.methods.base import FedAvg, require_positive
from cflag.methods.space import Around, Rate, SearchSpace
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.server import Server


@dataclass(frozen=True)
class CFlagBalancedSettings:
    """The rate, the weight of the memory, and the three parts, each of which can be left out."""

    beta: float = 3e-3
    """β, Adam's rate; Adam is part of the method, whatever `optimizer` says."""
    pull: float = 1.0
    """The weight of the memory beside the current mini-batch, where the two do not interfere."""
    prior: Literal["own", "none"] = "own"
    """Whether losses leave to log π how often a client meets each class, or learn it."""
    moments: Literal["shared", "fresh"] = "shared"
    """Whether Adam goes on from the averaged moments, for three times the bytes, or starts anew in each round."""
    rule: Literal["interference", "off"] = "interference"
    """Whether a direction that points against the memory's is turned away from it before Adam sees it."""

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "beta")
        if self.pull < 0:
            raise UserError(f"{table}.pull = {self.pull} must not be negative")


@register("method", "cflag-balanced")
class CFlagBalanced(FedAvg):
    """FedAvg along v + α_k p_k, with losses balanced by each client's own classes, under one Adam for all clients."""

    Settings: ClassVar[type[Any]] = CFlagBalancedSettings
    uses_memory = True
    exact_means = True
    search_space: ClassVar[SearchSpace] = {"beta": Rate("adam"), "pull": Around(1.0)}
    figures = (RATES_FIGURE,)
    settings: CFlagBalancedSettings

    def round(self, server: Server) -> Conversation:
        """One exchange: local steps from the shared model and moments."""
        steps = self.steps(server)
        mean = yield Ask(self.local_steps, steps=steps, **server.state)
        server.params -= mean.delta
        server.buffers = mean.buffers
        if self.settings.moments == "shared":
            server.state = averaged_moments(mean, server.state.get("taken", 0) + steps)

    def local_steps(
        self, client: Client, steps: int, first: Tensor | None = None, second: Tensor | None = None,
        taken: float = 0, **sent: Any,
    ) -> Answer:  # fmt: skip
        """E steps x ← x − β Adam(v + α_k p_k), from the averaged model and moments."""
        x, beta, weights = client.params, self.settings.beta, list[float]()
        adam = Adam(first=first, second=second, steps=int(taken))
        if self.settings.prior == "own" and client.data.classified:
            client.tilt(self.prior(client).log())
        for batch in islice(self.batches(client), steps):
            x -= beta * adam(self.direction(client, batch, weights=weights))
        if weights:
            client.log(alpha=beta * fmean(weights), beta=beta)
        answer: Answer = {"delta": client.start - x, "buffers": client.buffers}
        return answer | (adam.moments() if self.settings.moments == "shared" else {})

    def prior(self, client: Client) -> Tensor:
        """π: how much of each class the client's steps see, one number per output; 0 for classes that it never met."""
        outputs = client.heads.own.shape[1]
        seen = _parts(client.data, outputs)
        past = client.memory.samples
        return seen if past is None or not len(past) else seen + self.settings.pull * _parts(past, outputs)

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """v + α_k p_k; v alone while the memory is empty."""
        v = client.value_and_grad(batch)[1]
        past = client.replay(len(batch))
        if past is None:
            return v
        p = client.value_and_grad(past)[1]
        weight = self.pull(v, p)
        sent["weights"].append(weight)
        return v + weight * p

    def pull(self, v: Tensor, p: Tensor) -> float:
        """α_k, the weight of p in one step, before Adam."""
        return weight_of(p, v, self.settings.pull, self.settings.rule == "interference")


def _parts(samples: Samples, outputs: int) -> Tensor:
    """Return the part of each class in some samples."""
    return torch.bincount(samples.y, minlength=outputs).double() / len(samples)
