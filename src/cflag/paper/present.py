"""How a campaign looks: the table or the figure, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from cflag.files import write_atomically, write_json
from cflag.paper.campaigns import NAMES, Campaign
from cflag.paper.summary import CellResult, Spread, Summary, spread
from cflag.results.figures import COLOURS, new_panels, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def shown(spread: Spread | None, digits: int = 1) -> str:
    """Return a mean with its deviation, as people write it."""
    if spread is None:
        return "–"
    mean, deviation = spread
    return f"{mean:.{digits}f}" if deviation is None else f"{mean:.{digits}f} ± {deviation:.{digits}f}"


Pick = Callable[[CellResult], Spread | None]

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
    """Draw the campaign's figure: a column a group, a line a method; a sweep has Acc above, Forget below."""
    groups = list(dict.fromkeys(e.group for e in summary.entries))
    rows = 2 if campaign.kind == "sweep" else 1
    figure, panels = new_panels(rows, len(groups), 4.6, 3.4 if rows == 1 else 2.6)
    for column, group in enumerate(groups):
        entries = [e for e in summary.entries if e.group == group]
        above, below = panels[column], panels[-len(groups) + column]
        above.set_title(f"{group} ({summary.scale})", fontsize=11)
        if campaign.kind == "tasks":
            _draw_tasks(above, entries)
        elif campaign.kind == "gamma":
            _draw_gamma(above, entries)
        else:
            _draw_sweep(above, entries, lambda e: e.accuracies, lambda e: e.paper_accuracy)
            _draw_sweep(below, entries, lambda e: e.forgettings, lambda e: e.paper_forgetting)
            below.set_xlabel(campaign.axis)
            above.set_ylabel("Acc (%)")
            below.set_ylabel("Forget (%)")
    _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    """One legend for all panels, below them, where it hides no line."""
    named = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if named:
        figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=min(6, len(named)),
                      frameon=False, fontsize=9)  # fmt: skip


def _draw_tasks(axes: Axes, entries: Sequence[CellResult]) -> None:
    for e in entries:
        if e.after_tasks:
            means = [fmean(column) for column in zip(*e.after_tasks, strict=True)]
            tasks = range(1, len(means) + 1)
            axes.plot(tasks, means, marker="o", ms=4, **_look(e.method))
            axes.set_xticks(tasks)
    axes.set(xlabel="tasks learned", ylabel="accuracy on them (%)")


def _draw_sweep(
    axes: Axes, entries: Sequence[CellResult], ours: Callable[[CellResult], list[float]], theirs: Pick
) -> None:
    """Draw a line a method, over the seeds that all its points have: others would bend it."""
    values = sorted({e.at for e in entries if e.at is not None})
    for method in dict.fromkeys(e.method for e in entries):
        mine = [e for e in entries if e.method == method and e.seeds]
        common = set.intersection(*(set(e.seeds) for e in mine)) if mine else set[int]()
        points = []
        for e in mine:
            found = spread([v for seed, v in zip(e.seeds, ours(e), strict=True) if seed in common])
            if found and e.at is not None:
                points.append((values.index(e.at), found))
        axes.errorbar([x for x, _ in points], [mean for _, (mean, _) in points], [d or 0.0 for _, (_, d) in points],
                      marker="o", ms=4, capsize=3, **_look(method))  # fmt: skip
    printed = sorted((values.index(e.at), s[0]) for e in entries if e.at is not None and (s := theirs(e)))
    if printed:
        axes.plot(*zip(*printed, strict=True), marker="x", ls="--", color="#22303c", label="printed in the paper")
    axes.set_xticks(range(len(values)), [f"{v:g}" for v in values])


def _draw_gamma(axes: Axes, entries: Sequence[CellResult]) -> None:
    for k, e in enumerate(entries):
        points = [(t, v) for t, v in enumerate(e.gamma or [], 1) if v is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=COLOURS[k], lw=1, label=f"ζ = {e.at:g}")
    axes.axhline(0, color="#22303c", lw=0.8)
    axes.set(xlabel="round", ylabel="Γ(t), mean over seeds")


def _look(method: str) -> dict[str, Any]:
    """A method looks the same in all figures; C-FLAG's line is the thick one."""
    place = list(NAMES).index(method)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "lw": 2.4 if method == "cflag" else 1.4,
        "label": NAMES[method],
        "zorder": 3 if method == "cflag" else 2,
    }
