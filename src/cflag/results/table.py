"""One table of several runs: methods against accuracy, forgetting and cost, in four formats."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean, stdev

from rich import box
from rich.console import Group
from rich.table import Table

from cflag.files import write_atomically
from cflag.problems.score import Score, common
from cflag.results.result import Result, average_accuracy

TERMINAL = 80
"""The columns that a table in a terminal may take."""


@dataclass(frozen=True)
class Column:
    """A quantity of a run, and how it is shown."""

    name: str
    unit: str
    of: Callable[[Result], float | None]
    digits: int
    spread: bool = False

    def cell(self, results: Sequence[Result]) -> str:
        """Return the mean over seeds, with the standard deviation where this column shows it."""
        values = [value for result in results if (value := self.of(result)) is not None]
        if not values:
            return "–"
        mean = f"{fmean(values):,.{self.digits}f}"
        return f"{mean} ± {stdev(values):.{self.digits}f}" if self.spread and len(values) > 1 else mean


def _scored(result: Result, value: float | None) -> float | None:
    """Return a value as its run's score shows it: a share as percent."""
    return None if value is None else result.score.factor * value


def score_columns(score: Score) -> tuple[Column, ...]:
    """Return the columns that are in a score."""
    unit, digits = score.unit, score.digits
    return (
        Column(score.label, unit, lambda r: _scored(r, r.average_score), digits, spread=True),
        Column("Forget", unit, lambda r: _scored(r, r.forgetting), digits, spread=True),
        Column("worst", unit, lambda r: _scored(r, r.measured("worst_tenth")), digits),
        Column("any", unit, lambda r: _scored(r, r.measured("anytime_accuracy")), digits),
        # The same run's score with the task not known where the scenario tells it, and known where it does not.
        Column("other", unit, lambda r: _scored(r, average_accuracy(r.other_matrix)), digits),
        Column("learn", unit, lambda r: _scored(r, r.learning_score), digits),
    )


def _beside(score: Score) -> Column:
    """Return the column of another score of the same runs."""

    def of(result: Result) -> float | None:
        averages = [each.average for each in result.beside if each.score == score]
        return None if not averages or averages[0] is None else score.factor * averages[0]

    return Column(score.label, score.unit, of, score.digits)


COSTS = (
    # Of each task; with clocks of their own clients may have a task for longer or shorter, so then of the whole run.
    Column("rounds", "", lambda r: r.config["rounds"] if r.together else r.milestones[-1], 0),
    Column("grad.", "k", lambda r: r.costs["gradients_current"] / 1e3, 0),
    Column("mem.", "k", lambda r: r.costs["gradients_memory"] / 1e3, 0),
    Column("up", "MB", lambda r: r.costs["bytes_up"] / 1e6, 0),
    Column("down", "MB", lambda r: r.costs["bytes_down"] / 1e6, 0),
    Column("time", "s", lambda r: r.costs["seconds"], 0),
)


EPSILON = Column("ε", "", lambda r: r.costs.get("epsilon", inf), 2)
"""What private runs spent; a run that is not private protects nobody."""


def columns(results: Sequence[Result]) -> tuple[Column, ...]:
    """Return the columns of a table of these runs: with ε where any of them is private, with all scores they have."""
    own = score_columns(common([result.score for result in results]))
    others = tuple(_beside(score) for score in dict.fromkeys(each.score for r in results for each in r.beside))
    private = (EPSILON,) if any("epsilon" in result.costs for result in results) else ()
    return (*own, *others, *COSTS, *private)


def rows(results: Sequence[Result], beside: Sequence[Result] = ()) -> list[list[str]]:
    """Return one row per method, in the order of their first runs; `beside` are other runs of the same table."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.method, []).append(result)
    shown = columns([*results, *beside])
    return [[method, *(column.cell(group) for column in shown)] for method, group in groups.items()]


def heads(results: Sequence[Result]) -> list[str]:
    """Return the columns' headings."""
    return ["method", *(f"{c.name} {c.unit}".strip() for c in columns(results))]


def as_text(results: Sequence[Result]) -> Group:
    """Return the table for a terminal of 80 columns: in two, accuracies and costs, where it is too wide."""
    shown, cells = columns(results), rows(results)
    widths = [max(8, *(len(row[0]) for row in cells))]
    widths += [max(len(c.name), *(len(row[k]) for row in cells)) for k, c in enumerate(shown, 1)]
    every = range(1, len(widths))
    if sum(widths) + len(widths) + 1 <= TERMINAL:
        return Group(_text(shown, cells, every))
    half = 1 + next(k for k, column in enumerate(shown) if column.name == "rounds")
    return Group(_text(shown, cells, range(1, half)), _text(shown, cells, range(half, len(widths))))


def _text(shown: Sequence[Column], cells: Sequence[Sequence[str]], which: Sequence[int]) -> Table:
    """Return some columns of the table."""
    table = Table(box=box.SIMPLE_HEAD, padding=0)  # one space between columns: two would take more than 80 characters
    table.add_column("method", no_wrap=True, min_width=8)
    for k in which:
        table.add_column(f"{shown[k - 1].name}\n{shown[k - 1].unit}", justify="right", no_wrap=True)
    for row in cells:
        table.add_row(row[0], *(row[k] for k in which))
    return table


def as_markdown(results: Sequence[Result]) -> str:
    """Return the table as Markdown."""
    lines = [heads(results), ["---", *["---:"] * len(columns(results))], *rows(results)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_csv(results: Sequence[Result]) -> str:
    """Return every run on a line of its own, with plain numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "seed", *heads(results)[1:]])
    for result in results:
        values = [c.of(result) for c in columns(results)]
        writer.writerow([result.method, result.seed, *("" if v is None else round(v, 6) for v in values)])
    return text.getvalue()


def as_latex(results: Sequence[Result]) -> str:
    """Return the table as a LaTeX tabular (booktabs)."""
    body = [r" & ".join(row).replace("±", r"$\pm$").replace("_", r"\_") + r" \\" for row in rows(results)]
    head = " & ".join(heads(results)).replace("%", r"\%").replace("ε", r"$\varepsilon$") + r" \\"
    lines = [
        r"\begin{tabular}{l" + "r" * len(columns(results)) + "}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
    ]
    return "\n".join([*lines, r"\end{tabular}", ""])


def write_tables(results: Sequence[Result], stem: Path, caption: str) -> list[Path]:
    """Write the table as Markdown, CSV and LaTeX; return the files."""
    contents = {
        ".md": f"{caption}\n\n{as_markdown(results)}",
        ".csv": as_csv(results),
        ".tex": f"% {caption}\n{as_latex(results)}",
    }
    for suffix, text in contents.items():
        write_atomically(stem.with_suffix(suffix), text.encode())
    return [stem.with_suffix(suffix) for suffix in contents]
