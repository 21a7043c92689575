"""A score: how well answers do, under the name and in the unit that people see everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Score:
    """One number for how well a model answers. Values are kept as they are, and shown as `factor` times that."""

    name: str
    """What settings and loggers call it."""
    label: str
    """What the columns of tables call it."""
    text: str
    """What sentences and axes call it."""
    unit: str = ""
    factor: float = 1.0
    digits: int = 3
    higher: bool = True
    """Whether a higher value is better."""
    bounds: tuple[float, float] | None = None
    """The smallest and the largest value there can be, where both are known: the range of colours."""

    @property
    def sign(self) -> float:
        """What a difference is multiplied with to be positive where the later is better."""
        return 1.0 if self.higher else -1.0

    @property
    def worthless(self) -> float:
        """What counts, the higher the better, for a run that came to nothing: no score can be lower."""
        if self.bounds is None:
            return -1e9
        return self.bounds[0] if self.higher else -self.bounds[1]

    @property
    def title(self) -> str:
        """The text at the beginning of a heading."""
        return self.text[:1].upper() + self.text[1:]

    @property
    def brackets(self) -> str:
        """The unit after a name on an axis, or in a heading; nothing where there is none."""
        return f" ({self.unit})" if self.unit else ""

    def named(self, key: str) -> str:
        """Return a key or a file's name that says accuracy as one that says this score."""
        return key.replace("accuracy", self.name)

    def range_of(self, rows: Sequence[Sequence[float | None]]) -> tuple[float, float]:
        """Return the values that colours are spread over: all there can be, or else all there are."""
        if self.bounds is not None:
            return self.bounds
        known = [value for row in rows for value in row if value is not None]
        return (min(known), max(known)) if known else (0.0, 1.0)

    def goodness(self, value: float | None, spread: tuple[float, float]) -> float:
        """Return how good a value is within a range, from 0 for the worst to 1 for the best."""
        low, high = spread
        if value is None or high <= low:
            return 0.5
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return share if self.higher else 1.0 - share

    def shown(self, value: float | None) -> str:
        """Return a value as text, without its unit."""
        return "–" if value is None else f"{self.factor * value:,.{self.digits}f}"

    def said(self, value: float | None) -> str:
        """Return a value as text, with its unit."""
        return self.shown(value) if value is None or not self.unit else f"{self.shown(value)} {self.unit}"

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Score:
        """Take back what `dataclasses.asdict` returned, after a trip through JSON."""
        return cls(**{**raw, "bounds": None if raw["bounds"] is None else tuple(raw["bounds"])})


ACCURACY = Score("accuracy", "Acc", "accuracy", "%", 100.0, 1, bounds=(0.0, 1.0))
"""The share of right answers: the score of runs from before there were problems, too."""

MIXED = Score("score", "score", "score")
"""What a column of runs with different scores is called."""


def common(scores: Sequence[Score]) -> Score:
    """Return the score that all of several runs have, or one that says that they differ."""
    return scores[0] if len(set(scores)) == 1 else MIXED
