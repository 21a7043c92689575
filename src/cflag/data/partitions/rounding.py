"""Shares of samples as whole numbers of them: largest remainders, carried from class to class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cflag.data.partitions.base import Indices

Shares = NDArray[np.float64]


def rounded(counts: Indices, shares: Shares) -> Indices:
    """Return how many of the counts[k] samples of class k each client gets, (classes, clients); rows sum to `counts`.

    Client c gets counts[k] · shares[k, c] of class k, rounded down or up, and in all what these sum to, rounded down or
    up. Who would have nothing in all is rounded up first, then who has the largest remainders. So even shares are even
    to within one sample, of each class and in all, also where a class has fewer samples than there are clients.
    """
    ideal = np.round(counts[:, None] * shares, 9)  # what should be whole is, whatever the last bits say
    dealt = np.floor(ideal).astype(np.int64)
    rank = np.argsort(np.argsort(dealt - ideal, axis=1, kind="stable"), axis=1, kind="stable")
    dealt += rank < (counts - dealt.sum(1))[:, None]
    excess = dealt.sum(0) - _totals(ideal.sum(0), int(counts.sum()))
    while excess.any():
        off = dealt - ideal  # a sample goes from who has too many in all to who has too few, where that changes least
        gives = np.where((excess > 0) & (off > 0), off, -np.inf)
        takes = np.where((excess < 0) & (off < 0), off, np.inf)
        row = int(np.argmin(takes.min(1) - gives.max(1)))
        giver, taker = int(np.argmax(gives[row])), int(np.argmin(takes[row]))
        if not np.isfinite(gives[row, giver] - takes[row, taker]):
            break  # no class in which one of them was rounded up and the other down
        dealt[row, [giver, taker]] += (-1, 1)
        excess[[giver, taker]] += (-1, 1)
    return dealt


def dealt_by(of_class: Sequence[Indices], shares: Shares) -> list[Indices]:
    """Deal each class's samples, as they lie, by clients' shares of it; return each client's in ascending order."""
    sizes = rounded(np.array([len(mine) for mine in of_class]), shares)
    cut = [np.split(mine, np.cumsum(own)[:-1]) for mine, own in zip(of_class, sizes, strict=True)]
    return [np.sort(np.concatenate(parts)) for parts in zip(*cut, strict=True)]


def _totals(ideal: Shares, count: int) -> Indices:
    """Round clients' totals so that they sum to `count`: first up are those below one, then the largest remainders."""
    ideal = np.round(ideal, 9)
    totals = np.floor(ideal).astype(np.int64)
    rest = ideal - totals
    up = np.lexsort((-rest, ~((totals == 0) & (rest > 0))))[: count - totals.sum()]
    totals[up] += 1
    return totals
