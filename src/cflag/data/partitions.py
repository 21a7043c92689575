"""Partitions: how a task's samples are dealt to clients.

A partition deals train and test alike, so that every client is tested on the distribution it learns from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cflag.data.source import Split
from cflag.errors import UserError
from cflag.streams import stream

Indices = NDArray[np.int64]

ATTEMPTS = 1000


def by_shares(labels: Indices, chosen: Indices, shares: NDArray[np.float64], rng: np.random.Generator) -> list[Indices]:
    """Deal the `chosen` samples: of the k-th class present, client c gets the fraction shares[k, c]."""
    clients = shares.shape[1]
    dealt: list[list[Indices]] = [[] for _ in range(clients)]
    for row, label in enumerate(np.unique(labels[chosen])):
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
        # A tiny ζ underflows to a row of NaN; such a draw counts as failed.
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


def by_subject(split: Split, chosen: Indices, clients: int, minimum: int, task: int) -> list[Indices]:
    """Deal whole subjects (people) to clients in turn: with as many clients as subjects, one each."""
    if split.subject is None:
        raise UserError("partition 'subject' wants a source that knows its subjects, such as 'har'")
    subjects = split.subject.numpy()
    people = np.unique(subjects)
    if clients > len(people):
        raise UserError(f"clients = {clients} is more than the {len(people)} subjects")
    client_of = np.searchsorted(people, subjects[chosen]) % clients
    dealt = [chosen[client_of == client] for client in range(clients)]
    poorest = min(range(clients), key=lambda c: len(dealt[c]))
    if len(dealt[poorest]) < minimum:
        raise UserError(
            f"client {poorest} has {len(dealt[poorest])} samples of task {task + 1}, fewer than "
            f"min_samples = {minimum}; use fewer clients or a smaller min_samples"
        )
    return dealt
