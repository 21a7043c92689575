"""One round of C-FLAG as it was observed, and the quantities of the paper that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt

import torch
from torch import Tensor

from cflag.theory.problems import Problem


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
    """L: the problem's own, or the estimate that the rates were computed from."""
    component: int
    """How many rows a component g_{i,j} has."""


@dataclass(frozen=True)
class Round:
    """One round as observed, and what follows from it; names are the paper's."""

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
    """Component gradients evaluated by all clients together."""

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
        """Return the mean over clients with the weights p_i."""
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
        """ω² = Σ p_i ‖∇g_i − ∇h̃_i‖² here, the smallest ω² that the assumption (with D = C) allows."""
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
        """∇g_i(x_{i,k}): the exact gradients that the delayed ones approximate."""
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


def square(vector: Tensor) -> float:
    """Return ‖vector‖²."""
    return float(vector @ vector)


def _ratio(above: float, below: float) -> float:
    if not above:
        return 0.0
    return above / below if below else inf
