"""Estimators of the local gradient ∇g_i at the moving local iterate: the paper's v_{i,k}."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from cflag.data.samples import Samples

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.learning.gradient_table import GradientTable
    from cflag.learning.learner import Loss
    from cflag.learning.smoothness import PathSmoothness


class Cut:
    """How a client's samples are cut into components, and which of them each local step visits.

    Cyclic components are the data as they lie, as those of a stream always are; otherwise they are dealt anew each
    round. A sample that would be left alone joins the component before it where the model has batch norm, which cannot
    learn from a sample alone.
    """

    def __init__(self, client: Client, size: int, order: str, data: Samples | None = None) -> None:
        count = len(client.data if data is None else data)
        if data is None and client.pieces:  # a stream: each sample once, as they come
            size, order = -(-count // client.pieces), "cyclic"
        self.client = client
        self.order = order
        self.mixed = None if order == "cyclic" else client.rng("components").permutation(count)
        """Which sample comes when; None: as they lie."""
        self.edges = [*range(0, max(1, count), size), count]
        if client.batch_norm and size > 1 and len(self) > 1 and count - self.edges[-2] == 1:
            del self.edges[-2]

    def __len__(self) -> int:
        return len(self.edges) - 1

    def visits(self) -> Iterator[int]:
        """Yield which component each local step visits, for ever."""
        if len(self) == 1:  # no order to draw
            yield from repeat(0)
        rng = self.client.rng("order")
        while True:
            if self.order == "cyclic":
                yield from range(len(self))
            elif self.order == "shuffled":
                yield from rng.permutation(len(self)).tolist()
            else:
                yield int(rng.integers(len(self)))

    def indices(self, first: int) -> Iterator[NDArray[np.int64]]:
        """Yield which samples each local step learns from, for ever; the client's own begin at `first` among others."""
        mixed = first + (np.arange(self.edges[-1]) if self.mixed is None else self.mixed)
        parts = [mixed[start:end] for start, end in pairwise(self.edges)]
        return (parts[j] for j in self.visits())


class Components:
    """A client's current data C^i cut into components g_{i,j}: one sample in the theory, a mini-batch in practice.

    Components may differ in size, so their mean is weighted by it; then the mean of all is the full gradient.
    `data` may be other samples, `loss` another loss than the task's.
    """

    def __init__(
        self, client: Client, size: int, order: str, data: Samples | None = None, loss: Loss | None = None
    ) -> None:
        self.client = client
        self.loss = loss
        self.cut = Cut(client, size, order, data)
        data = client.data if data is None else data
        if self.cut.mixed is not None:
            data = data[torch.from_numpy(self.cut.mixed)]
        alone = len(self.cut) == 1
        self.parts = [data] if alone else [data[start:end] for start, end in pairwise(self.cut.edges)]
        self.weights = [len(part) / len(data) for part in self.parts]

    def visits(self) -> Iterator[int]:
        """Yield which component each local step visits, for ever."""
        return self.cut.visits()

    def __len__(self) -> int:
        return len(self.parts)

    def gradient(self, j: int) -> Tensor:
        """Return ∇g_{i,j} at the client's present parameters.

        A component is one function for a whole round, or g − g_i and the table would compare different ones: where
        samples are varied, they are varied once a round.
        """
        return self.client.value_and_grad(self.client.augmented(self.parts[j], "component", j), self.loss)[1]

    def batches(self) -> Iterator[Samples]:
        """Yield the components in the order of the visits, for ever; where samples are varied, anew at each visit."""
        return (self.client.augmented(self.parts[j], "batch", k) for k, j in enumerate(self.visits()))

    def table(self) -> GradientTable:
        """Return all component gradients at the present parameters, one per row."""
        table = self.client.new_table(len(self))
        for j in range(len(self)):
            table[j] = self.gradient(j)
        return table

    def mean(self, rows: Iterable[Tensor]) -> Tensor:
        """Return the weighted mean of a table's rows, the full gradient ∇g_i; a gradient by itself is its own mean."""
        if isinstance(rows, torch.Tensor):
            return rows
        mean = torch.zeros_like(self.client.params)
        for weight, row in zip(self.weights, rows, strict=True):
            mean.add_(row, alpha=weight)
        return mean

    def full(self) -> Tensor:
        """Return the full gradient ∇g_i without keeping a table; equal to a full-precision table's mean to the bit."""
        return self.mean(self.gradient(j) for j in range(len(self)))


Start = TypeVar("Start", bound="GradientTable | Tensor")


class Estimator(ABC, Generic[Start]):
    """An estimator of ∇g_i along one round's local path; at its start, x_t, it is the full gradient g_i."""

    def __init__(self, components: Components) -> None:
        self.components = components
        self.seen: PathSmoothness | None = None
        """Who wants to know how the components' gradients change along the path."""

    @abstractmethod
    def at_start(self) -> Start:
        """Compute at x_t what the path starts from."""

    @abstractmethod
    def path(self) -> Iterator[Tensor]:
        """Yield v_{i,k} for k = 0, 1, ...: the method moves the parameters in between, each v is at the new iterate."""

    def full_gradient(self) -> Tensor:
        """Return g_i at x_t; what was computed for it is kept for the local steps of the same round."""
        return self.components.mean(self.components.client.compute("start", self.at_start))

    def recall(self) -> Tensor:
        """Return g_i in a later question of the same round, ready for the path."""
        self.start = self.components.client.recall("start", self.at_start)
        self.own = self.components.mean(self.start)
        return self.own


class Delayed(Estimator["GradientTable"]):
    """The incrementally aggregated gradient, Eq. (5): mean over j of ∇g_{i,j} where j was last visited (τ_{k,j})."""

    def at_start(self) -> GradientTable:
        """Fill the table: all component gradients at x_t."""
        return self.components.table()

    def path(self) -> Iterator[Tensor]:
        """At k = 0 every component stands at x_t; each later step visits one. What was recalled is used up."""
        v, table = self.own, self.start
        yield v
        for j in self.components.visits():
            change = table.replace(j, self.components.gradient(j))
            if self.seen is not None:
                self.seen.note(j, change, self.components.client.params)
            v.add_(change, alpha=self.components.weights[j])
            yield v


class Minibatch(Estimator["Tensor"]):
    """The plain mini-batch gradient ∇g_{i,j}(x_k), as in the paper's experiments."""

    def at_start(self) -> Tensor:
        """Compute the full gradient, for the drift correction alone."""
        return self.components.full()

    def path(self) -> Iterator[Tensor]:
        """Every step visits one component."""
        for j in self.components.visits():
            yield self.components.gradient(j)


ESTIMATORS: dict[str, type[Delayed | Minibatch]] = {"iag": Delayed, "minibatch": Minibatch}
