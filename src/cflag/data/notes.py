"""What people may want to know of their data before a run learns from it, in one line each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from cflag.data.source import Source
from cflag.problems.base import find, takes

SHOWN = 3
LARGE = 10.0
"""Labels of a regression beyond this are large: the gradient of their squared error makes usual rates diverge."""


def about_classes(source: Source, learned: Iterable[int]) -> list[str]:
    """Name the classes of the tasks that nobody can learn, as no training sample is of them."""
    lacking = sorted(set(learned) - set(source.train.y.unique().tolist()))
    if not lacking:
        return []
    names = ", ".join(f"'{source.class_names[k]}'" if source.class_names else str(k) for k in lacking[:SHOWN])
    more = ", ..." if len(lacking) > SHOWN else ""
    tested = int(torch.isin(source.test.y, torch.tensor(lacking)).sum())
    wrong = f"; their {tested} test samples will be answered wrongly" if tested else ""
    which = "class" if len(lacking) == 1 else f"{len(lacking)} classes:"
    return [f"no training sample is of {which} {names}{more}{wrong}"]


def about_labels(source: Source) -> list[str]:
    """Say so where numbers to predict are large, and are learned as they are."""
    largest = float(source.train.y.abs().max()) if source.train.y.numel() else 0.0
    scaled = source.label_mean != (0.0,) or source.label_std != (1.0,)
    if not takes(find(source.problem), ["regression"]) or scaled or largest <= LARGE:
        return []
    return [f"labels are as large as {largest:g}: training may diverge; give their label_mean and label_std"]


def about_tests(sizes: Sequence[Sequence[int]], classes: Sequence[int]) -> list[str]:
    """Say who is not tested, by each task's test samples of every client, and what is known beforehand, by its number
    of classes; once, however many tasks it is true of."""
    said = []
    for index, held in enumerate(sizes, 1):
        if 0 in held and sum(held) < len(held):
            untested = sum(not count for count in held)
            said.append(
                f"task {index} has {sum(held)} test samples for {len(held)} clients: {untested} are not tested on it"
            )
    for index, count in enumerate(classes, 1):
        if count == 1:
            said.append(f"task {index} has one class, and tests tell the task: all answers are right, 100 %")
    return said[:1] + [f"and {len(said) - 1} more tasks like this"] * (len(said) > 1)
