"""The picture of a search: a row for each method, the best so far, and the score against each setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any

from cflag.results.colours import COLOURS
from cflag.results.figures import INK, new_panels
from cflag.tuning.search import Trial, best_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = {"finished": ("o", COLOURS[0]), "given up": ("x", COLOURS[5]), "diverged": ("v", COLOURS[1]),
         "refused": ("v", COLOURS[4])}  # fmt: skip

LABELS = {"given up": "given up (score by then)"}


def draw_search(trials: Mapping[str, Sequence[Trial]]) -> Figure:
    """Draw the trials of all methods; those that were given up with the score that they had by then."""
    columns = 1 + max(len(own[0].settings) for own in trials.values())
    figure, panels = new_panels(len(trials), columns, 3.2, 2.8)
    for row, (method, tried) in enumerate(trials.items()):
        first, *others = panels[row * columns : (row + 1) * columns]
        _draw_progress(first, method, tried)
        for axes, name in zip(others, tried[0].settings, strict=False):
            _draw_setting(axes, name, tried)
        for axes in others[len(tried[0].settings) :]:
            axes.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _draw_progress(axes: Axes, method: str, trials: Sequence[Trial]) -> None:
    """Every trial in its order, and the best so far."""
    numbers = [trial.number for trial in trials]
    _scatter(axes, numbers, trials)
    best = [best_of(trials[: number + 1]) for number in range(len(trials))]
    axes.step(numbers, [_height(trial) for trial in best], where="post", color=INK, lw=1, label="best so far")
    score = trials[0].score
    axes.set(title=method, xlabel="trial", ylabel=f"{score.label} {score.unit} (held-out)".replace("  ", " "))


def _height(trial: Trial) -> float:
    """Return where a trial stands; one that diverged at the lower end, where there is one."""
    lowest = trial.score.bounds[0] if trial.score.bounds else nan
    return trial.score.factor * (lowest if trial.value is None else trial.value)


def _draw_setting(axes: Axes, name: str, trials: Sequence[Trial]) -> None:
    """The score against one setting, on a log scale where it is a number."""
    values = [trial.settings[name] for trial in trials]
    if all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values):
        axes.set_xscale("log")
        _scatter(axes, values, trials)
    else:
        _scatter(axes, [str(value) for value in values], trials)
    axes.set(xlabel=name)


def _scatter(axes: Axes, at: Sequence[Any], trials: Sequence[Trial]) -> None:
    points = list(zip(at, trials, strict=True))
    for state, (mark, colour) in MARKS.items():
        chosen = [(x, _height(t)) for x, t in points if t.state == state]
        if chosen:
            xs, ys = zip(*chosen, strict=True)
            axes.scatter(xs, ys, marker=mark, color=colour, s=22, label=LABELS.get(state, state), alpha=0.8)
    for label, trial, mark in (("the file's own", trials[0], "*"), ("best", best_of(trials), "o")):
        x = next(x for x, t in points if t is trial)
        full: dict[str, Any] = (
            {"color": COLOURS[1]} if mark == "*" else {"facecolors": "none", "edgecolors": COLOURS[1]}
        )
        axes.scatter([x], [_height(trial)], marker=mark, s=90, label=label, zorder=3, **full)
