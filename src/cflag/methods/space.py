"""What `cflag tune` may choose of a method's settings, and around what: a method's `search_space`.

A list holds values to choose from, a pair of numbers a range on a log scale. What is below says instead what a setting
*is*, so that the range follows from the file's own value and from the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

USUAL = {"sgd": 0.1, "momentum": 0.01, "adam": 0.001}
"""Where learning rates usually lie, by optimizer: momentum 0.9 makes a step ten times as long, Adam's has length 1."""


@dataclass(frozen=True)
class Rate:
    """A learning rate: from a tenth of the file's own value, or of the optimizer's usual one, to ten times that."""

    optimizer: str = ""
    """The method's own, where it does not take the config's."""

    def span(self, own: float, optimizer: str) -> tuple[float, float]:
        """Return the range: two decades where the file's own value is usual, more where it is not."""
        usual = USUAL[self.optimizer or optimizer]
        return min(own, usual) / 10, max(own, usual) * 10


@dataclass(frozen=True)
class Around:
    """A positive number of any size, such as a penalty's strength: so many decades around the file's own value."""

    decades: float = 2.0

    def span(self, own: float, optimizer: str) -> tuple[float, float]:
        """Return the range."""
        reach = 10.0 ** (self.decades / 2)
        return own / reach, own * reach


@dataclass(frozen=True)
class Times:
    """A setting that goes with another: what is searched is how many times the other it is."""

    other: str
    low: float
    high: float


@dataclass(frozen=True)
class Over:
    """A setting that goes against another: what is searched is its product with the other, as L with α in Lα < 1."""

    other: str
    low: float
    high: float


Choice = Rate | Around | Times | Over | tuple[float, float] | list[Any]
SearchSpace = Mapping[str, Choice]
"""What may be chosen, by the settings' names; one that goes with another stands after it."""
