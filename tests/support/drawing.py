"""A layered graph as an SVG: rows of boxes from the bottom to the top, arrows from a box to what is below it.

All lines to one box that come from further up join in one trunk, which bends around the boxes of the rows between.
Every number follows from the graph alone, so the same graph is the same file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import fmean

WIDEST, MARGIN, ROW, BOX = 900, 30, 60, 28
HEADING = 44
LETTER = 7.9
"""The width of a letter of a name, generously."""
GAP = 28
"""The least distance between two boxes of a row, or a box and a line."""
SORTING, PLACING = 60, 600

Node = tuple[str, int]
"""A box, or the trunk to it, with its row; row 0 is the bottom."""

STYLE = """\
  .sheet { fill: #fbfaf7; stroke: #d9d5cb }
  .band { fill: #f1eee6 }
  .box { fill: #ffffff; stroke: #3d5a80; stroke-width: 1.2 }
  .name { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #1d2b3a; text-anchor: middle }
  .note { font: 13px system-ui, Helvetica, Arial, sans-serif; fill: #55606b }
  .line { fill: none; stroke: #7d8b99; stroke-width: 1.3; stroke-linecap: round }
  .head { fill: #7d8b99 }"""


@dataclass
class Layout:
    """Which nodes are in each row, in what order, and where."""

    rows: list[list[Node]]
    below: dict[Node, list[Node]]
    above: dict[Node, list[Node]]
    boxes: set[Node]
    x: dict[Node, float]

    @classmethod
    def of(cls, layers: Sequence[Sequence[str]], edges: Iterable[tuple[str, str]]) -> Layout:
        """Lay a graph out."""
        level = {name: number for number, layer in enumerate(layers) for name in layer}
        segments = {
            ((upper if row == level[upper] else lower, row), (lower, row - 1))
            for upper, lower in edges
            for row in range(level[upper], level[lower], -1)
        }
        boxes = set(level.items())
        nodes = [(name, row) for row, layer in enumerate(layers) for name in layer]
        nodes += sorted({end for segment in segments for end in segment} - boxes)
        rows = [[node for node in nodes if node[1] == row] for row in range(len(layers))]
        below = {node: sorted(b for a, b in segments if a == node) for node in nodes}
        above = {node: sorted(a for a, b in segments if b == node) for node in nodes}
        layout = cls(rows, below, above, boxes, {})
        layout._sort()
        layout._place()
        return layout

    def width(self, node: Node) -> float:
        return len(node[0]) * LETTER + 20 if node in self.boxes else 0.0

    def _sort(self) -> None:
        """Bring nodes near what they are tied to, row by row, up and down; keep the order with the fewest crossings."""
        best, fewest = [list(row) for row in self.rows], self.crossings()
        for sweep in range(SORTING):
            upward = sweep % 2 == 0
            ties = self.below if upward else self.above
            for row in self.rows if upward else self.rows[::-1]:
                place = self._relative()
                row.sort(key=lambda node: (fmean(place[n] for n in ties[node]) if ties[node] else place[node], node))
            self._swap()
            if (count := self.crossings()) < fewest:
                best, fewest = [list(row) for row in self.rows], count
        self.rows = best

    def _relative(self) -> dict[Node, float]:
        return {node: (i + 0.5) / len(row) for row in self.rows for i, node in enumerate(row)}

    def _swap(self) -> None:
        """Swap neighbours as long as that undoes crossings."""
        at = {node: i for row in self.rows for i, node in enumerate(row)}
        swapped = True
        while swapped:
            swapped = False
            for row in self.rows:
                for i, (left, right) in enumerate(pairwise(row)):
                    ends = [
                        (at[a], at[b]) for ties in (self.below, self.above) for a in ties[left] for b in ties[right]
                    ]
                    if sum(a > b for a, b in ends) > sum(a < b for a, b in ends):
                        row[i : i + 2] = right, left
                        at[left], at[right] = i + 1, i
                        swapped = True
                        break

    def crossings(self) -> int:
        """Count the pairs of lines that cross."""
        at = {node: i for row in self.rows for i, node in enumerate(row)}
        count = 0
        for row in self.rows:
            lines = [(at[node], at[end]) for node in row for end in self.below[node]]
            count += sum(a < c and b > d for a, b in lines for c, d in lines)
        return count

    def _place(self) -> None:
        """Move nodes over the middle of what they are tied to, as far as the order and the gaps let them."""
        for row in self.rows:
            self._fit(row, [[WIDEST * (i + 0.5) / len(row)] for i in range(len(row))])
        for sweep in range(PLACING):
            for row in self.rows if sweep % 2 else self.rows[::-1]:
                self._fit(row, [self._pulls(node) or [self.x[node]] for node in row])
        left = min(x - self.width(node) / 2 for node, x in self.x.items()) - MARGIN
        self.x = {node: x - left for node, x in self.x.items()}

    def _pulls(self, node: Node) -> list[float]:
        """Return the places that a node is drawn to; a trunk is drawn hardest to where it goes on, to be straight."""
        ends = self.below[node] + self.above[node]
        return [self.x[end] for end in ends for _ in range((1, 3, 20)[sum(n not in self.boxes for n in (node, end))])]

    def _fit(self, row: Sequence[Node], pulls: Sequence[list[float]]) -> None:
        """Place a row's nodes as near to where they are drawn as their widths allow: least squares in a fixed order."""
        offsets = [0.0]
        for left, right in pairwise(row):
            offsets.append(offsets[-1] + (self.width(left) + self.width(right)) / 2 + GAP)
        pools: list[tuple[int, list[float]]] = []
        for places, offset in zip(pulls, offsets, strict=True):
            pools.append((1, [place - offset for place in places]))
            while len(pools) > 1 and fmean(pools[-2][1]) > fmean(pools[-1][1]):
                (some, before), (more, after) = pools[-2:]
                pools[-2:] = [(some + more, before + after)]
        shifts = [fmean(wanted) for nodes, wanted in pools for _ in range(nodes)]
        first = MARGIN + self.width(row[0]) / 2
        last = WIDEST - MARGIN - self.width(row[-1]) / 2 - offsets[-1]
        for node, shift, offset in zip(row, shifts, offsets, strict=True):
            self.x[node] = min(max(shift, first), last) + offset


def draw(layers: Sequence[Sequence[str]], edges: Iterable[tuple[str, str]]) -> str:
    """Return the SVG of a graph whose edges all point from a higher layer to a lower one."""
    layout = Layout.of(layers, edges)
    width = round(max(x + layout.width(node) / 2 for node, x in layout.x.items())) + MARGIN
    height = HEADING + ROW * len(layers) + MARGIN // 2

    def middle(row: int) -> float:
        return HEADING + ROW * (len(layers) - row - 0.5)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">']
    out += ["<title>The rooms of the source tree</title>", "<style>", STYLE, "</style>"]
    out.append(f'<rect class="sheet" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>')
    out.append(
        f'<text class="note" x="{MARGIN}" y="28">An arrow means “imports”; '
        "arrows that follow from others are left out.</text>"
    )
    for row in range(0, len(layers), 2):
        out.append(f'<rect class="band" x="1" y="{middle(row) - ROW / 2:g}" width="{width - 2}" height="{ROW}"/>')
    nodes = [node for nodes in layout.rows[::-1] for node in nodes]
    out += [line for node in nodes for line in _lines(layout, node, middle(node[1]))]
    out += [part for node in nodes if node in layout.boxes for part in _box(layout, node, middle(node[1]))]
    return "\n".join([*out, "</svg>", ""])


def _lines(layout: Layout, node: Node, y: float) -> list[str]:
    """Return the lines that leave a node; they meet at the middle of the next one's top."""
    x, out = layout.x[node], []
    ends = sorted(layout.below[node], key=lambda end: layout.x[end])
    step = min(16.0, (layout.width(node) - 16) / len(ends)) if node in layout.boxes and ends else 0.0
    for i, end in enumerate(ends):
        start, top, bottom = x + step * (i - (len(ends) - 1) / 2), y + BOX / 2, y + ROW - BOX / 2
        tip = bottom - 5 if end in layout.boxes else bottom
        half = (top + tip) / 2
        path = f"M{start:.1f} {top:g}C{start:.1f} {half:g} {layout.x[end]:.1f} {half:g} {layout.x[end]:.1f} {tip:g}"
        out.append(f'<path class="line" d="{path}{"" if end in layout.boxes else f"v{BOX}"}"/>')
    return out


def _box(layout: Layout, node: Node, y: float) -> list[str]:
    x, width, name = layout.x[node], layout.width(node), escape(node[0])
    out = [
        f'<rect class="box" x="{x - width / 2:.1f}" y="{y - BOX / 2:g}" width="{width:.1f}" height="{BOX}" rx="5"/>',
        f'<text class="name" x="{x:.1f}" y="{y + 4.5:g}">{name}</text>',
    ]
    if layout.above[node]:
        out.insert(0, f'<path class="head" d="M{x - 4:.1f} {y - BOX / 2 - 7:g}h8l-4 7z"/>')
    return out
