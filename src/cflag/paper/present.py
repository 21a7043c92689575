"""A campaign's numbers as tables, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rich import box
from rich.table import Table

from cflag.paper.summary import Spread, Summary, as_printed
from cflag.paper.variants import label

NONE = "–"


def shown(spread: Spread | None, digits: int = 1) -> str:
    """Return a mean with its deviation, as people write it."""
    if spread is None:
        return NONE
    mean, deviation = spread
    return f"{mean:.{digits}f}" if deviation is None else f"{mean:.{digits}f} ± {deviation:.{digits}f}"


BORROWED = "§ printed for C-FLAG; C-FLAG-SGD is a variant of it, not the paper's algorithm."
HEADS = ("", "", "Acc, paper", "Acc, ours", "Forget, paper", "Forget, ours", "seeds")


def rows(summary: Summary) -> list[list[str]]:
    """Return a row for each cell and method."""
    out = []
    for e in summary.entries:
        name = label(e.method)
        name = name if e.at is None else f"{name}, {e.at:g}"
        mark = (" §" if e.method == "cflag-sgd" and e.paper_accuracy else "") + (" ‡" if e.slip else "")
        paper = [(text or NONE) + mark for text in as_printed(summary.campaign, e)]
        counts = str(len(e.seeds))
        out.append([e.group, name, paper[0], shown(e.accuracy), paper[1], shown(e.forgetting), counts])
    return out


def terminal_table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> Table:
    """Return a table for a terminal: names may take two lines, numbers may not; a group is named once."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=0)
    for k, head in enumerate(heads):
        side: Literal["left", "right"] = "left" if k < left else "right"
        table.add_column(head.replace(", ", "\n"), justify=side, no_wrap=k != left - 1)
    last = ""
    for line in lines:
        table.add_row("" if left > 1 and line[0] == last else line[0], *line[1:])
        last = line[0]
    if any("§" in cell for line in lines for cell in line):
        table.caption, table.caption_justify = BORROWED, "left"
    return table


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table as Markdown; the first `left` columns are aligned to the left, the others to the right."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "".join(f"| {' | '.join(row)} |\n" for row in [heads, rule, *rows])


def as_markdown(summary: Summary) -> str:
    """Return the table as Markdown."""
    notes = [f"‡ {e.group}, {label(e.method)}: {e.slip}." for e in summary.entries if e.slip]
    notes += [BORROWED] if any("§" in row[2] for row in rows(summary)) else []
    return markdown_table(HEADS, rows(summary), 2) + "".join(f"\n{note}\n" for note in notes)
