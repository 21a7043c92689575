"""A trajectory: C-FLAG on a problem, with every point and gradient on its way written down.

The method is the one that every other run uses, on the engine that every other run uses; it is only watched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, sqrt
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


@dataclass
class Path:
    """A client's way through a round: where it was at each step, and the delayed gradient it used there."""

    components: list[Tensor]
    """The rows of each component."""
    points: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    alpha: float = 0.0
    beta: float = 0.0


class WatchedPath(Delayed):
    """The delayed gradients as they are; notes are taken of the way."""

    def __init__(self, components: Components, paths: dict[int, Path]) -> None:
        super().__init__(components)
        self.paths = paths

    def path(self) -> Iterator[Tensor]:
        """Note x_{i,k} and v_{i,k} as they pass."""
        client = self.components.client
        path = self.paths[client.number] = Path([part.x for part in self.components.parts])
        for v in super().path():
            path.points.append(client.params.clone())
            path.gradients.append(v.clone())
            yield v


class Watching(CFlag):
    """C-FLAG as it is; notes are taken of the local paths."""

    paths: dict[int, Path]

    def estimator(self, client: Client) -> Delayed | Minibatch:
        """Watch the delayed gradients."""
        return WatchedPath(super().estimator(client).components, self.paths)

    def local_steps(self, client: Client, *args: Any, **sent: Any) -> Answer:
        """Note x_{i,E} and the rates that were chosen."""
        answer = super().local_steps(client, *args, **sent)
        path = self.paths[client.number]
        path.points.append(client.params.clone())
        path.alpha, path.beta = float(client.logs["alpha"]), float(client.logs["beta"])
        return answer


class WatchedServer(Watching, CFlagServer):
    """The same for server-level rates."""


@dataclass(frozen=True)
class Setting:
    """The problem, the memories, the plain rates."""

    problem: Problem
    memory: tuple[Tensor, ...]
    """M^i: the past rows that each client kept."""
    alpha: float
    beta: float
    steps: int
    """E."""
    adapt: str
    smoothness: float
    """L: the problem's own, or an estimate that the rates were made of."""
    component: int
    """How many rows a component g_{i,j} has."""


@dataclass(frozen=True)
class Round:
    """What was seen of one round, and what follows from it; names are the paper's."""

    at: Setting
    x: Tensor
    after: Tensor
    points: Tensor
    """x_{i,k}: (N, E + 1, d)."""
    v: Tensor
    """Delayed gradients: (N, E, d)."""
    components: tuple[list[Tensor], ...]
    """The rows of each client's components in this round."""
    alphas: Tensor
    betas: Tensor
    logs: Mapping[str, float]
    """What the run itself measured: `gamma` is its Γ(t)."""
    calls: int
    """Component gradients evaluated, all clients."""

    @cached_property
    def each_g(self) -> Tensor:
        """∇g_i(x_t)."""
        return self._each(self.at.problem.current)

    @cached_property
    def each_f(self) -> Tensor:
        """∇f_i(x_t), over all the past."""
        return self._each(self.at.problem.past)

    @cached_property
    def each_m(self) -> Tensor:
        """∇f_i†(x_t), over the memories."""
        return self._each(self.at.memory)

    def _each(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.stack([self.at.problem.gradient(self.x, rows) for rows in parts])

    def mean(self, each: Tensor) -> Tensor:
        """Return Σ p_i of something that each client has."""
        mean: Tensor = torch.tensordot(self.at.problem.weights, each, dims=1)
        return mean

    @cached_property
    def g(self) -> Tensor:
        """∇g(x_t)."""
        return self.mean(self.each_g)

    @cached_property
    def f(self) -> Tensor:
        """∇f(x_t)."""
        return self.mean(self.each_f)

    @cached_property
    def m(self) -> Tensor:
        """∇f†(x_t), the memory gradient."""
        return self.mean(self.each_m)

    @cached_property
    def each_bias(self) -> Tensor:
        """b_i(x_t) = ∇f_i† − ∇f_i."""
        return self.each_m - self.each_f

    @cached_property
    def bias(self) -> Tensor:
        """b(x_t)."""
        return self.mean(self.each_bias)

    @property
    def each_m_ratio(self) -> list[float]:
        """m_i: the smallest with ‖b_i‖² ≤ m_i ‖∇f_i‖² here."""
        return [_ratio(square(b), square(f)) for b, f in zip(self.each_bias, self.each_f, strict=True)]

    @property
    def each_r_ratio(self) -> list[float]:
        """r_i: the smallest with ‖∇f_i†‖ ≤ r_i ‖∇g‖ here."""
        return [sqrt(_ratio(square(m), square(self.g))) for m in self.each_m]

    @property
    def omega2(self) -> float:
        """ω² = Σ p_i ‖∇g_i − ∇h̃_i‖² here, which is with D = C, its smallest."""
        return float(self.at.problem.weights @ ((self.each_g - self.each_h) ** 2).sum(1))

    @property
    def m_ratio(self) -> float:
        """The smallest m with ‖b‖² ≤ m ‖∇f‖² here; infinite where only ∇f vanishes."""
        return _ratio(square(self.bias), square(self.f))

    @property
    def r_ratio(self) -> float:
        """The smallest r with ‖∇f†‖ ≤ r ‖∇g‖ here."""
        return sqrt(_ratio(square(self.m), square(self.g)))

    @cached_property
    def a(self) -> Tensor:
        """a_i = Σ_k v_{i,k}."""
        return self.v.sum(1)

    @cached_property
    def mean_a(self) -> Tensor:
        """Σ p_i a_i."""
        return self.mean(self.a)

    @cached_property
    def rho(self) -> Tensor:
        """∇g_i(x_{i,k}): what the delayed gradients stand for."""
        parts = zip(self.points[:, :-1], self.at.problem.current, strict=True)
        return torch.stack([self.at.problem.gradient(points, rows) for points, rows in parts])

    @cached_property
    def errors(self) -> Tensor:
        """e_{i,k} = v_{i,k} − ∇g_i(x_{i,k})."""
        return self.v - self.rho

    @cached_property
    def drift(self) -> Tensor:
        """‖x_{i,k} − x_t‖: (N, E + 1)."""
        away: Tensor = (self.points - self.x).norm(dim=2)
        return away

    def gamma(self, beta: float | None = None) -> float:
        """Γ(t) = (L/2) β² ‖Σ p_i a_i‖² − β (1 − Lα) ⟨∇f†, Σ p_i a_i⟩, at the plain β unless another is given."""
        beta = self.at.beta if beta is None else beta
        L, alpha, a = self.at.smoothness, self.at.alpha, self.mean_a
        return L / 2 * beta**2 * square(a) - beta * (1 - L * alpha) * float(self.m @ a)

    def gamma_adapted(self) -> float:
        """Γ(t) with the rates that clients chose: (L/2) ‖Σ p_i β_i a_i‖² − Σ p_i β_i (1 − Lα_i) Λ_i."""
        L, inner = self.at.smoothness, self.a @ self.m
        step = self.mean(self.betas[:, None] * self.a)
        return L / 2 * square(step) - float(self.mean(self.betas * (1 - L * self.alphas) * inner))

    def overfitting(self) -> float:
        """B(t) = (Lα² − α) ⟨∇f, b⟩ + β ⟨b, Σ p_i a_i⟩."""
        L, alpha, beta = self.at.smoothness, self.at.alpha, self.at.beta
        return (L * alpha**2 - alpha) * float(self.f @ self.bias) + beta * float(self.bias @ self.mean_a)

    def past_loss(self, x: Tensor) -> float:
        """f at a point."""
        return self._loss(x, self.at.problem.past)

    def joint_loss(self, x: Tensor) -> float:
        """h̃ at a point: the loss on M ∪ C."""
        return self._loss(x, self.joint_rows)

    @cached_property
    def joint_rows(self) -> list[Tensor]:
        """M^i ∪ C^i."""
        return [torch.cat(pair) for pair in zip(self.at.memory, self.at.problem.current, strict=True)]

    @cached_property
    def each_h(self) -> Tensor:
        """∇h̃_i(x_t): over M^i ∪ C^i."""
        return self._each(self.joint_rows)

    def _loss(self, x: Tensor, parts: Sequence[Tensor]) -> float:
        values = torch.tensor([self.at.problem.value(x, rows) for rows in parts], dtype=torch.float64)
        return float(self.at.problem.weights @ values)

    @cached_property
    def progress(self) -> float:
        """f(x_t) − f(x_{t+1})."""
        return self.past_loss(self.x) - self.past_loss(self.after)

    def potential(self, x: Tensor) -> float:
        """Φ = (α/β) f† + E g: what the plain rates α and β descend on."""
        weight = self.at.alpha / self.at.beta
        return weight * self._loss(x, self.at.memory) + self.at.steps * self._loss(x, self.at.problem.current)

    @cached_property
    def potential_gradient(self) -> Tensor:
        """∇Φ(x_t)."""
        weight = self.at.alpha / self.at.beta
        gradient: Tensor = weight * self.m + self.at.steps * self.g
        return gradient


Trajectory = list[Round]


@dataclass(frozen=True)
class Plan:
    """How a problem is run: T rounds of E steps with these rates, and memories of so many rows drawn by a seed."""

    rounds: int
    alpha: float
    beta: float
    steps: int = 5
    memory: int = 6
    seed: int = 0
    adapt: Literal["off", "average", "worst", "server"] = "off"
    smoothness: Literal["known", "auto"] = "known"
    """The problem's own L; or the method's estimates, which then make the rates (β at most what stands here)."""
    batch: int = 1
    """Samples in a component."""

    @property
    def method(self) -> str:
        """Who adapts rates decides which method it is."""
        return "cflag-server" if self.adapt == "server" else "cflag"

    def config(self, problem: Problem) -> Config:
        """Return the experiment's config."""
        L = "auto" if self.smoothness == "auto" else problem.smoothness
        return resolve({
            "source": "custom", "model": "custom", "method": self.method, "clients": len(problem.past), "tasks": 2,
            "scenario": "class", "class_order": "natural", "partition": "subject", "batch": self.batch, "workers": 1,
            "steps": self.steps, "rounds": self.rounds, "seed": self.seed,
            "memory": {"per_task": self.memory, "sample": self.memory},
            self.method: {"alpha": self.alpha, "beta": self.beta, "smoothness": L, "alpha_cap": "none",
                          "adapt": "off" if self.method == "cflag-server" else self.adapt},
        })  # fmt: skip


def follow(problem: Problem, plan: Plan, keep: Sequence[Sequence[int]] | None = None) -> Trajectory:
    """Run C-FLAG on a problem and return what was seen.

    Memories are uniform samples of the past; or `keep` names the rows that each client remembers.
    """
    config = plan.config(problem)
    experiment = Experiment(config, problem.source(), problem.model(), mean_output)
    kind = WatchedServer if plan.adapt == "server" else Watching
    method = experiment.method = kind(config.settings, config)
    method.paths = {}
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
            rule = method.settings.rule(plan.steps, **method.rates(server))
            at = Setting(problem, memory, rule.alpha, rule.beta, plan.steps, plan.adapt, rule.smoothness, plan.batch)
            before, method.paths = server.params.clone(), {}
            engine.converse(method.round(server), server)
            cost = engine.settle().cost
            calls = cost.current + cost.memory
            seen.append(_round(at, before, server.params.clone(), method.paths, server.logs, calls))
    return seen


def _memories(
    memories: Sequence[Memory], past: Sequence[Tensor], keep: Sequence[Sequence[int]] | None
) -> tuple[Tensor, ...]:
    """Return what clients remember, after they were told what to, where somebody chose for them."""
    if keep is not None:
        for memory, rows, chosen in zip(memories, past, keep, strict=True):
            zeros = torch.zeros(len(chosen), dtype=torch.long)
            memory.samples = Samples(rows[list(chosen)], zeros, zeros)
    return tuple(memory.samples.x for memory in memories if memory.samples is not None)


def _round(at: Setting, x: Tensor, after: Tensor, paths: dict[int, Path], logs: dict[str, float], calls: int) -> Round:
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


def square(vector: Tensor) -> float:
    """Return ‖vector‖²."""
    return float(vector @ vector)


def _ratio(above: float, below: float) -> float:
    if not above:
        return 0.0
    return above / below if below else inf
