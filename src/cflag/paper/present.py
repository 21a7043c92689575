"""How a campaign looks: the table or the figure, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from cflag.files import write_atomically, write_json
from cflag.paper.cells import Campaign
from cflag.paper.summary import CellResult, Spread, Summary, as_printed, spread
from cflag.paper.variants import CFLAG_VARIANTS, VARIANTS, label, main_cflag
from cflag.results.figures import COLOURS, INK, new_panels, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


NONE = "–"


def shown(spread: Spread | None, digits: int = 1) -> str:
    """Return a mean with its deviation, as people write it."""
    if spread is None:
        return NONE
    mean, deviation = spread
    return f"{mean:.{digits}f}" if deviation is None else f"{mean:.{digits}f} ± {deviation:.{digits}f}"


Pick = Callable[[CellResult], Spread | None]

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
        table.add_column(head.replace(", ", "\n"), justify="left" if k < 2 else "right", no_wrap=True)
    last = ""
    for row in rows(summary):
        table.add_row("" if row[0] == last else row[0], *row[1:])
        last = row[0]
        if "§" in row[2]:
            table.caption, table.caption_justify = BORROWED, "left"
    return table


def as_markdown(summary: Summary) -> str:
    """Return the table as Markdown."""
    lines = [list(HEADS), ["---", "---", *["---:"] * 5], *rows(summary)]
    notes = [f"‡ {e.group}, {label(e.method)}: {e.slip}." for e in summary.entries if e.slip]
    notes += [BORROWED] if any("§" in row[2] for row in rows(summary)) else []
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
    """Draw the campaign's figure: a column per group, a line per row; a sweep has Acc above, Forget below."""
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
    """One legend for all panels, below them, where it hides no line; in as many columns as fit."""
    named = {name: line for axes in figure.axes for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    widths = [(len(name) + 8) / 14 for name in named]  # in inches: a line's sample and its name
    if named:
        columns = len(named) if sum(widths) <= figure.get_figwidth() else int(figure.get_figwidth() / max(widths))
        figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=max(1, columns),
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
    """Draw a line per row, over the seeds that all its points have, so that no seed shows in a part of it only."""
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
        look: dict[str, Any] = {"marker": "x", "ls": ":", "color": INK, "label": "C-FLAG, printed in the paper"}
        axes.plot(*zip(*printed, strict=True), **look)
    axes.set_xticks(range(len(values)), [f"{v:g}" for v in values])


def _draw_gamma(axes: Axes, entries: Sequence[CellResult]) -> None:
    """Draw a line per row and ζ; the colour tells ζ."""
    zetas = list(dict.fromkeys(e.at for e in entries))
    for e in entries:
        points = [(t, v) for t, v in enumerate(e.gamma or [], 1) if v is not None]
        if points:
            look = {**_look(e.method), "color": COLOURS[zetas.index(e.at)], "lw": 1}
            axes.plot(*zip(*points, strict=True), **{**look, "label": f"{look['label']}, ζ = {e.at:g}"})
    axes.axhline(0, color=INK, lw=0.8)
    axes.set(xlabel="round", ylabel="Γ(t), mean over seeds")


def _look(name: str) -> dict[str, Any]:
    """A row looks the same in all figures; the lines of C-FLAG are the thick ones, delayed gradients dashed."""
    own = main_cflag([name]) is not None
    place = 0 if own else list(VARIANTS).index(name) - len(CFLAG_VARIANTS) + 1
    return {
        "color": COLOURS[place % len(COLOURS)],
        "lw": 2.4 if own else 1.4,
        "ls": "--" if name == "cflag" else "-",
        "label": label(name),
        "zorder": 3 if own else 2,
    }
