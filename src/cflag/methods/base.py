"""What a method is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cflag.conversation import Conversation

if TYPE_CHECKING:
    from cflag.server import Server


@dataclass(frozen=True)
class LocalOptions:
    """Local training, the same for every method: mini-batch (component) size, how long, which optimiser."""

    batch: int = 32
    epochs: float = 2.0
    steps: int = 0
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"


@dataclass(frozen=True)
class NoSettings:
    """The settings of a method that has none of its own."""


class Method:
    """An algorithm: a `round`, the questions it asks, and optionally what happens around a task.

    A method is stateless: what the server keeps is in `server.state`, what a client keeps in `client.state` and
    `client.memory`. `Settings` is a frozen dataclass; its fields can be set in the method's own config table, and
    its `check` may raise a `UserError`.
    """

    Settings: ClassVar[type[Any]] = NoSettings
    uses_memory: ClassVar[bool] = False

    def __init__(self, settings: Any, local: LocalOptions) -> None:
        self.settings = settings
        self.local = local

    def begin_task(self, server: Server) -> Conversation:
        """Before a task's first round."""
        yield from ()

    def round(self, server: Server) -> Conversation:
        """One round: yield questions, change `server.params`."""
        raise NotImplementedError

    def end_task(self, server: Server) -> Conversation:
        """After a task's last round, before it is evaluated."""
        yield from ()

    def steps(self, server: Server) -> int:
        """E, the number of local steps: the same for every client, or Σ p_i E (g − g_i) would not vanish.

        "Two local epochs" become E = 2 × the mean number of mini-batches a client has.
        """
        if self.local.steps:
            return self.local.steps
        batches = [-(-size // self.local.batch) for size in server.sizes.values()]
        return max(1, round(self.local.epochs * sum(batches) / len(batches)))
