"""The frame of methods without training: before a task everyone is asked once for sums over features, and that is all.

Sums over clients are exact, so the answer is that of one machine with all data, whoever has which samples: there is no
drift, and nothing is forgotten. Features are what the model's last dense layer takes in; on a backbone's features, with
`model = "linear"`, those are the features themselves. A task's further rounds have nothing to do: `rounds = 1` will do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from cflag.conversation import Answer, Ask, Conversation, Value
from cflag.data.samples import Samples
from cflag.methods.base import Method

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.learning.learner import Learner
    from cflag.server import Server


class Sums(Method, ABC):
    """Keeps, for all classes so far, how many samples there were and the sum of their features."""

    problems: ClassVar[tuple[str, ...]] = ("classes",)
    squares: ClassVar[bool] = False
    """Whether it also wants Σ x xᵀ over all samples, d² numbers."""

    @classmethod
    def sums(cls, settings: Any) -> str:
        """A class's sum is over all clients, most of which may have none of it."""
        return "sums of features"

    def begin_task(self, server: Server) -> Conversation:
        """Add the sums of the task of those who begin one to those so far."""
        if not server.streams:
            yield from self.take_in(server)

    def pass_by(self, server: Server) -> Conversation:
        """Add the sums of what passed by in a round."""
        yield from self.take_in(server)

    def take_in(self, server: Server) -> Conversation:
        """Add the sums of all who are asked to those so far."""
        mean = yield Ask(self.own_sums)
        total = server.part * sum(server.sizes.values())
        for name in mean:  # the weighted mean of sums over a client's size, times all sizes, is the sum
            server.state[name] = server.state.get(name, 0.0) + total * mean[name].double()

    def own_sums(self, client: Client) -> Answer:
        """Answer with a client's counts and sums, over its size."""
        x = self.prepared(client.features(client.data))
        y, counts = self.wanted(client, x)
        squares = {"squares": x.T @ x / client.size} if self.squares else {}
        return {"counts": counts / client.size, "sums": y.T @ x / client.size, **squares}

    def wanted(self, client: Client, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each output should answer for a client's samples, and how many samples speak for it."""
        members = torch.nn.functional.one_hot(client.data.y.to(x.device), client.heads.own.shape[1]).to(x.dtype)
        return members, members.sum(0)

    def round(self, server: Server) -> Conversation:
        """Nothing is left to do."""
        yield from ()

    def prepared(self, x: Tensor) -> Tensor:
        """Return features as the method wants them."""
        return x

    @abstractmethod
    def classifier(self, counts: Tensor, sums: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (classes, d) and offsets of linear scores, from the sums so far."""

    def eval_payload(self, server: Server) -> dict[str, Value | None]:
        """The linear scores, and which classes were seen."""
        if "counts" not in server.state:
            return {}
        counts, sums = server.state["counts"], server.state["sums"]
        weights, offsets = self.classifier(counts, sums, server.state.get("squares", torch.zeros(0)))
        return {"weights": weights.float(), "offsets": offsets.float(), "seen": (counts > 0).float()}

    def predict(self, learner: Learner, samples: Samples, **sent: Any) -> Tensor:
        """Score each class seen so far; the others come last, told apart by the model."""
        if "weights" not in sent:
            return learner.outputs(samples)
        outputs, features = learner.outputs_and_features(samples)
        weights, offsets, seen = (sent[name].to(outputs.device) for name in ("weights", "offsets", "seen"))
        scores = self.prepared(features) @ weights.T + offsets
        last = scores.amin(1, keepdim=True) - 1 + outputs - outputs.amax(1, keepdim=True)
        return torch.where(seen > 0, scores, last)


def class_means(counts: Tensor, sums: Tensor) -> Tensor:
    """Return each class's mean feature; zeros where there is none."""
    return sums / counts.clamp(min=1)[:, None]
