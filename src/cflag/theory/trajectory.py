"""A trajectory: C-FLAG on a problem, with every point and gradient along the way recorded.

Method and engine are those of every other run: `Watched` only records what the method computes, and `follow` drives
the rounds one by one. `round.py` has what follows from a recorded round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from cflag.client import Client
from cflag.config import Config, resolve
from cflag.conversation import Answer
from cflag.data.samples import Samples
from cflag.engines.local import LocalEngine
from cflag.experiment import Experiment
from cflag.learning.estimators import Components, Delayed, Minibatch
from cflag.memory.base import Memory
from cflag.methods.cflag import CFlag
from cflag.methods.cflag_server import CFlagServer
from cflag.process import one_thread
from cflag.theory.problems import Problem, mean_output
from cflag.theory.round import Round, Setting, Trajectory


@dataclass(frozen=True)
class Plan:
    """How a problem is run: rounds (T), local steps (E), rates, and the size of the memories."""

    rounds: int
    alpha: float
    beta: float
    steps: int = 5
    memory: int = 6
    seed: int = 0
    adapt: Literal["off", "average", "worst", "server"] = "off"
    smoothness: Literal["known", "auto"] = "known"
    """The problem's own L, or the method's estimate, which then sets the rates (with β as an upper limit)."""
    batch: int = 1
    """Samples in a component."""

    @property
    def method(self) -> str:
        """Who adapts rates decides which method it is."""
        return "cflag-server" if self.adapt == "server" else "cflag"

    def config(self, problem: Problem) -> Config:
        """Return the experiment's config."""
        who = {} if self.method == "cflag-server" else {"adapt": self.adapt, "alpha_cap": "none"}
        L = "auto" if self.smoothness == "auto" else problem.smoothness
        return resolve({
            "source": "custom", "model": "custom", "method": self.method, "clients": len(problem.past), "tasks": 2,
            "scenario": "class", "class_order": "natural", "partition": "subject", "batch": self.batch, "workers": 1,
            "steps": self.steps, "rounds": self.rounds, "seed": self.seed,
            "memory": {"per_task": self.memory, "sample": self.memory},
            self.method: {"alpha": self.alpha, "beta": self.beta, "smoothness": L, **who},
        })  # fmt: skip


@dataclass
class LocalPath:
    """A client's path through one round: its point at each step, and the delayed gradient it used there."""

    components: list[Tensor]
    """The rows of each component."""
    points: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    alpha: float = 0.0
    beta: float = 0.0


class WatchedPath(Delayed):
    """Delayed gradients, unchanged, that record the path."""

    def __init__(self, components: Components, paths: dict[int, LocalPath]) -> None:
        super().__init__(components)
        self.paths = paths

    def path(self) -> Iterator[Tensor]:
        """Record x_{i,k} and v_{i,k} as they pass."""
        client = self.components.client
        path = self.paths[client.number] = LocalPath([part.x for part in self.components.parts])
        for v in super().path():
            path.points.append(client.params.clone())
            path.gradients.append(v.clone())
            yield v


class Watched(CFlag):
    """C-FLAG, unchanged, that records its clients' local paths."""

    paths: dict[int, LocalPath]

    def estimator(self, client: Client) -> Delayed | Minibatch:
        """Record the delayed gradients."""
        return WatchedPath(super().estimator(client).components, self.paths)

    def local_steps(self, client: Client, *args: Any, **sent: Any) -> Answer:
        """Record x_{i,E} and the chosen rates."""
        answer = super().local_steps(client, *args, **sent)
        path = self.paths[client.number]
        path.points.append(client.params.clone())
        path.alpha, path.beta = float(client.logs["alpha"]), float(client.logs["beta"])
        return answer


class WatchedServer(Watched, CFlagServer):
    """The same for server-level rates."""


def follow(problem: Problem, plan: Plan, keep: Sequence[Sequence[int]] | None = None) -> Trajectory:
    """Run C-FLAG on a problem and return its rounds.

    Memories are uniform samples of the past, unless `keep` lists the rows that each client remembers.
    """
    config = plan.config(problem)
    experiment = Experiment(config, problem.source(), problem.model(), mean_output)
    kind = WatchedServer if plan.adapt == "server" else Watched
    method = experiment.method = kind(config.settings, config)
    method.paths = {}
    host = experiment.host()
    session = experiment.session(LocalEngine(host, workers=1))
    engine, server = session.engine, session.server
    seen: Trajectory = []
    with one_thread():
        session.enter(0)
        session.end_task()
        memory = _memories([host.clients[i].memory for i in sorted(host.clients)], problem.past, keep)
        session.enter(1)
        session.begin_task()
        engine.settle()
        for number in range(plan.rounds):
            server.round = number
            rule = method.settings.rule(plan.steps, **method.rates(server))
            at = Setting(problem, memory, rule.alpha, rule.beta, plan.steps, plan.adapt, rule.smoothness, plan.batch)
            before, method.paths = server.params.clone(), {}
            session.round()
            cost = engine.settle().cost
            calls = cost.current + cost.memory
            seen.append(_round(at, before, server.params.clone(), method.paths, server.logs, calls))
    return seen


def _memories(
    memories: Sequence[Memory], past: Sequence[Tensor], keep: Sequence[Sequence[int]] | None
) -> tuple[Tensor, ...]:
    """Return what clients remember; where `keep` is given, first replace it with the chosen rows."""
    if keep is not None:
        for memory, rows, chosen in zip(memories, past, keep, strict=True):
            zeros = torch.zeros(len(chosen), dtype=torch.long)
            memory.samples = Samples(rows[list(chosen)], zeros, zeros)
    return tuple(memory.samples.x for memory in memories if memory.samples is not None)


def _round(
    at: Setting, x: Tensor, after: Tensor, paths: dict[int, LocalPath], logs: dict[str, float], calls: int
) -> Round:
    """Put a round together from the clients' paths, in the order of clients."""
    each = [paths[i] for i in sorted(paths)]
    return Round(
        at, x, after,
        torch.stack([torch.stack(path.points) for path in each]),
        torch.stack([torch.stack(path.gradients) for path in each]),
        tuple(path.components for path in each),
        torch.tensor([path.alpha for path in each], dtype=torch.float64),
        torch.tensor([path.beta for path in each], dtype=torch.float64),
        dict(logs), calls,
    )  # fmt: skip
