"""A campaign's numbers as tables, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from cflag.paper.cells import Campaign
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


def as_text(campaign: Campaign, summary: Summary) -> Table:
    """Return the table for a terminal."""
    table = Table(
        title=f"{campaign.title}, scale {summary.scale}", box=box.SIMPLE_HEAD, title_justify="left", padding=0
    )
    for k, head in enumerate(HEADS):
        table.add_column(head.replace(", ", "\n"), justify="left" if k < 2 else "right", no_wrap=k != 1)
    last = ""
    for row in rows(summary):
        table.add_row("" if row[0] == last else row[0], *row[1:])
        last = row[0]
        if "§" in row[2]:
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
