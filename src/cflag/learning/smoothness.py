"""L without guessing: the smoothness of a client's losses along its own path, and the largest of all clients.

Everything a server gets is a weighted mean, Σ p_i of what clients send. A maximum can be had as one all the same: if
each sends L_i^q / p_i, the mean is Σ L_i^q, and its q-th root lies between the maximum and N^(1/q) times it.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.conversation import Answer, Mean
    from cflag.learning.estimators import Components, Estimator
    from cflag.server import Server

POWER = 16
"""q: with 5 clients the maximum is met within 11 %, with 100 within 34 %, always from above."""

UNSEEN = 5.0
"""L as long as nothing was seen: the paper's."""

LARGEST = 1e15
"""No client can claim more: its power must be a number."""

STEP = 1e-3
"""The length of a probing step, as a part of the parameters' own."""


class Smoothness:
    """L as a method's settings give it: a number, or "auto", an estimate that the server keeps in its state."""

    def __init__(self, given: float | Literal["auto"], over: str) -> None:
        self.estimated = given == "auto"
        self.over = over

    def at(self, server: Server) -> float | None:
        """Return the present estimate; None where L is a given number."""
        L: float | None = server.state.get("smoothness")
        return L

    def probe(self, components: Components) -> Answer:
        """Return a client's estimate before the first step of a task."""
        return {"smoothness": self._contribution(components.client, probe(components))}

    def watch(self, estimator: Estimator[Any], L: float | None) -> None:
        """Have a local path watched, where L is estimated."""
        if L is not None:
            estimator.seen = PathSmoothness(estimator.components.client.start)

    def along(self, estimator: Estimator[Any], L: float | None) -> Answer:
        """Return a client's estimate from its local path, where it was watched."""
        if L is None or estimator.seen is None:
            return {}
        return {"smoothness": self._contribution(estimator.components.client, estimator.seen.mean(), known=L / 2)}

    def _contribution(self, client: Client, L_i: float, known: float = 0.0) -> float:
        """Return what a client's own L_i contributes to the mean over clients, or to their maximum.

        One that saw nothing must not lower the mean, nor raise the maximum, which is met from above.
        """
        return share_of(L_i or (known if self.over == "mean" else 0.0), client.share, self.over)

    def learn(self, server: Server, mean: Mean) -> None:
        """The safeguard: L is twice what was seen, falls by a tenth per round at most, and stays where nothing was."""
        if "smoothness" in mean:
            seen, known = from_shares(mean.smoothness, self.over), self.at(server) or 0.0
            server.state["smoothness"] = max(2 * seen, 0.9 * known) if seen > 0 else known or UNSEEN
            server.log(smoothness=server.state["smoothness"])


def reach(x: Tensor) -> float:
    """Return the length of a probing step from x."""
    return STEP * max(float(x.norm()), 1.0)


class PathSmoothness:
    """The mean over components of ‖∇g_j(x) − ∇g_j(x_t)‖ / ‖x − x_t‖, each when it is first visited in a round.

    The mean, not the largest: with the components' own L_j in it, it bounds g_i's smoothness and the delayed gradient's
    error just as well, and it stays finite where single gradients jump, as those of ReLU networks do. For their sake,
    too, nothing is read off a way much shorter than a probing step: there a jump looks like any curvature.
    """

    def __init__(self, start: Tensor) -> None:
        self.start = start.clone()
        self._shortest = reach(start) / 2
        self._visited: set[int] = set()
        self._ratios: list[float] = []

    def note(self, component: int, change: Tensor, x: Tensor) -> None:
        """Take note of how much a component's gradient changed; on later visits it changed since another point."""
        if component in self._visited:
            return
        self._visited.add(component)
        distance = float((x - self.start).norm())
        if distance >= self._shortest:
            self._ratios.append(float(change.norm()) / distance)

    def mean(self) -> float:
        """Return the mean over what was visited, 0 where there is nothing to go by."""
        return fmean(self._ratios) if self._ratios else 0.0


def probe(components: Components) -> float:
    """Look around: a little step along −∇g_i for the components, one along the memory's own gradient for the memory."""
    client, x = components.client, components.client.params
    now, past, table = PathSmoothness(x), PathSmoothness(x), components.table()
    drawn = client.remembered("memory")
    remembered = None if drawn is None else client.value_and_grad(drawn)[1]
    _step(x, components.mean(table))
    for j in range(len(components)):
        now.note(j, table.replace(j, components.gradient(j)), x)
    if drawn is not None and remembered is not None:
        x.copy_(past.start)
        _step(x, remembered)
        past.note(0, client.value_and_grad(drawn)[1] - remembered, x)
    return max(now.mean(), past.mean())


def _step(x: Tensor, gradient: Tensor) -> None:
    x -= reach(x) * gradient / gradient.norm().clamp(min=torch.finfo(x.dtype).tiny)


def share_of(value: float, share: float, over: str) -> float:
    """Return what a client with weight p_i sends, so that the mean over clients tells their mean or maximum."""
    value = min(value, LARGEST)
    return value if over == "mean" else value**POWER / share


def from_shares(mean: float, over: str) -> float:
    """Return the clients' mean or maximum from the mean of what they sent."""
    return mean if over == "mean" else mean ** (1 / POWER)
