"""What a method is, and the frame of those that only change the local steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cflag.conversation import Answer, Ask, Conversation, Value
from cflag.data.samples import Samples
from cflag.diagnostics import Figure, Record
from cflag.errors import UserError
from cflag.learning.optimizers import make_optimizer
from cflag.methods.space import Rate, SearchSpace

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.learning.learner import Learner
    from cflag.server import Server


@dataclass(frozen=True)
class LocalOptions:
    """Local training, the same for every method: mini-batch (component) size, how long, which optimizer."""

    batch: int = 32
    epochs: float = 2.0
    steps: int = 0
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    table_bytes: int = 2**31
    """What a process may hold of component gradients (`estimator = "iag"`, FedTrack) and the like between the questions
    of a round. Beyond it they are computed again; a client whose own table is larger holds it in half precision."""


@dataclass(frozen=True)
class NoSettings:
    """The settings of a method that has none of its own."""


class Method:
    """An algorithm: a `round`, the questions it asks, and optionally what happens around a task.

    A method is stateless: what the server keeps is in `server.state`, what a client keeps in `client.state` and
    `client.memory`. `Settings` is a frozen dataclass; its fields can be set in the method's own config table, and
    its `check`, which is told the table's name, may raise a `UserError`.
    """

    Settings: ClassVar[type[Any]] = NoSettings
    uses_memory: ClassVar[bool] = False
    whole_tasks: ClassVar[bool] = False
    """Whether `remember` must see all samples of a task at once."""
    at_boundaries: ClassVar[bool] = False
    """Whether all that it does about forgetting begins at a boundary: without any it would be FedAvg."""
    problems: ClassVar[tuple[str, ...]] = ()
    """The problems that it is for, those that derive from them included; nothing said is all."""
    exact_means: ClassVar[bool] = False
    """Whether it breaks down where means are rounded, as secure aggregation does."""
    ratios: ClassVar[Mapping[str, str]] = {}
    """Parts of answers that the server divides by another part, as {"m": "factor"}: robust means must know of them."""
    search_space: ClassVar[SearchSpace] = {}
    """What `cflag tune` may choose of its settings (methods/space.py)."""
    figures: ClassVar[tuple[Figure, ...]] = ()
    """What the method measures along the way, beside what every run has."""
    elementwise: ClassVar[tuple[str, ...]] = ()
    """The questions whose lines do the same to every number by itself, as x -= lr * direction does: small clients may
    answer them as one (learning/choir.py). Of a client they use `params`, `start`, `buffers`, `batches` and
    `value_and_grad` alone, of its answer only the gradient. A class that derives from this one says so itself."""

    def __init__(self, settings: Any, local: LocalOptions) -> None:
        self.settings = settings
        self.local = local

    @classmethod
    def space(cls, settings: Any) -> SearchSpace:
        """Return the search space beside these settings, where some of them leave nothing to search for others."""
        return cls.search_space

    @classmethod
    def sums(cls, settings: Any) -> str:
        """Say what it takes a sum over clients for, which a robust mean does not give; empty where nothing."""
        return ""

    def begin_task(self, server: Server) -> Conversation:
        """Before a task's first round."""
        yield from ()

    def round(self, server: Server) -> Conversation:
        """One round: yield questions, change `server.params`."""
        raise NotImplementedError

    def end_task(self, server: Server) -> Conversation:
        """After a task's last round, before it is evaluated: with a memory, the finished task goes there."""
        if self.uses_memory and not server.streams:
            yield Ask(self.remember)

    def pass_by(self, server: Server) -> Conversation:
        """After a round in which samples pass by (`server.streams`): with a memory, they go there at once."""
        if self.uses_memory:
            yield Ask(self.remember)

    def preview(self, client: Client, **sent: Any) -> Answer:
        """Before such a round: test the global model on them; where the client watches for drift, it looks on."""
        client.preview(lambda learner, samples: self.predict(learner, samples, **sent))
        return {}

    def before_eval(self, server: Server) -> Conversation:
        """Before the model is tested, for a method whose answers need more than the model."""
        yield from ()

    def eval_payload(self, server: Server) -> dict[str, Value | None]:
        """Return what `predict` needs beside the model."""
        return {}

    def predict(self, learner: Learner, samples: Samples, **sent: Any) -> Tensor:
        """Return a score of each class for each held-out sample, (n, outputs): here the global model's outputs."""
        return learner.outputs(samples)

    def advice(self, table: str, server: Server, records: Sequence[Record]) -> list[str]:
        """Return lines about settings that do not fit, from the metrics of the second task; `table` has the settings.

        They are shown, and are in the run's events.
        """
        return []

    def remember(self, client: Client) -> Answer:
        """Choose which samples of the finished task stay in memory."""
        client.memory.add(client.data, client.rng("remember"))
        return {}

    def steps(self, server: Server) -> int:
        """E, the number of local steps: the same for every client, or Σ p_i E (g − g_i) would not vanish.

        "Two local epochs" become E = 2 × the mean number of mini-batches a client has. Samples that pass by once are
        cut into E = `steps` mini-batches instead.
        """
        if self.local.steps or server.one_pass:
            return max(1, self.local.steps)
        batches = [-(-size // self.local.batch) for size in server.sizes.values()]
        return max(1, round(self.local.epochs * sum(batches) / len(batches)))


@dataclass(frozen=True)
class FedAvgSettings:
    """The learning rate of the local steps."""

    lr: float = 0.05
    """The rate of the local steps."""

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work; `table` is the config table that has them."""
        require_positive(table, self, "lr")


class FedAvg(Method):
    """FedAvg (McMahan et al., 2017): clients take E mini-batch steps and send their displacement.

    Methods that only change the local steps override `direction`. Unlike common FedAvg code every client takes the
    same number of steps, as in all methods here, so that comparisons are at equal cost.
    """

    Settings: ClassVar[type[Any]] = FedAvgSettings
    search_space: ClassVar[SearchSpace] = {"lr": Rate()}

    def round(self, server: Server) -> Conversation:
        """Ask for local training; move by the mean displacement."""
        mean = yield Ask(self.local_steps, steps=self.steps(server), **self.sent(server))
        server.params -= mean.delta
        server.buffers = mean.buffers

    def sent(self, server: Server) -> dict[str, Value | None]:
        """Return what clients need for their steps beside the model."""
        return {}

    def local_steps(self, client: Client, steps: int, **sent: Any) -> Answer:
        """E steps along `direction` from the global model."""
        x, lr, optimizer = client.params, self.settings.lr, make_optimizer(self.local.optimizer)
        for batch in islice(self.batches(client), steps):
            x -= lr * optimizer(self.direction(client, batch, **sent))
        return {"delta": client.start - x, "buffers": client.buffers}

    def batches(self, client: Client) -> Iterator[Samples]:
        """Yield the client's mini-batches, pass after pass, each in a new order."""
        return client.batches(self.local.batch)

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """Return the direction of one local step: here the mini-batch gradient."""
        return client.value_and_grad(batch)[1]


def require_positive(table: str, settings: Any, *names: str) -> None:
    """Refuse settings of a method's table that are not positive numbers."""
    for name in names:
        if not getattr(settings, name) > 0:
            raise UserError(f"{table}.{name} = {getattr(settings, name)} must be positive")
