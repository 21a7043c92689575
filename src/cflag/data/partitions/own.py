"""A fleet whose clients each have data of their own: on its machine, a client has all there is."""

from __future__ import annotations

from cflag.data.partitions.base import Deal, Dealt, own_data
from cflag.registry import register


@own_data
@register("partition", "own", "for a fleet: every client has data of its own, and uses all of it")
def own(deal: Deal) -> Dealt:
    """Give everything to whoever asks."""
    return [deal.train.indices] * deal.options.clients, [deal.test.indices] * deal.options.clients
