"""The figures of a run, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cflag import diagnostics
from cflag.problems.score import common
from cflag.results.colours import colour, dashed, numbers
from cflag.results.metrics import task_starts
from cflag.results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID = "#22303c", "#d9dee3"
MOST_INSIDE = 9
"""Methods whose names have room beside their lines; more stand outside the plot."""
READABLE = 20
"""Tasks up to which each has a label of its own; drawing ten thousand takes minutes, and nobody can read them."""


def write_figures(result: Result, folder: Path) -> list[Path]:
    """Draw every figure of one run; return the files."""
    folder.mkdir(exist_ok=True)
    records = result.metrics
    figures = {
        result.score.named("accuracy_after_each_task"): draw_accuracy([result]),
        result.score.named("accuracy_matrix"): draw_matrix(result),
        **{own.name: draw_measured(own, records, result.method) for own in result.figures if own.curves(records)},
    }
    return [path for name, figure in figures.items() for path in save(figure, folder / name)]


def save(figure: Figure, path: Path) -> list[Path]:
    """Save a figure as PNG and SVG; the SVG is the same bytes for the same numbers."""
    import matplotlib as mpl

    paths = [path.with_suffix(".png"), path.with_suffix(".svg")]
    with mpl.rc_context({"svg.hashsalt": "cflag"}):
        figure.savefig(paths[0], dpi=150)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def new_axes(width: float = 6.0, height: float = 3.6) -> tuple[Figure, Axes]:
    """Return an empty figure in the project's style."""
    figure, panels = new_panels(1, 1, width, height)
    return figure, panels[0]


def new_panels(rows: int, columns: int, width: float = 5.0, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """Return a figure with several panels, each of this size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=GRID)
        axes.set_axisbelow(True)
        axes.tick_params(colors=INK)
    return figure, panels


def draw_accuracy(results: Sequence[Result]) -> Figure:
    """Mean score over the tasks begun so far, after each milestone; a line per method, a band over its seeds."""
    figure, axes = new_axes()
    score = common([result.score for result in results])
    for method, number in numbers(r.method for r in results).items():
        runs = [r for r in results if r.method == method]
        at, own = runs[0].rows[1], colour(number)
        across = [[score.factor * v for v in values] for values in zip(*(r.accuracy_so_far for r in runs), strict=True)]
        mean, style = [fmean(values) for values in across], "--" if dashed(number) else "-"
        axes.plot(at, mean, marker="o", color=own, ls=style, label=method)
        axes.fill_between(at, [min(v) for v in across], [max(v) for v in across], color=own, alpha=0.15, lw=0)
    if results[0].together:
        axes.set(xlabel="tasks learned", ylabel=f"{score.text} on them{score.brackets}")
        axes.set_title(f"{score.title} after each task")
    else:
        axes.set(xlabel="round", ylabel=f"{score.text} on tasks begun{score.brackets}")
        axes.set_title(f"{score.title} whenever someone leaves a task")
    if len(results[0].accuracy_matrix) <= READABLE:
        axes.set_xticks(results[0].rows[1])
    if score.bounds is not None:
        axes.set_ylim(top=1.01 * score.factor * score.bounds[1])
    lines = axes.get_lines()
    if len(lines) <= MOST_INSIDE:
        axes.legend(frameon=False)
    else:
        figure.legend(handles=lines, loc="outside right upper", frameon=False, fontsize=8)
    return figure


def draw_matrix(result: Result) -> Figure:
    """The matrix of the run's score as a heat map; tasks not yet learned are faint."""
    rows, (unit, numbers), score = result.score_matrix, result.rows, result.score
    tall, wide = len(rows), len(rows[0])
    figure, axes = new_axes(1.6 + 0.62 * min(wide, READABLE), 1.4 + 0.55 * min(tall, READABLE))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    learned = [[1.0 if result.begun(i, j) else 0.35 for j in range(wide)] for i in range(tall)]
    values = [[nan if v is None else score.factor * v for v in row] for row in rows]
    low, high = (score.factor * bound for bound in score.range_of(rows))
    colours = "YlGnBu" if score.higher else "YlGnBu_r"
    image = axes.imshow(values, alpha=learned, cmap=colours, vmin=low, vmax=high, aspect="auto")
    for i, row in enumerate(values if max(tall, wide) <= READABLE else []):
        for j, value in enumerate(row):
            dark = score.goodness(rows[i][j], score.range_of(rows)) > 0.6 and learned[i][j] == 1
            text = "" if isnan(value) else f"{value:.{max(0, score.digits - 1)}f}"
            axes.text(j, i, text, ha="center", va="center", color="white" if dark else INK)
    across, down = (range(0, size, 1 if size <= READABLE else size // 10) for size in (wide, tall))
    axes.set_xticks(across, [str(k + 1) for k in across])
    axes.set_yticks(down, [str(numbers[k]) for k in down])
    after = "after learning task" if unit == "task" else "after round"
    axes.set(xlabel="tested on task", ylabel=after, title=f"{score.title}{score.brackets}, {result.method}")
    figure.colorbar(image, ax=axes)
    return figure


def draw_measured(own: diagnostics.Figure, records: Sequence[dict[str, Any]], method: str) -> Figure:
    """A figure that a method declares: its series over the rounds, its marks below, and where tasks begin."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_axes()
    _draw_task_boundaries(axes, records)
    curves = own.curves(records)
    for k, (series, points) in enumerate(curves.items()):
        axes.plot(*zip(*points, strict=True), marker=".", color=colour(k), label=series.name)
    if own.marks is not None:
        _draw_marks(axes, own.marks, records, first=len(curves))
    title = f"{own.title}, {method}"
    axes.set(xlabel="round", ylabel=own.axis_label, title=title, xlim=(0.5, len(records) + 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.15)  # room for the task names
    if axes.get_ylim()[0] < 0 < axes.get_ylim()[1]:
        axes.axhline(0, color=INK, linewidth=0.8)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def _draw_task_boundaries(axes: Axes, records: Sequence[dict[str, Any]]) -> None:
    for t, name in task_starts(records):
        axes.axvline(t - 0.5, color=GRID, linewidth=1)
        if records[-1]["task"] <= READABLE:
            axes.annotate(name, (t - 0.4, 0.98), xycoords=("data", "axes fraction"), va="top", fontsize=8,
                          color="#6b7785")  # fmt: skip


def _draw_marks(axes: Axes, marks: diagnostics.Marks, records: Sequence[dict[str, Any]], first: int) -> None:
    """Mark the rounds in which most clients logged a word, a row per word along the horizontal axis."""
    for k, word in enumerate(marks.words):
        if rounds := marks.most(records, word):
            heights = [0.02 + 0.03 * k] * len(rounds)
            axes.plot(rounds, heights, "s", markersize=3, color=colour(first + k),
                      transform=axes.get_xaxis_transform(), label=f"{word} in most clients")  # fmt: skip
