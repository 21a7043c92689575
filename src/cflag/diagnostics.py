"""What a method measures along the way, declared by the method; the core stores, draws and logs it without knowing it.

A method logs numbers and words with `server.log` and `client.log`, and declares in `Method.figures` what they are:

    figures = (Figure("pull", "Distance from the global model", (Series("distance", "‖x_i − x‖", by_client=True),)),)

What is logged is in `metrics.jsonl` in any case. What is declared is also drawn, for the run and in reports, and has a
name of its own in TensorBoard and MLflow. This module also reads declared values back from lines of `metrics.jsonl`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import mean
from typing import Any

from cflag.errors import UserError

Record = Mapping[str, Any]
"""A line of metrics.jsonl."""
Points = list[tuple[int, float]]
"""Rounds, counted from 1 over all tasks, with a value each."""


@dataclass(frozen=True)
class Series:
    """A number that is logged in every round, or in some."""

    key: str
    """The name it is logged under."""
    label: str
    """What people call it, for axes and legends."""
    by_client: bool = False
    """Whether each client logs its own; then the mean over clients is drawn and sent to loggers."""
    total: bool = False
    """Whether the sum of all that is logged under its key, by clients and the server, belongs to the result."""
    drawn: bool = True
    """Whether it is in the figure; one of another scale than the others is better left out."""

    @property
    def name(self) -> str:
        """What its curve is called."""
        return f"mean {self.label}" if self.by_client else self.label

    def value(self, record: Record) -> float | None:
        """Return its number in a round; None where there is none."""
        return number(client_mean(record, self.key) if self.by_client else record.get(self.key))

    def points(self, records: Iterable[Record]) -> Points:
        """Return its numbers over a run."""
        return [(t, v) for t, record in enumerate(records, 1) if (v := self.value(record)) is not None]


@dataclass(frozen=True)
class Marks:
    """A word that each client logs in every round, such as which case a rule met; drawn as marks below a figure."""

    key: str
    words: tuple[str, ...]
    """The words that are marked, each in a colour of its own."""
    title: str
    """What the words tell."""

    def shares(self, records: Iterable[Record], word: str) -> Points:
        """Return which share of the clients logged a word, over a run."""
        said = [(t, record["clients"].get(self.key)) for t, record in enumerate(records, 1)]
        return [(t, words.count(word) / len(words)) for t, words in said if words]

    def most(self, records: Iterable[Record], word: str) -> list[int]:
        """Return the rounds in which most clients logged a word."""
        return [t for t, share in self.shares(records, word) if share > 0.5]


@dataclass(frozen=True)
class Figure:
    """A method's own figure over the rounds of a run, and the heading of its series in loggers."""

    name: str
    """The file's name, and the heading in TensorBoard and MLflow."""
    title: str
    series: tuple[Series, ...]
    marks: Marks | None = None
    axis: str = ""
    """What the vertical axis says; by default the label of the first series."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.name):
            raise UserError(f"a figure cannot be named '{self.name}': letters, digits, '_' and '-' make a file's name")

    @property
    def axis_label(self) -> str:
        """What the vertical axis says."""
        return self.axis or self.series[0].label

    def curves(self, records: Sequence[Record]) -> dict[Series, Points]:
        """Return the series to draw of a run, those for which something was logged."""
        points = {series: series.points(records) for series in self.series if series.drawn}
        return {series: found for series, found in points.items() if found}

    def scalars(self, record: Record) -> dict[str, float]:
        """Return a round's numbers for loggers: `forgetting/gamma`; `synthetic_loss` is `synthetic/loss`."""
        values = {series.key.removeprefix(f"{self.name}_"): series.value(record) for series in self.series}
        return {f"{self.name}/{key}": value for key, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Figure:
        """Take back what `dataclasses.asdict` returned, after a trip through JSON."""
        marks = raw["marks"] and Marks(**{**raw["marks"], "words": tuple(raw["marks"]["words"])})
        return cls(**{**raw, "series": tuple(Series(**series) for series in raw["series"]), "marks": marks})


STREAM_FIGURE = Figure(
    "stream", "Prequential accuracy", (Series("prequential", "accuracy on samples before they are learned"),)
)
"""Of every run in which samples pass by, whatever its method."""

RESERVED = (
    "accuracy", "accuracy_after_each_task", "accuracy_matrix", "cost", "loss", "method", "result", "stream", "total",
)  # fmt: skip
"""What the core calls its own figures, and its headings in loggers."""


def check_figures(figures: Iterable[Figure]) -> None:
    """Refuse declared figures that would overwrite others, or show nothing."""
    names = [figure.name for figure in figures]
    for figure in figures:
        if figure.name in RESERVED or names.count(figure.name) > 1:
            raise UserError(f"a method's figure cannot be named '{figure.name}': there is another one of that name")
        if not figure.series:
            raise UserError(f"a method's figure '{figure.name}' has no series to draw")


def totals(figures: Iterable[Figure], records: Sequence[Record]) -> dict[str, float]:
    """Return the sums over a run of the series that have a total, by key; nothing where nobody logged it."""
    keys = dict.fromkeys(series.key for figure in figures for series in figure.series if series.total)
    found = {key: [v for record in records for v in _logged(record, key)] for key in keys}
    return {key: sum(values) for key, values in found.items() if values}


def _logged(record: Record, key: str) -> list[float]:
    values = [record.get(key), *record["clients"].get(key, [])]
    return [value for value in values if number(value) is not None]


def client_mean(record: Record, key: str) -> float | None:
    """Return the mean of what clients logged in a round; what is no number is left out."""
    values = [value for value in record["clients"].get(key, []) if number(value) is not None]
    return mean(values) if values else None


def number(value: Any) -> float | None:
    """Return a finite number as it is; None for anything else."""
    return value if isinstance(value, int | float) and isfinite(value) else None
