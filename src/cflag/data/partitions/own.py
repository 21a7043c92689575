"""Clients that each have data of their own: on its machine, a client has all there is."""

from __future__ import annotations

from cflag.data.partitions.base import Deal, Dealt, Half, Indices, own_data
from cflag.registry import register


@own_data
@register("partition", "own", "every client has data of its own (folder client-N, or its machine), and uses it all")
def own(deal: Deal) -> Dealt:
    """Give to each client what is its own; on a client's machine, everything to whoever asks."""

    def of_each(half: Half) -> list[Indices]:
        if half.split.owner is None:
            return [half.indices] * deal.options.clients
        owner = half.split.owner.numpy()[half.indices]
        return [half.indices[owner == client] for client in range(deal.options.clients)]

    return of_each(deal.train), of_each(deal.test)
