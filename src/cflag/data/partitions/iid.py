"""Every client gets the same number of samples of each class."""

from __future__ import annotations

import numpy as np

from cflag.data.partitions.base import Deal, Dealt, Half, Indices, alike
from cflag.registry import register


@alike
@register("partition", "iid", "every client gets the same number of samples of each class, to within one")
def iid(deal: Deal) -> Dealt:
    """Deal the samples one by one, class after class: of each class, and in all, to within one sample."""

    def in_turn(half: Half) -> list[Indices]:
        rng, labels, clients = deal.rng(half), half.labels, deal.options.clients
        by_class = [rng.permutation(half.indices[labels == label]) for label in np.unique(labels)]
        row = np.concatenate([half.indices[:0], *by_class])
        return [np.sort(row[client::clients]) for client in range(clients)]

    return in_turn(deal.train), in_turn(deal.test)
