"""Points instead of lines: one quantity against another, and the spread of many values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, quantiles

from cflag.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LETTER,
    RIGHT,
    ROW,
    TOP,
    WIDTH,
    Axis,
    Point,
    frame,
    legend,
    reach,
    svg,
)

MOST_NAMED = 9
"""Methods whose names find room beside their dots; more are in a legend."""
MOST_DOTS = 400
"""Up to how many values of a strip have a dot each; of more there is the box alone."""
FEW_TO_BOX = 5
"""From how many values on there is a box."""
STRIP, MIDDLE = 58, 38
"""How high a strip is, with its name above; and where the middle of what is below that is."""


@dataclass(frozen=True)
class Dots:
    """What one method has: its runs' points."""

    name: str
    colour: int
    points: Sequence[Point]
    dash: bool = False
    """Whether its lines are dashed elsewhere: here its dot is hollow."""

    @property
    def mean(self) -> Point:
        """Where its name stands."""
        return fmean(x for x, _ in self.points), fmean(y for _, y in self.points)


def scatter(groups: Sequence[Dots], x: str, y: str) -> str:
    """Draw every run as a pale dot and every method's mean as a strong one with its name, or above a legend of many."""
    points = [point for group in groups for point in group.points]
    across = Axis(  # costs are seen from 0 on
        *reach([0.0, *(a for a, _ in points)]),
        LEFT,
        WIDTH - RIGHT,
    )
    up = Axis(*reach([b for _, b in points]), HEIGHT - BOTTOM, TOP)
    parts = frame(across, up, x, y, least=0.0)
    for group in groups:
        if len(group.points) > 1:
            parts += [_dot(across.at(a), up.at(b), f'class="f{group.colour} pale" r="4"') for a, b in group.points]
    means = [(across.at(a), up.at(b)) for a, b in (group.mean for group in groups)]
    taken = [(at - 6.0, at + 6.0, high) for at, high in means]
    for group in sorted(groups, key=lambda g: -g.mean[1]):
        a, b = group.mean
        at, high = across.at(a), up.at(b)
        title = f"<title>{escape(group.name)}: {a:.4g}, {b:.4g}</title>"
        look = f'class="c{group.colour} hollow" r="5"' if group.dash else f'class="f{group.colour}" r="6"'
        parts.append(_dot(at, high, look, title))
        if len(groups) <= MOST_NAMED:
            parts.append(_name(group, at, high, taken))
    named = [(g.name, f"b{g.colour}{' dash' * g.dash}", False) for g in groups] if len(groups) > MOST_NAMED else []
    return svg("".join(parts), WIDTH, HEIGHT, "chart") + legend(named)


def _dot(x: float, y: float, look: str, inner: str = "") -> str:
    return f'<circle {look} cx="{x:.1f}" cy="{y:.1f}">{inner}</circle>'


def _name(group: Dots, x: float, y: float, taken: list[tuple[float, float, float]]) -> str:
    """Return the name beside its dot, on the side that has room; higher or lower where another name or dot is."""
    wide = LETTER * len(group.name)
    left = x + 10 + wide > WIDTH
    begin = x - 10 - wide if left else x + 10
    near = sorted(range(-len(taken) * ROW, len(taken) * ROW + 1, 2), key=abs)
    y = next(y + by for by in near if y + by >= ROW and _free(taken, begin, begin + wide, y + by))
    taken.append((begin, begin + wide, y))
    side = f'x="{x - 10:.1f}" text-anchor="end"' if left else f'x="{x + 10:.1f}"'
    return f'<text class="name f{group.colour}" {side} y="{y + 4:.1f}">{escape(group.name)}</text>'


def _free(taken: Sequence[tuple[float, float, float]], begin: float, end: float, y: float) -> bool:
    return not any(begin < stop and end > start and abs(y - other) < ROW for start, stop, other in taken)


@dataclass(frozen=True)
class Strip:
    """Many values of one method."""

    name: str
    colour: int
    values: Sequence[float]


def strips(rows: Sequence[Strip], x: str) -> str:
    """Draw a row for each: a dot for each value, and a box over the middle half with a line at the median."""
    every = [value for row in rows for value in row.values]
    low, high = reach(every)
    begins = "" if low <= 0 <= high else f"; the axis begins at {low:.3g}, not at 0"
    tall = 10 + STRIP * len(rows) + BOTTOM
    across = Axis(low, high, RIGHT, WIDTH - RIGHT)
    parts = []
    for value in across.ticks(8):
        at = f"{across.at(value):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="10" y2="{tall - BOTTOM}"/>')
        parts.append(f'<text x="{at}" y="{tall - BOTTOM + 20}" text-anchor="middle">{value:g}</text>')
    for k, row in enumerate(rows):
        parts += _strip(row, across, 10 + STRIP * k + MIDDLE)
    parts.append(f'<text x="{WIDTH / 2}" y="{tall - 8}" text-anchor="middle">{escape(x)}{begins}</text>')
    return svg("".join(parts), WIDTH, tall, "chart")


def _strip(row: Strip, across: Axis, middle: float) -> list[str]:
    name = f'<text class="name f{row.colour}" x="4" y="{middle - MIDDLE + 16:.1f}">{escape(row.name)}</text>'
    values = sorted(row.values)
    parts = [name, *_box(row, values, across, middle)]
    if len(values) <= MOST_DOTS:
        look = f'class="f{row.colour} pale" r="3"'
        parts += [_dot(across.at(v), middle + 5 * (k % 5 - 2), look) for k, v in enumerate(values)]
    return parts


def _box(row: Strip, values: Sequence[float], across: Axis, middle: float) -> list[str]:
    """Return the box of a row, and a line from the least value to the greatest."""
    if len(values) < FEW_TO_BOX:
        return []
    first, median, third = quantiles(values, n=4, method="inclusive")
    at = [across.at(v) for v in (values[0], first, median, third, values[-1])]
    told = ", ".join(f"{name} {v:.4g}" for name, v in (("least", values[0]), ("first quarter", first),
                     ("median", median), ("third quarter", third), ("greatest", values[-1])))  # fmt: skip
    tall = f'y1="{middle - 14:g}" y2="{middle + 14:g}"'
    return [
        f'<line class="c{row.colour}" x1="{at[0]:.1f}" x2="{at[4]:.1f}" y1="{middle:g}" y2="{middle:g}"/>',
        f'<rect class="f{row.colour} box" x="{at[1]:.1f}" y="{middle - 14:g}" width="{at[3] - at[1]:.1f}" height="28">'
        f"<title>{escape(row.name)}, {len(values)} values: {told}</title></rect>",
        f'<line class="c{row.colour} thick" x1="{at[2]:.1f}" x2="{at[2]:.1f}" {tall}/>',
    ]
