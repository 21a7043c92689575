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
from cflag.learning.estimators import Components
from cflag.learning.gradient_table import GradientTable
from cflag.learning.smoothness import PathSmoothness
from cflag.memory.base import Memory
from cflag.methods.cflag import CFlag
from cflag.safety import one_thread
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

    def config(self, problem: Problem) -> Config:
        """Return the experiment's config."""
        L = "auto" if self.smoothness == "auto" else problem.smoothness
        return resolve({
            "source": "custom", "model": "custom", "method": "cflag", "clients": len(problem.past), "tasks": 2,
            "scenario": "class", "class_order": "natural", "partition": "subject", "batch": self.batch, "workers": 1,
            "steps": self.steps, "rounds": self.rounds, "seed": self.seed,
            "memory": {"per_task": self.memory, "sample": self.memory},
            "cflag": {"alpha": self.alpha, "beta": self.beta, "adapt": self.adapt, "smoothness": L,
                      "estimator": "iag", "drift": 1.0, "rules": "both", "alpha_cap": "none"},
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


class Watched(CFlag):
    """C-FLAG, unchanged, that records its clients' local paths."""

    paths: dict[int, LocalPath]

    def estimates(
        self, components: Components, at_start: GradientTable | Tensor | None, seen: PathSmoothness | None
    ) -> Iterator[Tensor]:
        """Record x_{i,k} and v_{i,k} as they pass."""
        path = self.paths[components.client.number] = LocalPath([part.x for part in components.parts])
        for v in super().estimates(components, at_start, seen):
            path.points.append(components.client.params.clone())
            path.gradients.append(v.clone())
            yield v

    def local_steps(self, client: Client, *args: Any, **sent: Any) -> Answer:
        """Record x_{i,E} and the chosen rates."""
        answer = super().local_steps(client, *args, **sent)
        path = self.paths[client.number]
        path.points.append(client.params.clone())
        path.alpha, path.beta = float(client.logs["alpha"]), float(client.logs["beta"])
        return answer


def follow(problem: Problem, plan: Plan, keep: Sequence[Sequence[int]] | None = None) -> Trajectory:
    """Run C-FLAG on a problem and return its rounds.

    Memories are uniform samples of the past, unless `keep` lists the rows that each client remembers.
    """
    config = plan.config(problem)
    experiment = Experiment(config, problem.source(), problem.model(), mean_output)
    method = experiment.method = Watched(config.settings, config)
    host, server = experiment.host(), experiment.server()
    engine = LocalEngine(host, workers=1)
    seen: Trajectory = []
    with one_thread():
        server.sizes = experiment.benchmark.sizes(0)
        engine.converse(method.end_task(server), server)
        memory = _memories([host.clients[i].memory for i in sorted(host.clients)], problem.past, keep)
        server.task, server.sizes = 1, experiment.benchmark.sizes(1)
        engine.converse(method.begin_task(server), server)
        engine.settle()
        for number in range(plan.rounds):
            server.round = number
            beta = method.beta(server, plan.steps)
            rule = method.rate_rule(plan.steps, beta, server.state.get("smoothness"))
            at = Setting(problem, memory, rule.alpha, beta, plan.steps, plan.adapt, rule.smoothness, plan.batch)
            before, method.paths = server.params.clone(), {}
            engine.converse(method.round(server), server)
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
