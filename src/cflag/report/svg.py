"""Drawings for the page: plain SVG whose colours are the page's, so that they follow light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 40
Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A curve: its name, its points, and which of the page's colours it has."""

    name: str
    points: Sequence[Point]
    colour: int
    dots: bool = True


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high` over pixels `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return where a value is."""
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def ticks(self, most: int = 6, least: float = 0.0) -> list[float]:
        """Return round numbers along the axis, at least so far apart."""
        step = max(least, _round_step((self.high - self.low or 1.0) / most))
        first = ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, floor(self.high / step + 1e-9) + 1)]


def _round_step(rough: float) -> float:
    power = 10.0 ** floor(log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))


def curves(lines: Sequence[Line], x: str, y: str, marks: Sequence[tuple[float, str]] = ()) -> str:
    """Draw curves over one pair of axes; `marks` are vertical lines with a name, such as where a task begins."""
    points = [point for line in lines for point in line.points]
    if not points:
        return '<p class="none">nothing to draw: these runs did not measure it</p>'
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    low, high = min(ys), max(ys)
    room = 0.06 * (high - low or abs(high) or 1.0)
    across = Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    up = Axis(low - room, high + room, HEIGHT - BOTTOM, TOP)
    parts = [*_frame(across, up, x, y)]
    for at, name in marks:
        parts.append(
            f'<line class="mark" x1="{across.at(at):.1f}" x2="{across.at(at):.1f}" y1="{TOP}" y2="{up.start}"/>'
        )
        parts.append(f'<text class="small" x="{across.at(at) + 3:.1f}" y="{TOP + 9}">{escape(name)}</text>')
    for line in lines:
        if not line.points:
            continue
        path = " ".join(f"{across.at(a):.1f},{up.at(b):.1f}" for a, b in line.points)
        parts.append(f'<polyline class="c{line.colour}" points="{path}"><title>{escape(line.name)}</title></polyline>')
        for a, b in line.points if line.dots else ():
            where = f'cx="{across.at(a):.1f}" cy="{up.at(b):.1f}"'
            parts.append(
                f'<circle class="f{line.colour}" r="3" {where}><title>{escape(line.name)}: {b:.4g}</title></circle>'
            )
    legend = "".join(f'<span><i class="b{line.colour}"></i>{escape(line.name)}</span>' for line in lines if line.points)
    return f'{_svg("".join(parts), WIDTH, HEIGHT)}<p class="legend">{legend}</p>'


def _frame(across: Axis, up: Axis, x: str, y: str) -> list[str]:
    parts = []
    for value in up.ticks():
        at = up.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in across.ticks(8, least=1.0):
        parts.append(
            f'<text x="{across.at(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x)}</text>')
    half = (TOP + HEIGHT - BOTTOM) / 2
    turn = f'transform="rotate(-90 14 {half})"'
    parts.append(f'<text x="14" y="{half}" text-anchor="middle" {turn}>{escape(y)}</text>')
    return parts


def heat(
    rows: Sequence[Sequence[float | None]],
    x: str,
    y: str,
    unit: str = "%",
    top: float = 1.0,
    first: tuple[int, int] = (1, 1),
) -> str:
    """Draw a matrix as coloured squares with their values, from 0 to `top`; None is left empty.

    `first` is what rows and columns are numbered from.
    """
    cell, left, above = 44, 64, 26
    wide, tall = left + cell * max(len(row) for row in rows) + 8, above + cell * len(rows) + 34
    parts = []
    for i, row in enumerate(rows):
        parts.append(f'<text x="{left - 8}" y="{above + cell * i + 27}" text-anchor="end">{i + first[0]}</text>')
        for j, value in enumerate(row):
            if i == 0:
                parts.append(
                    f'<text x="{left + cell * j + 21}" y="{above - 8}" text-anchor="middle">{j + first[1]}</text>'
                )
            if value is None:
                continue
            share = min(1.0, max(0.0, value / top)) if top else 0.0
            where = f'x="{left + cell * j}" y="{above + cell * i}" width="{cell - 2}" height="{cell - 2}"'
            shown = f"{100 * value:.0f}" if unit == "%" else f"{value:g}"
            parts.append(f'<rect class="heat" rx="4" {where} style="opacity:{0.06 + 0.94 * share:.2f}"/>')
            dark = " on" if share > 0.55 else ""
            parts.append(f'<text class="value{dark}" x="{left + cell * j + 21}" y="{above + cell * i + 26}" '
                         f'text-anchor="middle">{shown}</text>')  # fmt: skip
    parts.append(f'<text x="{left}" y="{tall - 8}">{escape(x)}</text>')
    parts.append(
        f'<text x="14" y="{tall / 2}" text-anchor="middle" transform="rotate(-90 14 {tall / 2})">{escape(y)}</text>'
    )
    return _svg("".join(parts), wide, tall, fixed=True)


def _svg(inner: str, wide: float, tall: float, fixed: bool = False) -> str:
    style = f' style="max-width:{wide:.0f}px"' if fixed else ""
    return (
        f'<svg viewBox="0 0 {wide:.0f} {tall:.0f}" role="img" xmlns="http://www.w3.org/2000/svg"{style}>{inner}</svg>'
    )
