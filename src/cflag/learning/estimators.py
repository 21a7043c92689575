"""Estimators of the local gradient ∇g_i at the moving local iterate: the paper's v_{i,k}.

Each is a generator that yields v for k = 0, 1, 2, ...; between two yields the method moves the client's
parameters, so what is computed next is at the new iterate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cflag.data.samples import Samples

if TYPE_CHECKING:
    from cflag.client import Client
    from cflag.learning.gradient_table import GradientTable
    from cflag.learning.learner import Loss
    from cflag.learning.smoothness import PathSmoothness


class Components:
    """A client's current data C^i cut into components g_{i,j}: one sample in the theory, a mini-batch in practice.

    Cyclic components are the data as they lie; otherwise they are dealt anew each round. Components may differ in
    size, so their mean is weighted by it; then the mean of all is the full gradient. `data` may be other samples,
    `loss` another loss than the task's.
    """

    def __init__(
        self, client: Client, size: int, order: str, data: Samples | None = None, loss: Loss | None = None
    ) -> None:
        self.client = client
        self.order = order
        self.loss = loss
        data = client.data if data is None else data
        if order != "cyclic":
            data = data[torch.from_numpy(client.rng("components").permutation(len(data)))]
        self.parts: list[Samples] = data.split(size)
        self.weights = [len(part) / len(data) for part in self.parts]

    def visits(self) -> Iterator[int]:
        """Yield which component each local step visits, for ever."""
        rng = self.client.rng("order")
        while True:
            if self.order == "cyclic":
                yield from range(len(self))
            elif self.order == "shuffled":
                yield from (int(j) for j in rng.permutation(len(self)))
            else:
                yield int(rng.integers(len(self)))

    def __len__(self) -> int:
        return len(self.parts)

    def gradient(self, j: int) -> Tensor:
        """Return ∇g_{i,j} at the client's present parameters."""
        return self.client.value_and_grad(self.parts[j], self.loss)[1]

    def table(self) -> GradientTable:
        """Return all component gradients at the present parameters, one a row."""
        table = self.client.new_table(len(self))
        for j in range(len(self)):
            table[j] = self.gradient(j)
        return table

    def mean(self, rows: Iterable[Tensor]) -> Tensor:
        """Return the weighted mean of a table's rows, the full gradient ∇g_i; a gradient by itself is its own mean."""
        if isinstance(rows, Tensor):
            return rows
        mean = torch.zeros_like(self.client.params)
        for weight, row in zip(self.weights, rows, strict=True):
            mean.add_(row, alpha=weight)
        return mean

    def full(self) -> Tensor:
        """Return the full gradient ∇g_i without keeping a table; equal to a full-precision table's mean to the bit."""
        return self.mean(self.gradient(j) for j in range(len(self)))


def delayed(
    components: Components, table: GradientTable, order: Iterator[int], seen: PathSmoothness | None = None
) -> Iterator[Tensor]:
    """The incrementally aggregated gradient, Eq. (5): mean over j of ∇g_{i,j} where j was last visited (τ_{k,j}).

    At k = 0 every component stands at x_t; each later step visits one. The table is used up; how much its rows change
    tells the smoothness along the path for free.
    """
    v = components.mean(table)
    yield v
    for j in order:
        change = table.replace(j, components.gradient(j))
        if seen is not None:
            seen.note(j, change, components.client.params)
        v.add_(change, alpha=components.weights[j])
        yield v


def minibatch(components: Components, order: Iterator[int]) -> Iterator[Tensor]:
    """The plain mini-batch gradient ∇g_{i,j}(x_k), as in the authors' experiments."""
    for j in order:
        yield components.gradient(j)
