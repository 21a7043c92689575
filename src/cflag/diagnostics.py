"""What a method measures along the way, declared by the method: the core writes it down, draws it and logs it unread.

A method logs numbers and words with `server.log` and `client.log`, and declares in `Method.figures` what they are.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """Whether its sum over the run belongs to the result."""


@dataclass(frozen=True)
class Marks:
    """A word that each client logs in every round, such as which case a rule met; drawn as marks below a figure."""

    key: str
    words: tuple[str, ...]
    """The words that are marked, each in a colour of its own."""


@dataclass(frozen=True)
class Figure:
    """A figure of a method's own over the rounds of a run, and the heading of its series in loggers."""

    name: str
    """The file's name, and the heading in TensorBoard and MLflow."""
    title: str
    series: tuple[Series, ...]
    marks: Marks | None = None
