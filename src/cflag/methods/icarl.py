"""iCaRL-FL: incremental classifier and representation learning (Rebuffi et al., 2017), federated.

Exemplars are herded: of each class those samples whose mean feature follows the class's mean best. Training is on
current data and exemplars together, with a sigmoid loss for each output: current classes learn their labels, earlier
ones what the model with which the previous task ended, the teacher, answers. A sample belongs to the class whose mean
of exemplars is nearest, in normalised features. The original has one memory; here each client herds its own samples
towards its own means, and sends the sum of a class's features, never an exemplar; before a task's exemplars are
chosen, its data stand for them. E does not grow with the memory, so that costs stay equal. In the task-incremental
setting, which the original lacks, the loss is the same, on all heads so far; where tasks share classes there is nothing
to distil. The teacher's parameters travel with each round and are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from cflag.conversation import Answer, Ask, Conversation, Value
from cflag.data.samples import Samples
from cflag.errors import UserError
from cflag.memory.ring import balanced, rings
from cflag.methods.base import FedAvg, FedAvgSettings, require_positive
from cflag.methods.space import Around, SearchSpace
from cflag.methods.taught import Taught
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.learning.learner import Learner
    from cflag.server import Server


@dataclass(frozen=True)
class IcarlSettings(FedAvgSettings):
    """The weight of the distillation."""

    strength: float = 1.0

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "lr", "strength")


@register("method", "icarl")
class Icarl(Taught):
    """FedAvg with herded exemplars, distillation and classification by the nearest mean of exemplars."""

    Settings = IcarlSettings
    settings: IcarlSettings
    problems = ("classes",)
    uses_memory = True
    whole_tasks = True
    search_space: ClassVar[SearchSpace] = {**FedAvg.search_space, "strength": Around()}

    @classmethod
    def sums(cls, settings: Any) -> str:
        """A class's mean is a sum over all clients, most of which may have none of it."""
        return "iCaRL's class means"

    def local_steps(self, client: Client, steps: int, **sent: Any) -> Answer:
        """Train on current data and exemplars together."""
        if not client.memory.enabled:
            raise UserError("icarl cannot do without exemplars; set memory.kind = 'ring'")
        current = client.data
        client.data = joined(client.memory.samples, current)
        try:
            return super().local_steps(client, steps, **sent)
        finally:
            client.data = current  # its size is the client's weight

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """The gradient of the sigmoid loss on the classes seen so far, with the teacher's answers for the old ones."""
        if "teacher" in sent:
            batch = replace(batch, logits=client.outputs(batch, sent["teacher"], sent["teacher_buffers"]))
        own = client.heads.own[client.task].to(client.params.device)
        old = client.heads.outputs(client.old).to(client.params.device) & ~own

        def loss(outputs: Tensor, samples: Samples) -> Tensor:
            return sigmoid_loss(outputs, samples, own, old, self.settings.strength)

        return client.value_and_grad(batch, loss)[1]

    def remember(self, client: Client) -> Answer:
        """Herd exemplars of the finished task's classes; under a limit all classes keep their first ones."""
        options = client.memory.options
        features = normalised_features(client, client.data)
        order = [ring[herd(features[ring], options.per_task)] for ring in rings(client.data)]
        herded = client.data[torch.cat(order)]
        kept = joined(client.memory.samples, herded[balanced(rings(herded), options.per_task)])
        limit = options.capacity(kept)
        client.memory.samples = kept if limit is None else kept[balanced(rings(kept), limit)]
        return {}

    def before_eval(self, server: Server) -> Conversation:
        """Form the mean of each class from all clients' exemplars; a class without any has a row of zeros."""
        mean = yield Ask(self.class_sums)
        server.state["means"] = torch.nn.functional.normalize(mean.sums)

    def class_sums(self, client: Client) -> Answer:
        """Sum the features of each class's exemplars, or of its samples as long as there are none.

        Divided by the client's size, the weighted mean over clients is the plain sum, but for a factor; that and the
        number of exemplars go when the server normalises.
        """
        known = client.memory.samples
        if known is None or not (known.task == client.task).any():
            known = joined(known, client.data)
        features = normalised_features(client, known)
        members = torch.nn.functional.one_hot(known.y.to(features.device), client.heads.own.shape[1]).to(features.dtype)
        return {"sums": members.T @ features / client.size}

    def eval_payload(self, server: Server) -> dict[str, Value | None]:
        """The means of the classes."""
        return {"means": server.state.get("means")}

    def predict(self, learner: Learner, samples: Samples, **sent: Any) -> Tensor:
        """Minus the squared distance to each class's mean; classes without one come last."""
        if "means" not in sent:
            return learner.outputs(samples)
        outputs, features = learner.outputs_and_features(samples)
        means = sent["means"].to(outputs.device)
        near = nearness(torch.nn.functional.normalize(features), means)
        # Below any nearness, which is at least -4. Classes still to come are told apart by the model, as elsewhere.
        last = outputs - outputs.amax(1, keepdim=True) - 5
        return torch.where(means.any(1), near, last)


def joined(past: Samples | None, fresh: Samples) -> Samples:
    """Return past and fresh samples together."""
    return fresh if past is None else Samples.cat([past, fresh])


def normalised_features(client: Client, samples: Samples) -> Tensor:
    """Return the model's features of samples, each of length one."""
    return torch.nn.functional.normalize(client.features(samples))


def nearness(features: Tensor, means: Tensor) -> Tensor:
    """Return minus the squared distance of each row of features to each mean.

    By differences, not by a product of matrices: the rounding of that depends on how many are asked, and engines
    test in groups of different sizes.
    """
    return -torch.cdist(features, means, compute_mode="donot_use_mm_for_euclid_dist").square()


def herd(features: Tensor, count: int) -> Tensor:
    """Return the positions of `count` samples, at most all, in the order of the paper's Algorithm 4.

    Each is the one that brings the mean of those picked so far nearest to the mean of all.
    """
    count = min(count, len(features))
    mean, total = features.mean(0), torch.zeros_like(features[0])
    free = torch.ones(len(features), dtype=torch.bool, device=features.device)
    picks = torch.zeros(count, dtype=torch.long)
    for k in range(count):
        wanted = (k + 1) * mean - total
        pick = (features - wanted).square().sum(1).where(free, torch.inf).argmin()
        free[pick] = False
        total += features[pick]
        picks[k] = pick
    return picks


def sigmoid_loss(outputs: Tensor, samples: Samples, own: Tensor, old: Tensor, strength: float) -> Tensor:
    """Return the binary cross entropy, averaged over samples: Σ over own classes + strength · Σ over old ones."""
    targets = torch.nn.functional.one_hot(samples.y, len(own)).to(outputs.dtype)
    if samples.logits is not None:
        targets = torch.where(old, samples.logits.sigmoid(), targets)
    weights = own + strength * old
    loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets, weights, reduction="sum")
    return loss / len(outputs)
