"""Every client gets a few classes of each task (as in GLFC, Dong et al., CVPR 2022: six of ten)."""

from __future__ import annotations

import numpy as np

from cflag.data.partitions.base import Deal, Dealt, Half, Indices, alike
from cflag.errors import UserError
from cflag.registry import register
from cflag.rng import stream


@alike
@register("partition", "classes", "every client draws classes_per_client classes of each task, and shares them evenly")
def classes(deal: Deal) -> Dealt:
    """Draw each client's classes; of each class, those who have it get the same number of samples, to within one."""
    options, count = deal.options, deal.options.classes_per_client
    if not 1 <= count <= len(deal.classes):
        raise UserError(
            f"classes_per_client = {count} must be at least 1 and at most the {len(deal.classes)} classes of task "
            f"{deal.task + 1}"
        )
    rng = stream(options.seed, "classes of clients", deal.task)
    holders: dict[int, list[int]] = {label: [] for label in deal.classes}
    for client in range(options.clients):
        for label in rng.permutation(deal.classes)[:count].tolist():
            holders[label].append(client)

    def shared(half: Half) -> list[Indices]:
        parts: list[list[Indices]] = [[half.indices[:0]] for _ in range(options.clients)]
        own = deal.rng(half)
        for label, clients in holders.items():
            mine = own.permutation(half.indices[half.labels == label])
            for client, part in zip(clients, np.array_split(mine, max(len(clients), 1)), strict=False):
                parts[client].append(part)
        return [np.sort(np.concatenate(part)) for part in parts]

    return shared(deal.train), shared(deal.test)
