"""C-FLAG-Shared in the laboratory: its exchanges on a problem, recorded, and what can be proved of them.

It has no convergence theorem. These statements are ours; docs/cflag-shared.md has their proofs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from cflag.client import Client
from cflag.config import Config, resolve
from cflag.conversation import Answer
from cflag.engines.local import LocalEngine
from cflag.experiment import Experiment
from cflag.learning.optimizers import Adam
from cflag.methods.cflag_shared import CFlagShared
from cflag.process import one_thread
from cflag.session import Session
from cflag.theory.checks import Check, Checks, identity, least_room
from cflag.theory.problems import Problem, mean_output


@dataclass(frozen=True)
class SharedPlan:
    """How C-FLAG-Shared is run on a problem: memory mini-batches are `batch` of `memory` rows."""

    rounds: int
    beta: float
    track: int
    seed: int = 0
    steps: int = 5
    exchange: int = 3
    batch: int = 3
    memory: int = 6

    def config(self, problem: Problem) -> Config:
        """Return the experiment's config."""
        return resolve({
            "source": "custom", "model": "custom", "method": "cflag-shared", "clients": len(problem.past), "tasks": 2,
            "scenario": "class", "class_order": "natural", "partition": "subject", "batch": self.batch, "workers": 1,
            "steps": self.steps, "rounds": self.rounds, "seed": self.seed,
            "memory": {"per_task": self.memory, "sample": self.memory},
            "cflag-shared": {"beta": self.beta, "track": self.track, "exchange": self.exchange},
        })  # fmt: skip


@dataclass
class SharedPath:
    """A client's path through one exchange."""

    number: int
    taken: int
    """Adam's steps before it."""
    rows: Tensor
    """The rows that m_i was made of."""
    held: int
    """How many rows the client's memory holds."""
    points: list[Tensor] = field(default_factory=list)
    memory: list[Tensor] = field(default_factory=list)
    """m_k at each point but the last."""
    directions: list[Tensor] = field(default_factory=list)
    """v_k + α_k m_k, which Adam is given, at each point but the last."""


@dataclass(frozen=True)
class Exchange:
    """What all clients did between two means."""

    problem: Problem
    plan: SharedPlan
    pull: float
    paths: tuple[SharedPath, ...]

    @property
    def shares(self) -> Tensor:
        """w_i: each client's share of all memory samples."""
        held = torch.tensor([path.held for path in self.paths], dtype=torch.float64)
        return held / held.sum()

    def everybodys(self, points: Tensor) -> Tensor:
        """∇f over the rows that all clients drew, weighted by their shares, at some points."""
        each = torch.stack([self.problem.gradient(points, path.rows) for path in self.paths])
        mean: Tensor = torch.tensordot(self.shares, each, 1)
        return mean


class WatchedShared(CFlagShared):
    """C-FLAG-Shared, unchanged, that records its clients' paths."""

    paths: list[SharedPath]

    def memory_path(self, client: Client, skip: float, steps: float, m: Tensor | None) -> Iterator[Tensor | None]:
        """Record x_k and m_k as they pass."""
        for m_k in super().memory_path(client, skip, steps, m):
            if m_k is not None:
                self.paths[-1].points.append(client.params.clone())
                self.paths[-1].memory.append(m_k.clone())
            yield m_k

    def pull(self, v: Tensor, m: Tensor | None) -> float:
        """Record the direction."""
        pull = super().pull(v, m)
        if m is not None:
            self.paths[-1].directions.append(v + pull * m)
        return pull

    def local_steps(self, client: Client, skip: float, steps: float, *args: Any, **sent: Any) -> Answer:
        """Record where the path begins and ends."""
        drawn = self.memory_batch(client, skip)
        rows = client.params.new_empty(0) if drawn is None else drawn.x
        self.paths.append(SharedPath(client.number, int(sent.get("taken", 0)), rows, len(client.memory)))
        answer = super().local_steps(client, skip, steps, *args, **sent)
        self.paths[-1].points.append(client.params.clone())
        return answer


def follow_shared(problem: Problem, plan: SharedPlan) -> list[Exchange]:
    """Run C-FLAG-Shared on a problem and return its exchanges in the second task."""
    config = plan.config(problem)
    experiment = Experiment(config, problem.source(), problem.model(), mean_output)
    method = experiment.method = WatchedShared(config.settings, config)
    method.paths = []
    play_second_task(experiment.session(LocalEngine(experiment.host(), workers=1)), plan.rounds)
    return exchanges(problem, plan, method.settings.pull, method.paths)


def play_second_task(session: Session, rounds: int) -> None:
    """Remember the first task as it is, and play rounds of the second."""
    with one_thread():
        session.enter(0)
        session.end_task()
        session.enter(1)
        session.begin_task()
        for number in range(rounds):
            session.server.round = number
            session.round()


def exchanges(problem: Problem, plan: SharedPlan, pull: float, seen: list[SharedPath]) -> list[Exchange]:
    """Return clients' paths, which came one after the other, by exchange."""
    clients = len(problem.past)
    each = [seen[first : first + clients] for first in range(0, len(seen), clients)]
    return [Exchange(problem, plan, pull, tuple(own)) for own in each]


def paths(sides: Callable[[Exchange, SharedPath], Check | None]) -> Callable[[list[Exchange]], Checks]:
    """A statement about each client's path through each exchange."""

    def check(seen: list[Exchange]) -> Checks:
        return (sides(exchange, path) for exchange in seen for path in exchange.paths)

    return check


def _start(exchange: Exchange, path: SharedPath) -> Check:
    """m at the exchange's start is the mean over all samples that clients drew, weighted by what they hold."""
    m = exchange.everybodys(path.points[0])
    return identity(m - path.memory[0], m, path.points[0])


def _followed(exchange: Exchange, path: SharedPath) -> Check:
    """m_k = m + ∇R(x_k) − ∇R(x_0), with R the followed rows."""
    points, rows = torch.stack(path.points[:-1]), path.rows[: exchange.plan.track]
    r = exchange.problem.gradient(points, rows)
    m = path.memory[0] + r - r[0]
    return identity(m - torch.stack(path.memory), m, points)


def _age(exchange: Exchange, path: SharedPath) -> Check:
    """‖m_k − ∇f(x_k)‖ ≤ 2 (1 − w_i s) L ‖x_k − x_0‖, s the followed share of the rows that m_i was made of."""
    points = torch.stack(path.points[:-1])
    away = (points - points[0]).norm(dim=1)
    left = (torch.stack(path.memory) - exchange.everybodys(points)).norm(dim=1)
    seen = float(exchange.shares[path.number]) * min(1.0, exchange.plan.track / len(path.rows))
    right = 2 * (1 - seen) * exchange.problem.smoothness * away
    rounding = exchange.problem.smoothness * (1 + float(points[0].norm()))
    return least_room(left[1:], right[1:], rounding) if len(left) > 1 else Check(0.0, 0.0)


def not_against(exchange: Exchange, path: SharedPath) -> Check | None:
    """⟨m_k, v_k + α_k m_k⟩ ≥ pull ‖m_k‖², wherever m_k is more than rounding; else the rule leaves v_k as it is."""
    m, d = torch.stack(path.memory), torch.stack(path.directions)
    told = (m * m).sum(1) > torch.finfo(m.dtype).eps * (d * d).sum(1)
    if not told.any():
        return None
    m, d = m[told], d[told]
    inner, least = (m * d).sum(1), exchange.pull * (m * m).sum(1)
    k = int((inner - least).argmin())
    return Check(float(least[k]), float(inner[k]), float(m[k].norm() * d[k].norm()))


def longest_step(steps: int, adam: Adam) -> float:
    """Return how far Adam's n-th step can go, in rates: averaging both moments over clients keeps this bound."""
    b1, b2 = adam.decay1, adam.decay2
    summed = sum((b1 * b1 / b2) ** j for j in range(steps))
    return (1 - b1) / sqrt(1 - b2) * sqrt(summed) * sqrt(1 - b2**steps) / (1 - b1**steps)


def adam_step(exchange: Exchange, path: SharedPath) -> Check:
    """‖x_{k+1} − x_k‖_∞ ≤ β C_n with n Adam's steps so far, all clients' included as one."""
    points, adam = torch.stack(path.points), Adam()
    left = (points[1:] - points[:-1]).abs().amax(1)
    lengths = [longest_step(path.taken + k + 1, adam) for k in range(len(left))]
    return least_room(left, exchange.plan.beta * torch.tensor(lengths, dtype=left.dtype), float(points[0].norm()))


SIDES: dict[str, tuple[str, str, Callable[[list[Exchange]], Checks]]] = {
    "Shared, m": ("m = Σ w_i ∇f_i(x_0), w_i the share of memory samples", "none", paths(_start)),
    "Shared, m followed": ("m_k = m + ∇R_i(x_k) − ∇R_i(x_0)", "none", paths(_followed)),
    "Shared, age of m": ("‖m_k − ∇f(x_k)‖ ≤ 2(1 − w_i s)L‖x_k − x_0‖", "L-smooth", paths(_age)),
    "Shared, interference": ("⟨m_k, v_k + α_k m_k⟩ ≥ pull ‖m_k‖²", "‖m_k‖ > √ε ‖v_k‖", paths(not_against)),
    "Shared, Adam's step": ("‖x_{k+1} − x_k‖_∞ ≤ β C_n", "moments averaged", paths(adam_step)),
}
"""By name: the claim, what it assumes, and its check."""


def shared_plans(rounds: int, seed: int) -> list[SharedPlan]:
    """Return the runs: a small and a large rate, m followed with one row or with all it was made of."""
    return [SharedPlan(rounds, beta, track, seed) for beta in (0.01, 0.3) for track in (1, 3)]
