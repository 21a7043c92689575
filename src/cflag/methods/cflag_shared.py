"""C-FLAG-Shared: C-FLAG's memory gradient in every local step, under one Adam that all clients share. Not the paper's.

C-FLAG sees everybody's memory, but once per round; replay sees memory in every step, but only the client's own. Here
every few local steps (`exchange`) clients average three things beside the model: the memory gradient m, which then
stands in each of their next steps, and Adam's two moments. So every step knows the past of all clients, and none of
them rescales its gradients by itself: with uneven clients that is what lets a single-class client run away. Between
two exchanges each client follows m along its path with a few of its own memory samples.
What it takes from Algorithm 1 is m, the interference rule, now in each step, and the drift correction, now for the
memory; what it leaves out is in docs/cflag-shared.md, with what each part buys and what it costs: many more bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cflag.conversation import Answer, Ask, Conversation
from cflag.data.samples import Samples
from cflag.errors import UserError
from cflag.learning.estimators import Components
from cflag.learning.memory_gradient import along_the_path, by_samples, in_two_parts, over_all_samples, weight_of
from cflag.learning.observed import RATES_FIGURE
from cflag.learning.optimizers import Adam, averaged_moments
from cflag.methods.base import Method, require_positive
from cflag.methods.space import Around, Rate, SearchSpace
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.server import Server


@dataclass(frozen=True)
class CFlagSharedSettings:
    """The rate, the weight of the memory, and how often clients exchange what they share."""

    beta: float = 1e-3
    """β, Adam's rate; Adam is part of the method, whatever `optimizer` says."""
    pull: float = 1.0
    """The weight of m beside the mini-batch gradient, in each step."""
    exchange: int = 4
    """Local steps between two exchanges: m grows old along them, so they must be few."""
    track: int = 32
    """Memory samples with which a client follows m between two exchanges; with 0 it stands still."""
    past: Literal["everybody", "own"] = "everybody"
    """Whose memory stands in a client's steps: m is the mean over all clients, or its own m_i."""
    moments: Literal["shared", "fresh"] = "shared"
    """Whether Adam goes on from the averaged moments, or starts anew after each exchange."""
    rule: Literal["interference", "off"] = "interference"
    """Whether a direction that points against m is turned away from it before Adam sees it."""

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "beta", "exchange")
        for name in ("pull", "track"):
            if getattr(self, name) < 0:
                raise UserError(f"{table}.{name} = {getattr(self, name)} must not be negative")


@register("method", "cflag-shared")
class CFlagShared(Method):
    """E local steps per round along v + α_k m_k, with m and Adam's moments averaged every few of them."""

    Settings: ClassVar[type[Any]] = CFlagSharedSettings
    uses_memory = True
    exact_means = True
    ratios: ClassVar[Mapping[str, str]] = {"m": "factor"}
    search_space: ClassVar[SearchSpace] = {"beta": Rate("adam"), "pull": Around(1.0)}
    figures = (RATES_FIGURE,)
    settings: CFlagSharedSettings

    def round(self, server: Server) -> Conversation:
        """E local steps, in exchanges of a few."""
        for skip in range(0, self.steps(server), self.settings.exchange):
            steps = min(self.settings.exchange, self.steps(server) - skip)
            m = None
            if server.moment.left and self.settings.past == "everybody":
                m = over_all_samples((yield Ask(self.memory_gradient, skip=skip)))
            mean = yield Ask(self.local_steps, skip=skip, steps=steps, m=m, **server.state)
            server.params -= mean.delta
            server.buffers = mean.buffers
            if self.settings.moments == "shared":
                server.state = averaged_moments(mean, server.state.get("taken", 0) + steps)

    def memory_gradient(self, client: Client, skip: float) -> Answer:
        """Answer with m_i, where there are memories at all."""
        if not client.memory.enabled:
            return {}
        return by_samples(client, self.own_gradient(client, skip))

    def own_gradient(self, client: Client, skip: float) -> Tensor | None:
        """m_i, on one mini-batch from the memory, drawn anew for each exchange; None while the memory is empty."""
        client.reseed(f"memory {skip:g}")
        drawn = self.memory_batch(client, skip)
        if drawn is None:
            return None
        if not self.settings.track:
            return client.value_and_grad(drawn)[1]
        return in_two_parts(client, drawn, self.settings.track, f"followed {skip:g}")

    def memory_batch(self, client: Client, skip: float) -> Samples | None:
        """The samples of m_i: the same whenever asked for within an exchange."""
        return client.remembered(f"memory {skip:g}", self.local.batch)

    def memory_path(self, client: Client, skip: float, steps: float, m: Tensor | None) -> Iterator[Tensor | None]:
        """m_k for each of an exchange's steps; a single one has no path to follow m along."""
        if self.settings.past == "own":
            m = self.own_gradient(client, skip)
        follow = m is not None and self.settings.track and steps > 1
        drawn = self.memory_batch(client, skip) if follow else None
        followed = None if drawn is None else drawn[: self.settings.track]
        return along_the_path(client, m, followed, f"followed {skip:g}")

    def local_steps(
        self, client: Client, skip: float, steps: float, m: Tensor | None = None,
        first: Tensor | None = None, second: Tensor | None = None, taken: float = 0,
    ) -> Answer:  # fmt: skip
        """Steps x ← x − β Adam(v + α_k m_k), from the averaged model and moments; `skip` are taken already."""
        x, beta, pulled = client.params, self.settings.beta, 0.0
        past = self.memory_path(client, skip, steps, m)
        adam = Adam(first=first, second=second, steps=int(taken))
        components = Components(client, self.local.batch, "shuffled")
        client.reseed(f"local_steps {skip:g}")
        visits = islice(components.visits(), int(skip), int(skip + steps))
        for j, m_k in zip(visits, past, strict=False):
            v = components.gradient(j)
            pull = self.pull(v, m_k)
            x -= beta * adam(v if m_k is None else v + pull * m_k)
            pulled += pull
        if m_k is not None:
            client.log(alpha=beta * pulled / steps, beta=beta)  # per step; a round logs its first exchange
        answer: Answer = {"delta": client.start - x, "buffers": client.buffers}
        return answer | (adam.moments() if self.settings.moments == "shared" else {})

    def pull(self, v: Tensor, m: Tensor | None) -> float:
        """α_k, the weight of m in one step, before Adam."""
        return 0.0 if m is None else weight_of(m, v, self.settings.pull, self.settings.rule == "interference")
