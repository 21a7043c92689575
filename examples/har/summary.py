"""Put finished comparisons into one small file of numbers, a Markdown table and a picture.

Run it: python examples/har/summary.py runs/har
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from matplotlib.figure import Figure

from cflag.results.colours import COLOURS
from cflag.results.figures import GRID, INK, new_panels
from cflag.results.result import Result, average_accuracy

NAMES = {"joint": "joint", "cflag-shared": "C-FLAG-Shared", "cflag-sgd": "C-FLAG-SGD", "replay": "replay",
         "ewc": "EWC", "finetune": "fine-tuning", "cflag": "C-FLAG"}  # fmt: skip
TASKS = ("walking,\nupstairs", "+ downstairs,\nsitting", "+ standing,\nlying")
HEAD = ("method", "accuracy %", "forgotten %", "first, second, third task %", "task told %", "worst person %",
        "below 80 %", "rounds", "gradients k", "sent MB")  # fmt: skip


def spread(values: Iterable[float], scale: float = 100.0) -> list[float]:
    """Return mean and standard deviation, in percent."""
    scaled = [scale * value for value in values]
    return [round(fmean(scaled), 2), round(stdev(scaled), 2) if len(scaled) > 1 else 0.0]


def people(runs: Sequence[Result]) -> list[float]:
    """Return each person's final accuracy: the mean over the tasks, and over the seeds, in percent."""
    last = [[fmean(a for a in matrix[-1] if a is not None) for matrix in run.client_matrices] for run in runs]
    return [round(100 * fmean(each), 1) for each in zip(*last, strict=True)]


def summarise(folder: Path) -> dict[str, Any]:
    """Return what the README shows of a comparison, by method."""
    found = [Result.load(path.parent) for path in sorted(folder.glob("*/result.json"))]
    groups = {method: [run for run in found if run.method == method] for method in NAMES}
    numbers = {}
    for method, runs in groups.items():
        if not runs:
            continue
        seen = [[fmean(row[: i + 1]) for i, row in enumerate(run.accuracy_matrix)] for run in runs]
        numbers[method] = {
            "seeds": [run.seed for run in runs],
            "accuracy": spread(run.average_accuracy for run in runs),
            "forgetting": spread(run.forgetting for run in runs),
            "after_each_task": [spread(values) for values in zip(*seen, strict=True)],
            "each_task_at_the_end": [spread(run.accuracy_matrix[-1][j] for run in runs) for j in range(len(TASKS))],
            "task_told": spread(average_accuracy(run.matrices["task"]) for run in runs),
            "people": people(runs),
            "rounds": runs[0].config["rounds"],
            "gradients": [round(fmean(run.costs[f"gradients_{k}"] for run in runs)) for k in ("current", "memory")],
            "bytes": round(fmean(run.costs["bytes_up"] + run.costs["bytes_down"] for run in runs)),
        }
    return numbers


def table(numbers: dict[str, Any]) -> str:
    """Return the numbers as Markdown, one row per method."""
    rows: list[Sequence[str]] = [HEAD, ["---", *["---:"] * (len(HEAD) - 1)]]
    for method, n in numbers.items():
        tasks = ", ".join(f"{value:.0f}" for value, _ in n["each_task_at_the_end"])
        below = sum(value < 80 for value in n["people"])
        shown = ["{:.1f} ± {:.1f}".format(*n[key]) for key in ("accuracy", "forgetting")]
        served = [f"{min(n['people']):.0f}", f"{below} of {len(n['people'])}"]
        costs = [str(n["rounds"]), f"{sum(n['gradients']) / 1e3:.0f}", f"{n['bytes'] / 1e6:.0f}"]
        rows.append([f"`{method}`", *shown, tasks, f"{n['task_told'][0]:.1f}", *served, *costs])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(numbers: dict[str, Any]) -> Figure:
    """Left: accuracy on the activities so far, after each task. Right: how well it works for each person."""
    figure, (left, right) = new_panels(1, 2, 5.2, 3.9)
    right.grid(axis="x", color=GRID)
    right.grid(axis="y", visible=False)
    place = range(1, len(TASKS) + 1)
    for k, (method, n) in enumerate(numbers.items()):
        colour = INK if method == "joint" else COLOURS[list(NAMES).index(method) - 1]
        means, devs = zip(*n["after_each_task"], strict=True)
        style: dict[str, Any] = {"color": colour, "label": NAMES[method], "lw": 2, "marker": "o", "capsize": 3}
        aside = [x + 0.035 * (k - 2) for x in place]  # so that no bar hides another
        left.errorbar(aside, means, devs, ls="--" if method == "joint" else "-", **style)
        row = [-k + 0.26 * ((i * 0.618) % 1 - 0.5) for i in range(len(n["people"]))]  # spread out, the same each time
        right.scatter(n["people"], row, color=colour, s=22, alpha=0.65, lw=0)
        right.plot([median(n["people"])] * 2, [-k - 0.32, -k + 0.32], color=colour, lw=3)
    left.set(title="Activities known so far", ylabel="accuracy on them (%)", ylim=(0, 104))
    left.set_xticks(place, TASKS)
    left.set_xlim(0.8, len(TASKS) + 0.2)
    left.legend(frameon=False, loc="lower left")
    right.set(title="At the end, for each person", xlabel="accuracy on all six (%); the bar is the median person")
    right.set_yticks([-k for k in range(len(numbers))], [NAMES[method] for method in numbers])
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="what 'cflag compare' wrote; the first is drawn")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    given = parser.parse_args()
    results = {folder.name: summarise(folder) for folder in given.folders}
    lines = (json.dumps(numbers).replace('}, "', '},\n  "') for numbers in results.values())
    text = ",\n".join(f"{json.dumps(name)}: {line}" for name, line in zip(results, lines, strict=True))
    (given.out / "results.json").write_text(f"{{{text}}}\n")
    draw(next(iter(results.values()))).savefig(given.out / "har.png", dpi=130)
    for name, numbers in results.items():
        print(f"{name}\n\n{table(numbers)}\n")
