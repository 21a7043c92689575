"""The figures that methods declare, over the rounds: a mean over seeds, and a band from the least to the most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean
from typing import Any

from cflag.diagnostics import Figure, Marks, Points, Series
from cflag.report.parts import COLOURS, Colours, figure
from cflag.report.story import Groups
from cflag.report.svg import Line, Rug, curves
from cflag.results.colours import dashed
from cflag.results.metrics import task_starts

FEW = 30
"""Up to how many points have dots; a single one could not be seen without."""


@dataclass(frozen=True)
class MeasuredRuns:
    """What the runs of one method measured for one figure."""

    method: str
    colour: int
    """The method's number: its colour in all figures."""
    own: Figure
    seeds: Sequence[int]
    runs: Sequence[Sequence[dict[str, Any]]]
    """The metrics of the run with each seed."""

    @property
    def caption(self) -> str:
        """Whose numbers these are."""
        return f"{self.method}, " + (f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds")

    @property
    def boundaries(self) -> list[tuple[float, str]]:
        """Where tasks begin."""
        return [(t - 0.5, name) for t, name in task_starts(self.runs[0])]

    def curves(self) -> dict[Series, list[Points]]:
        """Return the series to draw, each with its numbers in every run."""
        found = [self.own.curves(records) for records in self.runs]
        return {s: [run[s] for run in found if s in run] for s in self.own.series if any(s in run for run in found)}


def sections(groups: Groups, key: str, colours: Colours) -> list[tuple[str, str, str]]:
    """Return a part of the page for every figure that some method declares and logged something for."""
    by_name: dict[str, list[MeasuredRuns]] = {}
    for method, results in groups.items():
        metrics = [(result.seed, result.metrics) for result in results]
        for name, own in {own.name: own for result in results for own in result.figures}.items():
            runs = [(seed, records) for seed, records in metrics if own.curves(records)]
            if runs:
                seeds, lines = zip(*runs, strict=True)
                by_name.setdefault(name, []).append(MeasuredRuns(method, colours[method], own, seeds, lines))
    taken = {colour % COLOURS for colour in colours.values()}
    free = [colour for colour in reversed(range(COLOURS)) if colour not in taken] or [*reversed(range(COLOURS))]
    return [(f"{key}measured-{name}", found[0].own.title, _drawn(found, key, free)) for name, found in by_name.items()]


def _drawn(found: Sequence[MeasuredRuns], key: str, free: Sequence[int]) -> str:
    """Draw a figure: those with marks for each method, in colours that no method has; the others all together."""
    marked = [_with_marks(one, one.own.marks, key, free) for one in found if one.own.marks is not None]
    plain = [one for one in found if one.own.marks is None]
    together = figure(f"{key}{plain[0].own.name}", "", _together(plain)) if plain else ""
    return together + (f'<div class="grid2">{"".join(marked)}</div>' if marked else "")


def _together(found: Sequence[MeasuredRuns]) -> str:
    """Draw a line for each method and series."""
    lines = []
    for one in found:
        drawn = one.curves()
        for k, (series, runs) in enumerate(drawn.items()):
            name = f"{one.method}: {series.name}" if len(drawn) > 1 else one.method
            lines.append(_line(name, runs, one.colour % COLOURS, dash=k > 0 or dashed(one.colour)))
    return curves(lines, "round", found[0].own.axis_label, found[0].boundaries)


def _with_marks(one: MeasuredRuns, marks: Marks, key: str, free: Sequence[int]) -> str:
    """Draw a method's series with the marks below them, and beside that the share of clients that logged each word."""
    own = one.colour % COLOURS
    lines = [_line(s.name, runs, own, dash=k > 0) for k, (s, runs) in enumerate(one.curves().items())]
    shares = [
        _line(word, [[(t, 100 * share) for t, share in marks.shares(records, word)] for records in one.runs], colour)
        for word, colour in zip(marks.words, cycle(free), strict=False)
    ]
    rugs = [
        Rug(f"{word.name} in most clients", [t for t, share in word.points if share > 50], word.colour)
        for word in shares
    ]
    name, bounds = f"{key}{one.own.name}", one.boundaries
    rates = curves(lines, "round", one.own.axis_label, bounds, rugs)
    drawn = figure(f"{name}-{one.method}", f"{one.caption}: {one.own.title}", rates)
    if not any(word.points for word in shares):
        return drawn
    words = curves(shares, "round", "clients (%)", bounds)
    return drawn + figure(f"{name}-{marks.key}-{one.method}", f"{one.caption}: {marks.title}", words)


def _line(name: str, runs: Sequence[Points], colour: int, dash: bool = False) -> Line:
    """Return the mean over runs as a curve, with a band where there are several."""
    at: dict[int, list[float]] = {}
    for points in runs:
        for t, value in points:
            at.setdefault(t, []).append(value)
    mean = [(float(t), fmean(at[t])) for t in sorted(at)]
    band = [(float(t), min(at[t]), max(at[t])) for t in sorted(at)] if len(runs) > 1 else []
    return Line(name, mean, colour, dots=len(mean) <= FEW, dash=dash, band=band)
