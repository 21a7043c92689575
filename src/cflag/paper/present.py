"""How a campaign looks: the table or the figure, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from cflag.files import write_atomically, write_json
from cflag.paper.campaigns import NAMES, Campaign
from cflag.paper.summary import Entry, Spread, Summary
from cflag.results.figures import COLOURS, GRID, new_panels, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def shown(spread: Spread | None, digits: int = 1) -> str:
    """Return a mean with its deviation, as people write it."""
    if spread is None:
        return "–"
    mean, deviation = spread
    return f"{mean:.{digits}f}" if deviation is None else f"{mean:.{digits}f} ± {deviation:.{digits}f}"


HEADS = ("", "", "Acc, paper", "Acc, ours", "Forget, paper", "Forget, ours", "seeds")


def rows(summary: Summary) -> list[list[str]]:
    """Return a row for each cell and method."""
    out = []
    for e in summary.entries:
        label = NAMES.get(e.method, e.method) if e.at is None else f"{NAMES.get(e.method, e.method)}, {e.at:g}"
        mark = " ‡" if e.slip else ""
        paper = (shown(e.paper_accuracy) + mark, shown(e.paper_forgetting) + mark)
        counts = str(len(e.seeds))
        out.append([e.group, label, paper[0], shown(e.accuracy), paper[1], shown(e.forgetting), counts])
    return out


def as_text(campaign: Campaign, summary: Summary) -> Table:
    """Return the table for a terminal."""
    table = Table(
        title=f"{campaign.title}, scale {summary.scale}", box=box.SIMPLE_HEAD, title_justify="left", padding=0
    )
    for k, head in enumerate(HEADS):
        table.add_column(head.replace(", ", "\n"), justify="left" if k < 2 else "right", no_wrap=True)
    last = ""
    for row in rows(summary):
        table.add_row("" if row[0] == last else row[0], *row[1:])
        last = row[0]
    return table


def as_markdown(summary: Summary) -> str:
    """Return the table as Markdown."""
    lines = [list(HEADS), ["---", "---", *["---:"] * 5], *rows(summary)]
    notes = [f"‡ {e.group}, {NAMES.get(e.method, e.method)}: {e.slip}." for e in summary.entries if e.slip]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "".join(f"\n{note}\n" for note in notes)


def write(campaign: Campaign, summary: Summary, stem: Path) -> list[Path]:
    """Write the summary, the table and, for a figure, the figure; return the files."""
    write_json(stem.with_suffix(".json"), summary.to_dict())
    write_atomically(stem.with_suffix(".md"), as_markdown(summary).encode())
    files = [stem.with_suffix(".json"), stem.with_suffix(".md")]
    if campaign.kind != "table":
        files += save(draw(campaign, summary), stem)
    return files


def draw(campaign: Campaign, summary: Summary) -> Figure:
    """Draw the campaign's figure: a panel a group, a line a method."""
    groups = list(dict.fromkeys(e.group for e in summary.entries))
    panels_of = groups if campaign.kind != "gamma" else groups[:1]
    columns = len(panels_of)
    figure, panels = new_panels(1, columns, 5.0, 3.6)
    for axes, group in zip(panels, panels_of, strict=True):
        entries = [e for e in summary.entries if e.group == group]
        {"tasks": _draw_tasks, "sweep": _draw_sweep, "gamma": _draw_gamma}[campaign.kind](axes, entries)
        axes.set_title(f"{group} ({summary.scale})")
        axes.legend(frameon=False, fontsize=8)
        if campaign.kind == "sweep":
            axes.set_xlabel(campaign.axis)
    return figure


def _draw_tasks(axes: Axes, entries: Sequence[Entry]) -> None:
    for k, e in enumerate(entries):
        if e.after_tasks:
            tasks = range(1, len(e.after_tasks) + 1)
            means = [mean for mean, _ in e.after_tasks]
            axes.plot(tasks, means, marker="o", color=_colour(k), label=NAMES.get(e.method, e.method))
            axes.set_xticks(tasks)
    axes.set(xlabel="tasks learned", ylabel="accuracy on them (%)")


def _draw_sweep(axes: Axes, entries: Sequence[Entry]) -> None:
    values = sorted({e.at for e in entries if e.at is not None})
    for k, method in enumerate(dict.fromkeys(e.method for e in entries)):
        mine = {e.at: e for e in entries if e.method == method and e.accuracy}
        here = [(x, mine[v].accuracy, mine[v].forgetting) for x, v in enumerate(values) if v in mine]
        at, means = [x for x, a, _ in here if a], [a for _, a, _ in here if a]
        axes.errorbar(at, [a[0] for a in means], [a[1] or 0.0 for a in means], marker="o", capsize=3, color=_colour(k),
                      label=f"{NAMES.get(method, method)}, Acc")  # fmt: skip
        axes.plot([x for x, _, f in here if f], [f[0] for _, _, f in here if f], marker="s", ls=":", color=_colour(k),
                  label=f"{NAMES.get(method, method)}, Forget")  # fmt: skip
    printed = {e.at: e.paper_accuracy for e in entries if e.paper_accuracy}
    if printed:
        at = [x for x, v in enumerate(values) if v in printed]
        axes.plot(at, [printed[values[x]][0] for x in at], marker="x", ls="--", color="#6b7785", label="paper, Acc")
    axes.set_xticks(range(len(values)), [f"{v:g}" for v in values])
    axes.axhline(0, color=GRID, lw=0.8)
    axes.set_ylabel("%")


def _draw_gamma(axes: Axes, entries: Sequence[Entry]) -> None:
    for k, e in enumerate(entries):
        points = [(t, v) for t, v in enumerate(e.gamma or [], 1) if v is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=_colour(k), lw=1, label=f"ζ = {e.at:g}")
    axes.axhline(0, color="#22303c", lw=0.8)
    axes.set(xlabel="round", ylabel="Γ(t)")


def _colour(k: int) -> str:
    return COLOURS[k % len(COLOURS)]
