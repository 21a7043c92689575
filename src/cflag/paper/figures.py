"""The figures of campaigns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cflag.paper.cells import Campaign
from cflag.paper.present import NONE, shown
from cflag.paper.study_tables import difference, row_of
from cflag.paper.summary import CellResult, Spread, Summary, spread
from cflag.paper.variants import VARIANTS, label, main_cflag
from cflag.results.colours import COLOURS, colour, dashed, numbers
from cflag.results.figures import GRID, INK, new_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN = ("table", "rates", "rows")
"""Kinds of campaigns without a figure."""
Pick = Callable[[CellResult], Spread | None]


def drawable(campaign: Campaign, summary: Summary) -> bool:
    """Say whether there is anything to draw: a campaign with a figure, and a finished run."""
    return campaign.kind not in PLAIN and any(e.seeds for e in summary.entries)


def draw(campaign: Campaign, summary: Summary) -> Figure:
    """Draw the campaign's figure."""
    if campaign.kind == "parts":
        return _parts(summary, campaign.base)
    if campaign.kind == "cost":
        one_budget = len({cell.at for cell in campaign.cells}) == 1
        return _ranked(summary, campaign.base) if one_budget else _cost(summary)
    return _lines(campaign, summary)


def _lines(campaign: Campaign, summary: Summary) -> Figure:
    """A column per group, a line per row; a sweep has Acc above, Forget below."""
    groups = _groups(summary)
    rows = 2 if campaign.kind == "sweep" else 1
    figure, panels = new_panels(rows, len(groups), 4.6 if len(groups) > 1 else 7.2, 3.4 if rows == 1 else 2.6)
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


def _groups(summary: Summary) -> list[str]:
    """Return the panels: the groups of which something was run."""
    return list(dict.fromkeys(e.group for e in summary.entries if e.seeds))


def _legend(figure: Figure) -> None:
    """One legend for all panels, below them, where it hides no line; in as many columns as fit."""
    named = {name: line for axes in figure.axes for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    widths = [(len(name) + 8) / 14 for name in named]  # in inches: a line's sample and its name
    if named:
        columns = len(named) if sum(widths) <= figure.get_figwidth() else int(figure.get_figwidth() / max(widths))
        figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=max(1, columns),
                      frameon=False, fontsize=9)  # fmt: skip


def _draw_tasks(axes: Axes, entries: Sequence[CellResult]) -> None:
    looks = _looks(e.method for e in entries)
    for e in entries:
        if e.after_tasks:
            means = [fmean(column) for column in zip(*e.after_tasks, strict=True)]
            tasks = range(1, len(means) + 1)
            axes.plot(tasks, means, marker="o", ms=4, **looks[e.method])
            axes.set_xticks(tasks)
    axes.set(xlabel="tasks learned", ylabel="accuracy on them (%)")


def _draw_sweep(
    axes: Axes, entries: Sequence[CellResult], ours: Callable[[CellResult], list[float]], theirs: Pick
) -> None:
    """Draw a line per row, over the seeds that all its points have, so that no seed shows in a part of it only."""
    values, looks = sorted({e.at for e in entries if e.at is not None}), _looks(e.method for e in entries)
    for method in dict.fromkeys(e.method for e in entries):
        mine = [e for e in entries if e.method == method and e.seeds]
        common = set.intersection(*(set(e.seeds) for e in mine)) if mine else set[int]()
        points = []
        for e in mine:
            found = spread([v for seed, v in zip(e.seeds, ours(e), strict=True) if seed in common])
            if found and e.at is not None:
                points.append((values.index(e.at), found))
        axes.errorbar([x for x, _ in points], [mean for _, (mean, _) in points], [d or 0.0 for _, (_, d) in points],
                      marker="o", ms=4, capsize=3, **looks[method])  # fmt: skip
    printed = sorted((values.index(e.at), s[0]) for e in entries if e.at is not None and (s := theirs(e)))
    if printed:
        look: dict[str, Any] = {"marker": "x", "ls": ":", "color": INK, "label": "C-FLAG, printed in the paper"}
        axes.plot(*zip(*printed, strict=True), **look)
    axes.set_xticks(range(len(values)), [f"{v:g}" for v in values])


def _draw_gamma(axes: Axes, entries: Sequence[CellResult]) -> None:
    """Draw a line per row and ζ; the colour tells ζ."""
    zetas, looks = list(dict.fromkeys(e.at for e in entries)), _looks(e.method for e in entries)
    for e in entries:
        points = [(t, v) for t, v in enumerate(e.gamma or [], 1) if v is not None]
        if points:
            look = {**looks[e.method], "color": COLOURS[zetas.index(e.at)], "lw": 1}
            axes.plot(*zip(*points, strict=True), **{**look, "label": f"{look['label']}, ζ = {e.at:g}"})
    axes.axhline(0, color=INK, lw=0.8)
    axes.set(xlabel="round", ylabel="Γ(t), mean over seeds")


def _looks(rows: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return how lines of rows look: as their methods do everywhere, a method's variants dashed or dotted and hollow.

    The lines of C-FLAG are the thick ones.
    """
    shown = {row: VARIANTS[row].method if row.startswith(VARIANTS[row].method) else row for row in rows}
    number = numbers(shown.values())
    styles = {"cflag-paper": "-", "cflag": "--", "cflag-balanced-fresh": "-."}
    looks = {}
    for row, method in shown.items():
        own = main_cflag([row]) is not None
        style = styles.get(row, ":" if row != method else "--" if dashed(number[method]) else "-")
        shade = colour(number[method])
        looks[row] = {"color": shade, "mfc": shade if style == "-" else "white", "ls": style, "label": label(row),
                      "lw": 2.4 if own else 1.4, "zorder": 3 if own else 2}  # fmt: skip
    return looks


def _parts(summary: Summary, whole: str) -> Figure:
    """A bar for each change: what the whole gains or loses by it; a panel per ζ. Pale bars may be chance."""
    groups = _groups(summary)
    methods = [m for m in dict.fromkeys(e.method for e in summary.entries) if m != whole]
    figure, panels = new_panels(1, len(groups), 3.6, 0.9 + 0.34 * len(methods))
    for axes, group in zip(panels, groups, strict=True):
        entries = {e.method: e for e in summary.entries if e.group == group}
        base = row_of(list(entries.values()), whole)
        _bars(axes, [difference(entries[m], base) if base and m in entries else None for m in methods])
        axes.set_title(f"{group}, Acc {shown(base.accuracy) if base else NONE}", fontsize=11)
        axes.set_yticks(range(len(methods)), [label(m) for m in methods] if axes is panels[0] else [""] * len(methods))
        axes.invert_yaxis()
    reach = max(abs(edge) for axes in panels for edge in axes.get_xlim())
    for axes in panels:
        axes.set_xlim(-1.35 * reach, 1.35 * reach)
    figure.supxlabel(f"points of Acc to {label(whole)} (dark: 95 % sure; pale: may be chance)", fontsize=10)
    return figure


def _bars(axes: Axes, differences: Sequence[tuple[float, float | None] | None]) -> None:
    for y, found in enumerate(differences):
        if found is None:
            continue
        mean, half = found
        sure = half is not None and abs(mean) > half
        axes.barh(y, mean, color=COLOURS[2] if mean > 0 else COLOURS[1], alpha=1.0 if sure else 0.35, height=0.62)
        axes.annotate(f" {mean:+.1f} ", (mean, y), ha="left" if mean > 0 else "right", va="center", fontsize=8)
    axes.axvline(0, color=INK, lw=0.8)
    axes.grid(axis="y", visible=False)


def _ranked(summary: Summary, base: str) -> Figure:
    """Rows from the best to the worst, their seeds as small dots; a panel per ζ, a line where the base is."""
    groups = _groups(summary)
    rows = sorted((e for e in summary.entries if e.accuracies), key=lambda e: fmean(e.accuracies))
    ranked = {group: [e for e in rows if e.group == group] for group in groups}
    looks = _looks(e.method for e in rows)
    most = max(map(len, ranked.values()))
    figure, panels = new_panels(1, len(groups), 4.9, 0.9 + 0.25 * most)
    for axes, (group, entries) in zip(panels, ranked.items(), strict=True):
        for y, e in enumerate(entries):
            shade = looks[e.method]["color"]
            axes.plot(e.accuracies, [y] * len(e.accuracies), "o", color=shade, ms=3, alpha=0.45)
            axes.plot(fmean(e.accuracies), y, "D", color=shade, ms=6, mfc=looks[e.method]["mfc"])
        there = row_of(entries, base)
        if there:
            axes.axvline(fmean(there.accuracies), color=INK, lw=0.8, ls=":")
        axes.set_yticks(range(len(entries)), [label(e.method) for e in entries])
        axes.set_ylim(len(entries) - most - 0.6, len(entries) - 0.4)
        axes.grid(axis="x", color=GRID)
        axes.set_title(f"{group} ({summary.scale})", fontsize=11)
    figure.supxlabel(f"Acc (%): mean over seeds, and each seed; dotted: {label(base)}", fontsize=10)
    return figure


def _cost(summary: Summary) -> Figure:
    """Accuracy against gradients above, against bytes below; a line per method, a column per ζ."""
    groups = _groups(summary)
    figure, panels = new_panels(2, len(groups), 4.6, 3.0)
    costs: tuple[tuple[str, Callable[[CellResult], float | None]], ...] = (
        ("thousand gradients per run", lambda e: e.gradients),
        ("megabytes per run", lambda e: e.megabytes),
    )
    for k, axes in enumerate(panels):
        name, cost = costs[k // len(groups)]
        group = groups[k % len(groups)]
        entries = [e for e in summary.entries if e.group == group and e.accuracy]
        looks = _looks(e.method for e in entries)
        for method in dict.fromkeys(e.method for e in entries):
            points = sorted((cost(e) or 0.0, e.accuracy[0]) for e in entries if e.method == method and e.accuracy)
            axes.plot(*zip(*points, strict=True), marker="o", ms=4, **looks[method])
        axes.set(xscale="log", xlabel=name, ylabel="Acc (%)")
        axes.xaxis.set_minor_formatter("")
        axes.set_title(f"{group} ({summary.scale})", fontsize=11)
    _legend(figure)
    return figure
