"""Drawings for the page: plain SVG whose colours are the page's, so that they follow light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from cflag.problems.score import Score

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 46, 56
FEW_LINES, SHORT_NAME = 4, 16
"""Up to how many lines, with names of how many letters, have their names at their ends instead of a legend."""
LETTER, ROW = 13, 20
"""The width of a letter and the height of a row, on a phone, where letters are the largest."""
END_LETTER = 7
"""The width of a letter of a name at a line's end: only a wide chart has names there, and its letters are small."""
Point = tuple[float, float]
Rows = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Line:
    """A curve: its name, its points, and which of the page's colours it has."""

    name: str
    points: Sequence[Point]
    colour: int
    dots: bool = True
    dash: bool = False
    """Whether it is dashed: another line of the same colour is not."""
    band: Sequence[tuple[float, float, float]] = ()
    """From where to where it may be, at each x."""


@dataclass(frozen=True)
class Rug:
    """Moments that are marked along the x axis, such as rounds in which something happened."""

    name: str
    at: Sequence[float]
    colour: int


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


def curves(
    lines: Sequence[Line],
    x: str,
    y: str,
    marks: Sequence[tuple[float, str]] = (),
    rugs: Sequence[Rug] = (),
    ends: bool = True,
) -> str:
    """Draw curves over one pair of axes; `marks` are vertical lines with a name, such as where a task begins.

    Few lines have their names at their ends, unless that is not wanted (`ends`). Where the chart is narrow, the page
    cuts these off and shows a legend instead: lines and names always fill the width.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return '<p class="none">nothing to draw: these runs did not measure it</p>'
    direct = ends and _ends_named(lines)
    right = RIGHT + (END_LETTER * max(len(line.name) for line in lines if line.points) if direct else 0)
    xs = [p[0] for p in points]
    ys = [p[1] for p in points] + [edge for line in lines for _, *edges in line.band for edge in edges]
    across = Axis(min(xs), max(xs), LEFT, WIDTH - right)
    up = Axis(*reach(ys, len(rugs)), HEIGHT - BOTTOM, TOP)
    parts = [*frame(across, up, x, y), *_marks(across, up, marks)]
    for line in lines:
        parts += _line(line, across, up)
    for k, rug in enumerate(rugs):
        parts += _rug(rug, across, up.start - 7 * (len(rugs) - k))
    kind, style = "chart", ""
    if direct:
        parts += _names_at_ends(lines, across, up)
        kind, style = "chart ends", f"--narrow:{across.end + RIGHT:g}/{HEIGHT}"
    named = [(line.name, f"b{line.colour}{' dash' * line.dash}", direct) for line in lines if line.points]
    named += [(rug.name, f"b{rug.colour}", False) for rug in rugs if rug.at]
    return svg("".join(parts), WIDTH, HEIGHT, kind, style) + legend(named)


def legend(names: Sequence[tuple[str, str, bool]]) -> str:
    """Return names with their colours; those that lines have at their ends are for narrow charts."""
    kind = ' class="narrow"'
    shown = "".join(f'<span{kind * narrow}><i class="{look}"></i>{escape(name)}</span>' for name, look, narrow in names)
    return f'<p class="legend">{shown}</p>' if names else ""


def reach(values: Sequence[float], rugs: int = 0) -> tuple[float, float]:
    """Return from where to where an axis goes: from 0 unless that would hide the differences, with some room."""
    low, high = min(values), max(values)
    if 0 <= low < 0.4 * high:
        low = 0.0
    room = 0.06 * (high - low or abs(high) or 1.0)
    return (low if low == 0 else low - room) - room * rugs, high + room


def _ends_named(lines: Sequence[Line]) -> bool:
    """Whether lines are few, have short names, and differ in colour: of two with one colour a legend shows the dash."""
    drawn = [line for line in lines if line.points]
    few = len(drawn) <= FEW_LINES and len({line.colour for line in drawn}) == len(drawn)
    return few and all(len(line.name) <= SHORT_NAME for line in drawn)


def _names_at_ends(lines: Sequence[Line], across: Axis, up: Axis) -> list[str]:
    """Return each line's name right of its last point; names that would lie on each other are moved apart."""
    ends = sorted((line for line in lines if line.points), key=lambda line: -line.points[-1][1])
    places: list[float] = []
    for line in ends:
        places.append(max(up.at(line.points[-1][1]), places[-1] + ROW if places else 0.0))
    over = max(0.0, places[-1] - up.start)  # the lowest would be below the axis: all go up
    x = f'x="{across.end + 8:.1f}"'
    return [
        f'<text class="name f{line.colour}" {x} y="{place - over + 4:.1f}">{escape(line.name)}</text>'
        for line, place in zip(ends, places, strict=True)
    ]


def _marks(across: Axis, up: Axis, marks: Sequence[tuple[float, str]]) -> list[str]:
    """Draw vertical lines; those left of the axis stand at its beginning, and names that would touch are left out."""
    parts, free = [], 0.0
    for value, name in marks:
        at = across.at(max(value, across.low))
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{up.start}"/>')
        if at >= free:
            parts.append(f'<text class="small" x="{at + 3:.1f}" y="{TOP - 4}">{escape(name)}</text>')
            free = at + LETTER * (len(name) + 1)
    return parts


def _line(line: Line, across: Axis, up: Axis) -> list[str]:
    if not line.points:
        return []
    parts = []
    if line.band:
        there = [f"{across.at(a):.1f},{up.at(b):.1f}" for a, b, _ in line.band]
        back = [f"{across.at(a):.1f},{up.at(c):.1f}" for a, _, c in reversed(line.band)]
        parts.append(f'<polygon class="band f{line.colour}" points="{" ".join(there + back)}"/>')
    path = " ".join(f"{across.at(a):.1f},{up.at(b):.1f}" for a, b in line.points)
    look = f"c{line.colour} dash" if line.dash else f"c{line.colour}"
    parts.append(f'<polyline class="{look}" points="{path}"><title>{escape(line.name)}</title></polyline>')
    for a, b in line.points if line.dots else ():
        where = f'cx="{across.at(a):.1f}" cy="{up.at(b):.1f}"'
        title = f"<title>{escape(line.name)}: {b:.4g}</title>"
        parts.append(f'<circle class="f{line.colour}" r="3" {where}>{title}</circle>')
    return parts


def _rug(rug: Rug, across: Axis, y: float) -> list[str]:
    width = max(1.5, across.at(across.low + 1) - across.start - 0.5)
    return [
        f'<rect class="f{rug.colour}" x="{across.at(t) - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="5">'
        f"<title>{escape(rug.name)}: {t:g}</title></rect>"
        for t in rug.at
    ]


def frame(across: Axis, up: Axis, x: str, y: str, least: float = 1.0) -> list[str]:
    """Return axes with their numbers, along x at least so far apart, and names; a y axis without 0 says so."""
    parts = []
    for value in up.ticks():
        at = up.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{across.end:g}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in across.ticks(8, least=least):
        at, edge = across.at(value), across.end + RIGHT
        outside = at + LETTER * len(f"{value:g}") / 2 > edge  # on a phone, where letters are largest
        where = f'x="{edge:g}" text-anchor="end"' if outside else f'x="{at:.1f}" text-anchor="middle"'
        parts.append(f'<text y="{HEIGHT - BOTTOM + 20}" {where}>{value:g}</text>')
    middle = (LEFT + across.end) / 2
    parts.append(f'<text x="{middle:g}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>')
    begins = "" if up.low <= 0 <= up.high else f"; the axis begins at {up.low:.3g}, not at 0"
    parts.append(f'<text x="4" y="18">{escape(y)}{begins}</text>')
    return parts


@dataclass(frozen=True)
class Shade:
    """How dark the square of a value is, from 0 to 1 and given all values, and what stands in it."""

    share: Callable[[float, Rows], float]
    text: Callable[[float], str]

    @classmethod
    def of(cls, score: Score) -> Shade:
        """The better the darker; shares as whole percent."""
        digits = max(0, score.digits - 1)
        return cls(lambda v, rows: score.goodness(v, score.range_of(rows)), lambda v: f"{score.factor * v:.{digits}f}")

    @classmethod
    def counts(cls, rows: Rows) -> Shade:
        """The more the darker."""
        top = max((value for row in rows for value in row if value is not None), default=0.0)
        return cls(lambda v, _: v / top if top else 0.0, lambda v: f"{v:g}")


def heat(
    rows: Rows,
    x: str,
    y: str,
    shade: Shade,
    first: tuple[int | Sequence[int], int | Sequence[int]] = (1, 1),
    faint: Callable[[int, int], bool] = lambda i, j: False,
    note: Callable[[int, int], str] = lambda i, j: "",
    colour: int = 0,
) -> str:
    """Draw a matrix as coloured squares with their values; None is left empty.

    `first` is what rows and columns are numbered from, or their own numbers. Squares get smaller where there are
    many columns, and then have their values only when pointed at; `note` is said there, too.
    """
    count = max(len(row) for row in rows)
    cell = 44 if count <= 12 else 30 if count <= 24 else 12
    left, above, values = 64, 26, cell >= 30
    wide, tall = left + cell * count + 8, above + cell * len(rows) + 34
    sides, names = (
        f if isinstance(f, Sequence) else range(f, f + n) for f, n in zip(first, (len(rows), count), strict=True)
    )
    parts = [
        f'<text x="{left + cell * (j + 0.5) - 1:g}" y="{above - 8}" text-anchor="middle">{name}</text>'
        for j, name in enumerate(names)
        if values or j % 10 == 0
    ]
    for i, row in enumerate(rows):
        middle = above + cell * (i + 0.5) + 3
        parts.append(f'<text x="{left - 8}" y="{middle:g}" text-anchor="end">{sides[i]}</text>')
        for j, value in enumerate(row):
            if value is None:
                continue
            share = shade.share(value, rows)
            where = f'x="{left + cell * j}" y="{above + cell * i}" width="{cell - 2}" height="{cell - 2}"'
            shown = shade.text(value)
            look = (0.06 + 0.94 * share) * (0.3 if faint(i, j) else 1.0)
            title = f"<title>{escape(y)} {sides[i]}, {names[j]}: {shown}{note(i, j)}</title>"
            parts.append(f'<rect class="f{colour}" rx="{cell // 11}" {where} style="opacity:{look:.2f}">{title}</rect>')
            if values:
                kind = "value on" if look > 0.55 else "value faint" if faint(i, j) else "value"
                at = f'x="{left + cell * (j + 0.5) - 1:g}" y="{middle:g}"'
                parts.append(f'<text class="{kind}" {at} text-anchor="middle">{shown}</text>')
    parts.append(f'<text x="{left}" y="{tall - 8}">{escape(x)}</text>')
    turn = f'transform="rotate(-90 14 {tall / 2})"'
    parts.append(f'<text x="14" y="{tall / 2}" text-anchor="middle" {turn}>{escape(y)}</text>')
    return f'<div class="wide">{svg("".join(parts), wide, tall, "matrix", f"width:{wide}px")}</div>'


def svg(inner: str, wide: float, tall: float, kind: str, style: str = "") -> str:
    """Return a drawing of a size, from what is in it."""
    look = f' style="{style}"' if style else ""
    box = f'viewBox="0 0 {wide:.0f} {tall:.0f}" preserveAspectRatio="xMinYMin slice"'  # a lower box cuts the right off
    return f'<svg class="{kind}" {box} role="img" xmlns="http://www.w3.org/2000/svg"{look}>{inner}</svg>'
