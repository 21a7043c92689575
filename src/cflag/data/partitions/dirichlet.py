"""Every class is shared out by a Dirichlet(ζ) draw: even for large ζ, whole classes to single clients for small ζ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cflag.data.options import BenchmarkOptions
from cflag.data.partitions.base import Deal, Dealt, Half, Indices, alike
from cflag.data.partitions.rounding import Shares, dealt_by, rounded
from cflag.errors import UserError
from cflag.registry import register
from cflag.rng import stream

ATTEMPTS = 1000


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
    """Of the k-th of `classes`, client c gets the fraction shares[k, c], in whole samples."""
    labels = half.labels
    return dealt_by([rng.permutation(half.indices[labels == label]) for label in classes], shares)


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
        shares = rng.dirichlet(np.full(clients, options.zeta), size=len(counts))
        if np.isnan(shares).any():  # a tiny ζ underflows
            continue
        if np.all(rounded(counts, shares).sum(axis=0) >= minimum):
            return shares
    raise UserError(
        f"no Dirichlet(zeta = {options.zeta:g}) draw of {ATTEMPTS} gave each of the {clients} clients "
        f"min_samples = {minimum} samples of task {task + 1}; use a larger zeta, fewer clients or min_samples = 0: "
        "then who has none sits the task out"
    )
