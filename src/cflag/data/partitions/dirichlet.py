"""Every class is shared out by a Dirichlet(ζ) draw: even for large ζ, whole classes to single clients for small ζ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cflag.data.options import BenchmarkOptions
from cflag.data.partitions.base import Deal, Dealt, Half, Indices, alike
from cflag.errors import UserError
from cflag.registry import register
from cflag.rng import stream

ATTEMPTS = 1000

Shares = NDArray[np.float64]


@alike
@register(
    "partition", "dirichlet", "classes are shared out by Dirichlet(zeta) draws: a small zeta makes clients differ"
)
def dirichlet(deal: Deal) -> Dealt:
    """Deal train and test with the same shares."""
    labels = deal.train.labels
    shares = draw_shares([int((labels == label).sum()) for label in deal.classes], deal.options, deal.task)

    def by_shares(half: Half) -> list[Indices]:
        return _by_shares(half, deal.classes, shares, deal.rng(half))

    return by_shares(deal.train), by_shares(deal.test)


def _by_shares(half: Half, classes: Sequence[int], shares: Shares, rng: np.random.Generator) -> list[Indices]:
    """Of the k-th of `classes`, client c gets the fraction shares[k, c]."""
    dealt: list[list[Indices]] = [[] for _ in range(shares.shape[1])]
    labels = half.labels
    for row, label in enumerate(classes):
        mine = rng.permutation(half.indices[labels == label])
        cuts = np.rint(np.cumsum(shares[row])[:-1] * len(mine)).astype(int)
        for client, part in enumerate(np.split(mine, cuts)):
            dealt[client].append(part)
    return [np.sort(np.concatenate(parts)) for parts in dealt]


def draw_shares(sizes: Sequence[int], options: BenchmarkOptions, task: int) -> Shares:
    """Draw shares for each class until every client gets its minimum, or give up with an error."""
    counts, clients, minimum = np.array(sizes), options.clients, options.min_samples
    if counts.sum() < clients * minimum:
        raise UserError(
            f"task {task + 1} has {counts.sum()} samples: too few for {clients} clients with "
            f"min_samples = {minimum}; use fewer clients or a smaller min_samples"
        )
    for attempt in range(ATTEMPTS):
        rng = stream(options.seed, "dirichlet", task, attempt)
        # Should a tiny ζ underflow to NaN, every comparison is false and the draw counts as failed.
        shares = rng.dirichlet(np.full(clients, options.zeta), size=len(counts))
        cuts = np.rint(np.cumsum(shares, axis=1)[:, :-1] * counts[:, None])
        edges = np.hstack([np.zeros((len(counts), 1)), cuts, counts[:, None]])
        if np.all(np.diff(edges, axis=1).sum(axis=0) >= minimum):
            return shares
    raise UserError(
        f"no Dirichlet(zeta = {options.zeta:g}) draw of {ATTEMPTS} gave each of the {clients} clients "
        f"min_samples = {minimum} samples of task {task + 1}; use a larger zeta, fewer clients or min_samples = 0: "
        "then who has none sits the task out"
    )
