"""Partitions: how a task's samples are dealt to clients.

A partition deals train and test alike, so that every client is tested on the distribution it learns from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cflag.data.source import Split
from cflag.errors import UserError
from cflag.rng import stream

Indices = NDArray[np.int64]

ATTEMPTS = 1000


def in_turn(labels: Indices, chosen: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Deal the `chosen` samples one by one, class after class: of each class, and in all, to within one sample."""
    classes = np.unique(labels[chosen])
    row = np.concatenate([chosen[:0], *(rng.permutation(chosen[labels[chosen] == label]) for label in classes)])
    return [np.sort(row[client::clients]) for client in range(clients)]


def by_shares(
    labels: Indices, chosen: Indices, classes: Sequence[int], shares: NDArray[np.float64], rng: np.random.Generator
) -> list[Indices]:
    """Deal the `chosen` samples: of the k-th of `classes`, client c gets the fraction shares[k, c]."""
    dealt: list[list[Indices]] = [[] for _ in range(shares.shape[1])]
    for row, label in enumerate(classes):
        mine = rng.permutation(chosen[labels[chosen] == label])
        cuts = np.rint(np.cumsum(shares[row])[:-1] * len(mine)).astype(int)
        for client, part in enumerate(np.split(mine, cuts)):
            dealt[client].append(part)
    return [np.sort(np.concatenate(parts)) for parts in dealt]


def draw_shares(
    sizes: Sequence[int], clients: int, zeta: float, minimum: int, seed: int, task: int
) -> NDArray[np.float64]:
    """Draw Dirichlet(ζ) shares for each class until every client gets its minimum, or give up with an error."""
    counts = np.array(sizes)
    if counts.sum() < clients * minimum:
        raise UserError(
            f"task {task + 1} has {counts.sum()} samples: too few for {clients} clients with "
            f"min_samples = {minimum}; use fewer clients or a smaller min_samples"
        )
    for attempt in range(ATTEMPTS):
        rng = stream(seed, "dirichlet", task, attempt)
        # Should a tiny ζ underflow to NaN, every comparison is false and the draw counts as failed.
        shares = rng.dirichlet(np.full(clients, zeta), size=len(counts))
        cuts = np.rint(np.cumsum(shares, axis=1)[:, :-1] * counts[:, None])
        edges = np.hstack([np.zeros((len(counts), 1)), cuts, counts[:, None]])
        if np.all(np.diff(edges, axis=1).sum(axis=0) >= minimum):
            return shares
    raise UserError(
        f"no Dirichlet(zeta = {zeta:g}) draw of {ATTEMPTS} gave each of the {clients} clients "
        f"min_samples = {minimum} samples of task {task + 1}; use a larger zeta, fewer clients or a smaller "
        "min_samples"
    )


def by_subject(halves: Sequence[Split], chosen: Sequence[Indices], clients: int) -> list[list[Indices]]:
    """Deal whole subjects (people) to clients in turn, in train and test alike: as many clients as people, one each."""
    subjects = [half.subject.numpy() for half in halves if half.subject is not None]
    if len(subjects) < len(halves):
        raise UserError("partition 'subject' wants a source that knows its subjects, such as 'har'")
    people = np.unique(np.concatenate(subjects))
    if clients > len(people):
        raise UserError(f"clients = {clients} is more than the {len(people)} subjects")
    client_of = [np.searchsorted(people, s[mine]) % clients for s, mine in zip(subjects, chosen, strict=True)]
    return [[mine[of == client] for client in range(clients)] for mine, of in zip(chosen, client_of, strict=True)]


def refuse_poor(dealt: Sequence[Indices], minimum: int, task: int) -> None:
    """Say so where a client got fewer samples than its minimum."""
    poorest = min(range(len(dealt)), key=lambda c: len(dealt[c]))
    if len(dealt[poorest]) < minimum:
        raise UserError(
            f"client {poorest} has {len(dealt[poorest])} samples of task {task + 1}, fewer than "
            f"min_samples = {minimum}; use fewer clients or a smaller min_samples"
        )
