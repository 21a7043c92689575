"""Which colour a method has: the same in every figure, report and page, and in the ledger, whoever is beside it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

COLOURS = ("#0b6e99", "#d1603d", "#5b8c3e", "#8a5aa3", "#b58900", "#6b7785", "#c2417c", "#2a9d8f",
           "#2b3f9e", "#8f1f24", "#6f5420", "#1f5c38")  # fmt: skip
"""Light enough for dark lines, dark enough for white pages; report/page.css has the same, and others for dark pages."""
OWN = ("cflag", "finetune", "replay", "cflag-balanced", "ewc", "joint", "cflag-tracked", "cflag-sgd",
       "nccl", "fedtrack", "icarl", "lwf",
       "cflag-server", "target", "derpp", "cflag-shared", "agem", "ncm", "er-ace", "ridge", "slda")  # fmt: skip
"""Each method of ours has the look at its place, also where it is alone; what is compared most comes first."""


def numbers(methods: Iterable[str]) -> dict[str, int]:
    """Number methods: those above by their place, the others by what is free."""
    given = list(dict.fromkeys(methods))
    kept = {method: OWN.index(method) for method in given if method in OWN}
    free = (k for k in count() if k not in kept.values())
    return {method: kept[method] if method in kept else next(free) for method in given}


def colour(number: int) -> str:
    """Return the colour of a number."""
    return COLOURS[number % len(COLOURS)]


def dashed(number: int) -> bool:
    """Say whether lines of a number are dashed: colours come again after the last."""
    return number >= len(COLOURS)
