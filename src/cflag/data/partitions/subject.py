"""Whole subjects (people) go to clients: as many clients as people, one each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cflag.data.partitions.base import Deal, Dealt, Half, Indices
from cflag.errors import UserError
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@register("partition", "subject", "whole people go to clients in turn; for a source that knows its people, such as har")
def subject(deal: Deal) -> Dealt:
    """Deal people in turn, in train and test alike."""
    clients = deal.options.clients
    train, test = deal.train.split.subject, deal.test.split.subject
    if train is None or test is None:
        raise UserError("partition 'subject' wants a source that knows its subjects, such as 'har'")
    # Those with no sample of this task count too, so that a person stays with one client in all tasks.
    people = np.unique(np.concatenate([train.numpy(), test.numpy()]))
    if clients > len(people):
        raise UserError(f"clients = {clients} is more than the {len(people)} subjects")

    def by_person(half: Half, subjects: Tensor) -> list[Indices]:
        client_of = np.searchsorted(people, subjects.numpy()[half.indices]) % clients
        return [half.indices[client_of == client] for client in range(clients)]

    return by_person(deal.train, train), by_person(deal.test, test)
