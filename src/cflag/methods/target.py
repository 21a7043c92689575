"""TARGET: distillation from samples that nobody owns (Zhang et al., ICCV 2023); federated and data-free.

When a task is over, the server has the global model and no data. It trains a generator whose samples the model, as a
teacher, assigns to old classes with confidence, whose batch-norm statistics are those of real data, and on which a
student that learned from the samples so far still disagrees with the teacher; so they lie near the boundaries between
classes. While they learn the next task, clients keep their answers to these samples close to the teacher's. The
original makes the samples at the end of a task; we do at the beginning of the next, from the same model, so that none
are made after the last. It sends the teacher's parameters too; we send its logits of the samples, which is all of it
that clients use: once a task, as bytes where samples are images, and counted as download. Current labels are learned
against the current task's own outputs, as in `lwf`. The generator starts anew with each batch. The server's work
shows in the seconds; the gradients counted are the clients'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from cflag.conversation import Answer, Ask, Conversation
from cflag.data.samples import Samples
from cflag.diagnostics import Figure, Series
from cflag.errors import UserError
from cflag.learning.distillation import distillation
from cflag.learning.options import SynthesisOptions
from cflag.methods.base import FedAvg, FedAvgSettings, require_positive
from cflag.methods.space import Around, SearchSpace
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.server import Server


@dataclass(frozen=True)
class TargetSettings(FedAvgSettings, SynthesisOptions):
    """The weight of the distillation and its temperature, and how samples are made."""

    strength: float = 1.0
    temperature: float = 2.0

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "lr", "strength", "temperature", "generator_steps", "generator_lr")
        require_positive(table, self, "student_steps", "student_lr")
        for name, least in (("samples", 2), ("batch", 2), ("bn", 0), ("adversarial", 0)):
            if getattr(self, name) < least:
                raise UserError(f"{table}.{name} = {getattr(self, name)} must be at least {least}")


SYNTHETIC_FIGURE = Figure(
    "synthetic",
    "Synthetic samples",
    (
        Series("synthetic_accuracy", "the teacher's accuracy on them"),
        Series("synthetic_classification", "classification loss"),
        Series("synthetic_disagreement", "disagreement of teacher and student"),
        Series("synthetic_bn", "distance of the batch-norm statistics", drawn=False),
    ),
    axis="accuracy, loss",
)
"""How well the samples came out, in the first round of each task that has them."""


@register("method", "target")
class Target(FedAvg):
    """FedAvg with distillation from the previous global model on samples made from it."""

    Settings = TargetSettings
    problems = ("classes",)
    at_boundaries = True
    search_space: ClassVar[SearchSpace] = {**FedAvg.search_space, "strength": Around()}
    figures: ClassVar[tuple[Figure, ...]] = (SYNTHETIC_FIGURE,)
    settings: TargetSettings

    def begin_task(self, server: Server) -> Conversation:
        """Make samples of all classes so far and hand them out."""
        if server.moment.left:
            yield Ask(self.receive, **self.synthesise(server).tensors())

    def synthesise(self, server: Server) -> Samples:
        """Return raw samples of the old tasks with the global model's logits; log how well it went."""
        from cflag.learning.synthesis import Workshop  # networks, which reading a config does not need

        learner = server.learner
        learner.load(server.params, server.buffers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(server.generator("synthesis").initial_seed())
            workshop = Workshop(learner, server.moment.left, self.settings)
            made = workshop.make()
        server.log(synthetic_accuracy=workshop.accuracy(made), **workshop.logs())
        return made

    def receive(self, client: Client, **made: Tensor) -> Answer:
        """Keep the samples in place of the last task's."""
        client.state.update(made)
        return {}

    def local_steps(self, client: Client, steps: int, **sent: Any) -> Answer:
        """Train; the synthetic batches come from one stream a round, another batch for every step."""
        if not client.state or not client.old:
            return super().local_steps(client, steps)
        made = Samples(**client.state)
        past = replace(made, index=torch.full_like(made.y, -1))  # nobody's, where a private run counts uses
        return super().local_steps(client, steps, past=past, rng=client.rng("synthetic"))

    def direction(
        self,
        client: Client,
        batch: Samples,
        past: Samples | None = None,
        rng: np.random.Generator | None = None,
        **sent: Any,
    ) -> Tensor:
        """The gradient of the task's loss plus the distillation's on as many synthetic samples."""
        if past is None or rng is None:
            return client.value_and_grad(batch)[1]
        old = client.heads.before(client.old)

        def kept(outputs: Tensor, samples: Samples) -> Tensor:
            assert samples.logits is not None
            # A mean over heads: each sample speaks for one of them, and a sum would grow with every task.
            return distillation(outputs, samples.logits, old, self.settings.temperature) / len(old)

        chosen = torch.from_numpy(rng.choice(len(past), min(len(batch), len(past)), replace=False))
        gradient = client.value_and_grad(batch, client.own_loss)[1]
        return gradient + self.settings.strength * client.value_and_grad(past[chosen], kept)[1]
