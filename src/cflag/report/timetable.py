"""A picture of a schedule: clients against rounds, coloured by task; as SVG, and as text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import pairwise

from cflag.data.schedules.base import NEVER, Plan
from cflag.report.svg import Axis, svg

COLOURS = 8
"""How many the page has; further tasks have the same, paler and paler."""
WIDTH, LEFT, RIGHT, ABOVE = 760, 74, 14, 26
MOST_ROWS, MOST_LINES = 60, 40
"""Clients up to which each has a row in the drawing, a line in a terminal; of more, equal neighbours share one."""
MOST_MARKS = 30
SYMBOLS = "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""What tasks are called in a terminal; those beyond are '#'."""


Stay = tuple[int, int, int]
"""From which round to before which one clients are in a task, and the task."""


@dataclass(frozen=True)
class Row:
    """Clients that have the same clock: their number or numbers, and which task they are in, from which round to which.

    Rounds are counted from 0, and an end is the first round that is not in it.
    """

    label: str
    stays: tuple[Stay, ...]
    end: int
    """Where they are gone for good, or the run ends."""

    def task(self, round_: int) -> int | None:
        """Return the task in a round; NEVER when absent, None once gone."""
        here = (task for begin, end, task in self.stays if begin <= round_ < end)
        return None if round_ >= self.end else next(here, NEVER)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield from where to where they are absent."""
        edge = 0
        for begin, end, _ in (*self.stays, (self.end, self.end, NEVER)):
            if begin > edge:
                yield edge, begin
            edge = end


def rows_of(plan: Plan, most: int) -> list[Row]:
    """Return a row for each client; where there are too many, neighbours with the same clock share one."""
    found: list[tuple[int, int, tuple[Stay, ...], int]] = []
    share = len(plan.first) > most
    for client, (first, last) in enumerate(zip(plan.first.tolist(), plan.last.tolist(), strict=True)):
        whole = [(b, e + 1, t) for t, (b, e) in enumerate(zip(first, last, strict=True)) if b != NEVER]
        stays = _without(whole, [(b, e + 1) for number, b, e in plan.breaks if number == client])
        end = plan.total if plan.gone is None else min(plan.total, int(plan.gone[client]))
        if share and found and found[-1][2:] == (stays, end):
            found[-1] = (found[-1][0], client, stays, end)
        else:
            found.append((client, client, stays, end))
    return [Row(str(a) if a == b else f"{a}–{b}", stays, end) for a, b, stays, end in found]


def _without(
    stays: Iterable[tuple[int, int, int]], breaks: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int, int], ...]:
    """Return stays in their order, cut where a client takes a break within one."""
    cut = []
    for begin, end, task in sorted(stays):
        for stop, again in sorted(pair for pair in breaks if begin < pair[0] < end):
            cut.append((begin, stop, task))
            begin = again
        cut.append((begin, end, task))
    return tuple(cut)


def drawing(plan: Plan, key: str = "") -> str:
    """Return the picture for a page whose style has the colours; `key` tells it from others on the page."""
    rows = rows_of(plan, MOST_ROWS)
    tall = next(
        (h for most, h in ((8, 30), (20, 22), (40, 15), (80, 10)) if len(rows) <= most), max(3, 800 // len(rows))
    )
    bottom = ABOVE + tall * len(rows)
    across = Axis(0, plan.total, LEFT, WIDTH - RIGHT)
    hatch = f"{key}hatch"
    parts = [
        f'<defs><pattern id="{hatch}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<line class="hatch" x1="0" x2="0" y1="0" y2="5"/></pattern></defs>'
    ]
    parts += _axis(plan, across, bottom)
    for k, row in enumerate(rows):
        parts += _row(row, across, ABOVE + k * tall, tall, (hatch, plan.first.shape[1]))
        if tall >= 10 or k % -(-12 // tall) == 0:
            parts.append(
                f'<text x="{LEFT - 8}" y="{ABOVE + (k + 0.5) * tall + 4:g}" text-anchor="end">{row.label}</text>'
            )
    legend, height = _legend(plan, rows, hatch, bottom + 50)
    return svg("".join([*parts, *legend]), WIDTH, height, "chart")


def _row(row: Row, across: Axis, top: float, tall: float, named: tuple[str, int]) -> list[str]:
    """Draw a client: hatched where it is absent, a block for each task, and below how many it has left."""
    hatch, tasks = named
    gap, thin = (2, max(3.0, tall * 0.16)) if tall >= 10 else (0.5, 0.25 * tall)
    block = f'y="{top + gap / 2:g}" height="{tall - thin - gap:g}"'
    parts = [f'<rect {_span(across, a, b)} {block} fill="url(#{hatch})"/>' for a, b in row.gaps()]
    for begin, end, task in row.stays:
        title = f"<title>client {row.label}: task {task + 1}, rounds {begin + 1} to {end}</title>"
        parts.append(f'<rect class="f{task % COLOURS}" {_span(across, begin, end)} {block}{_pale(task)}>{title}</rect>')
        middle = across.at((begin + end) / 2)
        if tall >= 15 and across.at(end) - across.at(begin) >= 16:
            at = f'x="{middle:.1f}" y="{top + (tall - thin) / 2 + 4:g}"'
            look = "value" if _pale(task) else "value on"
            parts.append(f'<text class="{look}" {at} text-anchor="middle">{task + 1}</text>')
    left = [*{task: end for _, end, task in row.stays}.values(), row.end]
    for count, (begin, end) in enumerate(pairwise(left), 1):
        if end > begin:
            dark = f'style="opacity:{0.15 + 0.75 * count / tasks:.2f}"'
            at = f'y="{top + tall - thin - gap / 2:g}" height="{thin:g}" {dark}'
            title = f"<title>client {row.label}: {count} left</title>"
            parts.append(f'<rect class="ink" {_span(across, begin, end)} {at}>{title}</rect>')
    return parts


def _span(across: Axis, begin: float, end: float) -> str:
    return f'x="{across.at(begin):.1f}" width="{across.at(end) - across.at(begin):.1f}"'


def _pale(task: int) -> str:
    """Return how a task beyond the page's colours looks."""
    return f' style="opacity:{max(0.25, 1 - 0.35 * (task // COLOURS)):g}"' if task >= COLOURS else ""


def _axis(plan: Plan, across: Axis, bottom: float) -> list[str]:
    """Draw the numbers of rounds below, and above a mark wherever someone leaves a task."""
    marks = sorted(plan.ends)
    parts = []
    for round_ in marks:
        x = f"{across.at(round_ + 1):.1f}"
        title = f"<title>after round {round_ + 1}: all tasks are tested</title>"
        parts.append(f'<path class="ink" d="M{x} {ABOVE - 3} l-3.5 -7 h7 z">{title}</path>')
        if len(marks) <= MOST_MARKS:
            parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{ABOVE}" y2="{bottom:g}"/>')
    for value in Axis(1, plan.total, 0, 1).ticks(10, least=1.0):
        at = f'x="{across.at(value - 0.5):.1f}" y="{bottom + 16:g}"'
        parts.append(f'<text {at} text-anchor="middle">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:g}" y="{bottom + 33:g}" text-anchor="middle">round</text>')
    half = (ABOVE + bottom) / 2
    parts.append(f'<text x="14" y="{half:g}" text-anchor="middle" transform="rotate(-90 14 {half:g})">client</text>')
    return parts


def _legend(plan: Plan, rows: Sequence[Row], hatch: str, top: float) -> tuple[list[str], float]:
    """Return what the colours mean, and where it ends."""
    tasks = plan.first.shape[1]
    entries = [(f'class="f{t % COLOURS}"{_pale(t)}', f"task {t + 1}") for t in range(min(tasks, 2 * COLOURS))]
    if tasks > 2 * COLOURS:
        entries.append(('class="none"', "… and so on, paler"))
    if any(True for row in rows for _ in row.gaps()):
        entries.append((f'fill="url(#{hatch})"', "absent"))
    entries.append(
        ('class="ink" style="opacity:0.5"', "bar below: tasks left, which a memory keeps; stronger with each")
    )
    entries.append(("", "someone leaves a task: all are tested"))
    if any(row.end < plan.total for row in rows):
        entries.append(('class="none"', "(empty: gone for good)"))
    parts, x, y = [], float(LEFT), top
    for look, name in entries:
        wide = 28 + 6.8 * len(name)
        if x + wide > WIDTH:
            x, y = float(LEFT), y + 20
        square = f'<rect {look} x="{x:.1f}" y="{y:g}" width="12" height="12"/>'
        arrow = f'<path class="ink" d="M{x + 6:.1f} {y + 10:g} l-3.5 -7 h7 z"/>'
        parts.append(f'{square if look else arrow}<text x="{x + 17:.1f}" y="{y + 10:g}">{escape(name)}</text>')
        x += wide
    return parts, y + 24


def standalone(plan: Plan) -> str:
    """Return the picture as a file of its own, with the page's colours in it, for light and dark."""
    css = (files(__package__) / "page.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w+);", block)) for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    )
    rules = "\n".join(line for line in css.splitlines() if line.startswith(("svg ", ".f")))
    day, night = _coloured(rules, light), _coloured(rules, light | dark)
    style = f"<style>{day}\n@media (prefers-color-scheme: dark) {{\n{night}\n}}</style>"
    inner = drawing(plan)
    start = inner.index(">") + 1
    return f'{inner[:start]}{style}<rect class="paper" width="100%" height="100%"/>{inner[start:]}\n'


def _coloured(rules: str, colours: Mapping[str, str]) -> str:
    """Put colours in the place of their names, which not every program that draws understands."""
    return re.sub(r"var\(--(\w+)\)", lambda found: colours[found[1]], rules)


def as_text(plan: Plan, width: int = 80) -> list[str]:
    """Return the picture as lines: one for each client, a digit or letter for each task, '.' where it is absent."""
    every = rows_of(plan, MOST_LINES)
    rows = every
    if len(every) > MOST_LINES:
        rows = [every[round(k * (len(every) - 1) / (MOST_LINES - 1))] for k in range(MOST_LINES)]
    margin = max(len("client"), *(len(row.label) for row in rows)) + 2
    room = width - margin
    cells = plan.total * min(8, room // plan.total) if plan.total <= room else room
    starts = [c * plan.total / cells for c in range(cells + 1)]
    lines = [f"{'client':<{margin}}{_numbers(plan.total, cells)}"]
    for row in rows:
        shown = "".join(_symbol(row.task(int((a + b) / 2))) for a, b in pairwise(starts))
        lines.append(f"{row.label:<{margin}}{shown.rstrip()}")
    marks = [" "] * cells
    for round_ in plan.ends:
        marks[max(0, int((round_ + 1) * cells / plan.total) - 1)] = "^"
    lines.append(f"{'':<{margin}}{''.join(marks).rstrip()}")
    if len(rows) < len(every):
        lines.append(f"{len(rows)} of {len(every)} different neighbours are shown")
    return lines


def _symbol(task: int | None) -> str:
    if task is None or task == NEVER:
        return " " if task is None else "."
    return SYMBOLS[task] if task < len(SYMBOLS) else "#"


def _numbers(total: int, cells: int) -> str:
    """Return the numbers of the first and some other rounds, each where its round begins."""
    line = "1"
    for value in Axis(1, total, 0, 1).ticks(max(1, cells // 9), least=1.0):
        at, number = int((value - 1) * cells / total), f"{value:g}"
        if len(line) < at <= cells - len(number):
            line = f"{line:<{at}}{number}"
    return line
