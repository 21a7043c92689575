"""Problems with known constants: federated finite sums in double precision.

A component is a row of numbers. Its family defines the row's loss at a point and how smooth that loss is. Clients have
past rows P^i and current rows C^i; f_i and g_i are the mean losses over them, f = Σ p_i f_i and g = Σ p_i g_i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cflag.data.samples import Samples
from cflag.data.source import Source, Split
from cflag.errors import unknown

Losses = Callable[[Tensor, Tensor], Tensor]
"""Maps points (k, d) and rows (n, c) to the loss of every row at every point, (k, n)."""


@dataclass(frozen=True)
class Family:
    """A kind of component: its loss, and an upper bound of the smoothness of each row's loss over all of R^d."""

    losses: Losses
    smoothness: Callable[[Tensor], Tensor]
    width: Callable[[int], int]
    """How many parameters a model of d features has."""


def _parts(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split rows into features, labels, and the features' squared lengths."""
    return rows[:, :-1], rows[:, -1], (rows[:, :-1] ** 2).sum(1)


def _forms(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Split a quadratic's rows into the matrices A_j (n, d, d) and the centres c_j (n, d); a row has d² + d numbers."""
    d = round((sqrt(1 + 4 * rows.shape[1]) - 1) / 2)
    return rows[:, : d * d].reshape(-1, d, d), rows[:, d * d :]


def quadratic(x: Tensor, rows: Tensor) -> Tensor:
    """½ (x − c_j)ᵀ A_j (x − c_j); as smooth as A_j's largest eigenvalue."""
    forms, centres = _forms(rows)
    away = x[:, None, :] - centres
    return 0.5 * torch.einsum("kni,nij,knj->kn", away, forms, away)


RIDGE = 0.05
"""The weight of the regulariser in the regression families."""


def logistic(x: Tensor, rows: Tensor) -> Tensor:
    """log(1 + exp(−y aᵀx)) + ridge ‖x‖² / 2; the second derivative of the first in its margin is at most 1/4."""
    a, y, _ = _parts(rows)
    return F.softplus(-y * (x @ a.T)) + RIDGE / 2 * (x**2).sum(1, keepdim=True)


CLASSES = 3


def multinomial(x: Tensor, rows: Tensor) -> Tensor:
    """Softmax cross entropy of a linear model with a ridge; diag(q) − q qᵀ has no eigenvalue above 1/2."""
    a, y, _ = _parts(rows)
    scores = torch.einsum("kcd,nd->knc", x.view(len(x), CLASSES, -1), a)
    labels = y.long().expand(len(x), -1)
    return F.cross_entropy(scores.transpose(1, 2), labels, reduction="none") + RIDGE / 2 * (x**2).sum(1, keepdim=True)


def nonconvex(x: Tensor, rows: Tensor) -> Tensor:
    """Logistic loss with the regulariser Σ u²/(1 + u²), whose second derivative lies between −1/2 and 2."""
    a, y, _ = _parts(rows)
    return F.softplus(-y * (x @ a.T)) + RIDGE * (x**2 / (1 + x**2)).sum(1, keepdim=True)


def sigmoid(x: Tensor, rows: Tensor) -> Tensor:
    """1 / (1 + exp(y aᵀx)), a smooth count of errors; the sigmoid's second derivative is at most √3/18."""
    a, y, _ = _parts(rows)
    return torch.sigmoid(-y * (x @ a.T))


HIDDEN = 3


def tanh_net(x: Tensor, rows: Tensor) -> Tensor:
    """½ (u − y)² with u = Σ_h s_h tanh(w_h · a), s_h = ±1/HIDDEN fixed, the w_h learned."""
    a, y, _ = _parts(rows)
    signs = torch.tensor([(-1.0) ** h for h in range(HIDDEN)], dtype=x.dtype) / HIDDEN
    hidden = torch.tanh(torch.einsum("khd,nd->knh", x.view(len(x), HIDDEN, -1), a))
    return 0.5 * (hidden @ signs - y) ** 2


def _tanh_smoothness(rows: Tensor) -> Tensor:
    """In z_h = w_h · a the Hessian is ∇u ∇uᵀ + (u − y) diag(s_h tanh''(z_h)), and |tanh''| ≤ 4/(3√3), |u| ≤ 1."""
    _, y, size = _parts(rows)
    return size * (1 / HIDDEN + (1 + y.abs()) / HIDDEN * 4 / (3 * sqrt(3)))


FAMILIES = {
    "quadratic": Family(
        quadratic, lambda rows: torch.linalg.eigvalsh(_forms(rows)[0]).abs().amax(1), width=lambda d: d
    ),
    "logistic": Family(logistic, lambda rows: _parts(rows)[2] / 4 + RIDGE, width=lambda d: d),
    "multinomial": Family(multinomial, lambda rows: _parts(rows)[2] / 2 + RIDGE, width=lambda d: CLASSES * d),
    "nonconvex": Family(nonconvex, lambda rows: _parts(rows)[2] / 4 + 2 * RIDGE, width=lambda d: d),
    "sigmoid": Family(sigmoid, lambda rows: _parts(rows)[2] * sqrt(3) / 18, width=lambda d: d),
    "tanh": Family(tanh_net, _tanh_smoothness, width=lambda d: HIDDEN * d),
}


def problem_names() -> list[str]:
    """Return the names of all families."""
    return list(FAMILIES)


def check_name(name: str) -> None:
    """Refuse a name that no family has."""
    if name not in FAMILIES:
        raise unknown("problem", name, problem_names())


@dataclass(frozen=True)
class Problem:
    """Clients with past and current rows of one family, and a point to start from."""

    name: str
    past: tuple[Tensor, ...]
    current: tuple[Tensor, ...]
    start: Tensor

    @property
    def family(self) -> Family:
        """The family that defines the rows' losses."""
        return FAMILIES[self.name]

    @cached_property
    def smoothness(self) -> float:
        """L: every component's gradient is L-Lipschitz, hence those of all f_i, g_i and h_i."""
        return float(torch.cat([self.family.smoothness(rows) for rows in (*self.past, *self.current)]).max())

    @cached_property
    def weights(self) -> Tensor:
        """p_i: each client's share of all current rows."""
        sizes = torch.tensor([len(rows) for rows in self.current], dtype=torch.float64)
        return sizes / sizes.sum()

    def value(self, x: Tensor, rows: Tensor) -> float:
        """Return the mean loss of rows at a point."""
        return float(self.family.losses(x[None], rows).mean())

    def gradient(self, points: Tensor, rows: Tensor) -> Tensor:
        """Return the gradient of the mean loss of rows at each of (k, d) points, or at one."""
        x = points.detach().reshape(-1, points.shape[-1]).requires_grad_()
        (gradient,) = torch.autograd.grad(self.family.losses(x, rows).mean(1).sum(), x)
        return gradient.view(points.shape)

    def each_gradient(self, points: Tensor, rows: Tensor) -> Tensor:
        """Return every row's own gradient at each of (k, d) points, (k, n, d)."""
        count = len(rows)
        x = points.detach().repeat_interleave(count, dim=0).requires_grad_()
        own = torch.arange(count).repeat(len(points))  # each copy of a point needs only its own row's loss
        losses = self.family.losses(x, rows)[torch.arange(len(own)), own]
        (gradient,) = torch.autograd.grad(losses.sum(), x)
        return gradient.view(len(points), count, -1)

    def heterogeneity(self, x: Tensor) -> float:
        """Return Σ p_i ‖∇g_i − ∇g‖² at a point."""
        each = torch.stack([self.gradient(x, rows) for rows in self.current])
        return float(self.weights @ ((each - self.weights @ each) ** 2).sum(1))

    def source(self) -> Source:
        """Return the problem as a data set: past rows are class 0, current rows class 1, clients are subjects."""
        halves = [(rows, task, client) for task, half in enumerate((self.past, self.current))
                  for client, rows in enumerate(half)]  # fmt: skip
        split = Split(
            torch.cat([rows for rows, _, _ in halves]),
            torch.cat([torch.full((len(rows),), task) for rows, task, _ in halves]),
            torch.cat([torch.full((len(rows),), client) for rows, _, client in halves]),
        )
        return Source(self.name, split, split, 2)

    def model(self) -> nn.Module:
        """Return a model whose parameters are the point and whose outputs are the rows' losses."""
        return _Point(self)


class _Point(nn.Module):
    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.x = nn.Parameter(problem.start.clone())
        self.losses = problem.family.losses

    def forward(self, rows: Tensor) -> Tensor:
        return self.losses(self.x[None], rows)[0]


def mean_output(outputs: Tensor, samples: Samples) -> Tensor:
    """Return the mean of outputs that are losses already."""
    return outputs.mean()


@dataclass(frozen=True)
class Shape:
    """The size of a random problem, and how much its clients differ."""

    clients: int = 3
    past: int = 8
    current: int = 6
    features: int = 4
    spread: float = 0.5
    """How far the clients' targets lie apart."""
    spectrum: tuple[float, float] = (0.2, 2.0)
    """The smallest and largest eigenvalue of a quadratic's components."""


def make_problem(name: str, seed: int = 0, shape: Shape | None = None) -> Problem:
    """Draw a random problem: past and current rows have different optima, and clients differ in both."""
    check_name(name)
    shape = shape or Shape()
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    def rows(count: int, target: Tensor) -> Tensor:
        if name == "quadratic":
            return _draw_quadratics(count, target, shape.spectrum, normal)
        features = normal(count, shape.features)
        return torch.cat([features, _labels(name, features, target, normal)[:, None]], dim=1)

    targets = normal(2, shape.features)
    halves: list[list[Tensor]] = []
    for target, size in zip(targets, (shape.past, shape.current), strict=True):
        # Uneven sizes, so that the weights p_i differ.
        halves.append(
            [rows(size + i % 3, target + shape.spread * normal(shape.features)) for i in range(shape.clients)]
        )
    start = normal(FAMILIES[name].width(shape.features))
    return Problem(name, tuple(halves[0]), tuple(halves[1]), start)


def _draw_quadratics(
    count: int, target: Tensor, spectrum: tuple[float, float], normal: Callable[..., Tensor]
) -> Tensor:
    """Draw A_j with eigenvalues spread evenly over a spectrum in random directions, and centres around a target."""
    d = len(target)
    axes, _ = torch.linalg.qr(normal(count, d, d))
    values = torch.linspace(spectrum[0], spectrum[1], d, dtype=torch.float64)
    forms = axes * values @ axes.transpose(1, 2)
    centres = target + 0.3 * normal(count, d)
    return torch.cat([forms.reshape(count, -1), centres], dim=1)


def _labels(name: str, features: Tensor, target: Tensor, normal: Callable[..., Tensor]) -> Tensor:
    """Label features by their projection on a target, with some noise."""
    scores = features @ target + 0.3 * normal(len(features))
    if name == "multinomial":
        return torch.bucketize(scores, torch.tensor([-0.7, 0.7], dtype=scores.dtype)).to(scores.dtype)
    return torch.where(scores > 0, 1.0, -1.0).to(scores.dtype)
