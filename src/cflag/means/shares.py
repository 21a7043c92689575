"""Whose answer counts how much, and whose is not believed at all: what clients claim is bounded here."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from cflag.conversation import Answer
from cflag.means.base import median
from cflag.means.clipped import length

JUDGES = 3
"""With fewer answers nobody can tell which of them is absurd."""


def shares(samples: Mapping[int, int], most: float) -> dict[int, float]:
    """Return p_i = n_i / Σ n_j, but none above `most`, or above 1/n where that is more: others get what is cut off."""
    most = max(most, 1 / len(samples))
    held: set[int] = set()
    while True:
        free = sum(n for number, n in samples.items() if number not in held)
        room = 1 - most * len(held)
        p = {number: most if number in held else room * n / free for number, n in samples.items()}
        over = {number for number, share in p.items() if share > most * (1 + 1e-9)}
        if not over or len(held) + len(over) == len(samples):
            return dict.fromkeys(samples, most) if over else p
        held |= over


def believed(sizes: Mapping[int, int], most: float) -> dict[int, int]:
    """Return sizes with these shares: E is made of them, so a claim must not stretch it without bound either."""
    if most >= 1 or not sizes:
        return dict(sizes)
    p = shares(sizes, most)
    total = min(n / p[number] for number, n in sizes.items())
    return {number: min(n, max(1, round(p[number] * total))) for number, n in sizes.items()}


def outliers(answers: Mapping[int, Answer], bound: float, ratios: Mapping[str, str]) -> dict[int, str]:
    """Return whose answer has a tensor longer than `bound` median lengths, and which; numbers are not judged.

    Where most are zero there is nothing to compare with.
    """
    if not bound or len(answers) < JUDGES:
        return {}
    refused: dict[int, str] = {}
    for name in next(iter(answers.values())):
        lengths = {number: _length(answer, name, ratios) for number, answer in answers.items()}
        usual = median(list(lengths.values()))
        for number, its in lengths.items():
            if usual > 0 and its > bound * usual:
                refused.setdefault(number, f"refused: its {name} is {its / usual:.3g} times as long as the median one")
    return refused


def _length(answer: Answer, name: str, ratios: Mapping[str, str]) -> float:
    """Return the length of a part, apart from the factor that it is weighted by."""
    value = answer[name]
    if not isinstance(value, Tensor):
        return 0.0
    factor = float(answer.get(ratios.get(name, ""), 1.0))
    return length(value) / abs(factor) if factor else 0.0


def absurd(claims: Mapping[int, list[int]], bound: float) -> dict[int, str]:
    """Return who claims more samples of a task than `bound` times the median client, and how many."""
    refused: dict[int, str] = {}
    if len(claims) < JUDGES:
        return refused
    for task, column in enumerate(zip(*claims.values(), strict=True)):
        usual = median(column)
        for number, claimed in zip(claims, column, strict=True):
            if claimed > bound * max(usual, 1):
                refused.setdefault(
                    number,
                    f"client {number} claims {claimed} samples of task {task + 1}, and the median client {usual:g}: "
                    f"more than mean.max_claim = {bound:g} times as many",
                )
    return refused
