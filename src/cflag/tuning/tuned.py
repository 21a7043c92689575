"""What a search found: tables, a picture, and a file that `cflag compare --tuned` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from cflag import registry
from cflag.config import load_file
from cflag.errors import UserError
from cflag.files import write_atomically
from cflag.pricing import Budget
from cflag.results.result import Result
from cflag.results.table import as_pandas, printed
from cflag.tuning.search import Trial, best_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 5
"""Trials that a method's table has, beside that of the file's own values."""


@dataclass(frozen=True)
class Tuning:
    """How values were found: what makes two tuned files comparable."""

    preset: str
    trials: int
    seed: int
    budget: Budget
    parallel: int = 4
    validation: float = 0.2


@dataclass(frozen=True)
class Tuned:
    """A search's trials, and what the best of them come to on the test half: print it, plot it, or use `best`."""

    tuning: Tuning
    trials: dict[str, list[Trial]]
    """Every method's, in the order in which they were asked for: the first has the file's own values."""
    tests: dict[str, tuple[Result | None, Result | None]]
    """Every method's runs with the file's own and with the best values, all training samples and the test half; None
    where training diverged."""
    folder: Path

    @property
    def best(self) -> dict[str, dict[str, Any]]:
        """Every method's best settings; the file's own where nothing was better."""
        return {method: dict(best_of(trials).settings) for method, trials in self.trials.items()}

    def unbeaten(self) -> list[str]:
        """Return the methods whose own values in the file nothing beat."""
        return [method for method, trials in self.trials.items() if best_of(trials) is trials[0]]

    def tables(self) -> RenderableType:
        """Return the tables for a terminal: each method's best trials, then own and tuned values on the test half."""
        lines = [f"{method}: nothing beat the file's own values, which are kept" for method in self.unbeaten()]
        lines += [
            f"{method}: the tuned values are better on held-out training samples, but not on the test half"
            for method, (own, best) in self.tests.items()
            if _worth(best) < _worth(own)
        ]
        tables: list[RenderableType] = []
        for method, trials in self.trials.items():
            tables += [f"{method}: the best of {len(trials)} trials, by held-out training samples"]
            tables += [_trials_table(trials)]
        return Group(
            *tables, f"{_score(self.trials)} of the file's own values and of the best", self._summary(), *lines
        )

    def _summary(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("method")
        for name in ("own", "best", "own, test", "best, test", "given up"):
            table.add_column(name, justify="right")
        for method, trials in self.trials.items():
            tests = (None if test is None else test.average_score for test in self.tests[method])
            found = map(trials[0].score.shown, (trials[0].value, best_of(trials).value, *tests))
            given_up = sum(trial.state == "given up" for trial in trials)
            table.add_row(method, *found, f"{given_up} of {len(trials)}")
        return table

    def __str__(self) -> str:
        return printed(self.tables())

    def plot(self) -> Figure:
        """Return a matplotlib figure of the search: the score against each setting, and the best so far."""
        from cflag.tuning.figure import draw_search

        return draw_search(self.trials)

    def records(self) -> list[dict[str, Any]]:
        """Return every trial as a dict: method, number, state, the score by its name, and its settings."""
        return [
            {"method": t.method, "trial": t.number, "state": t.state, t.score.name: t.value, **t.settings}
            for trials in self.trials.values()
            for t in trials
        ]

    def to_pandas(self) -> Any:
        """Return the same as a pandas DataFrame, where pandas is installed."""
        return as_pandas(self.records())


def _worth(result: Result | None) -> float:
    """Return a result's score, the higher the better; of a run that diverged there is none."""
    return -inf if result is None else result.score.sign * result.average_score


def _score(trials: Mapping[str, Sequence[Trial]]) -> str:
    """Return what is scored, with its unit: the same for all methods."""
    score = next(iter(trials.values()))[0].score
    return f"{score.label} {score.unit}".strip()


def _trials_table(trials: Sequence[Trial]) -> Table:
    """Return a method's best trials, and that of the file's own values."""
    names = list(trials[0].settings)
    table = Table(box=box.SIMPLE_HEAD)
    for head in ("trial", _score({"": trials}), *names):
        table.add_column(head, justify="right")
    table.add_column("")
    finished = sorted((t for t in trials if t.state == "finished"), key=lambda t: -t.worth)
    shown = finished[:SHOWN]
    for trial in [*shown, *([] if trials[0] in shown else trials[:1])]:
        values = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in trial.settings.values()]
        state = "" if trial.state == "finished" else trial.state
        note = "the file's own" if trial is trials[0] else ""
        table.add_row(str(trial.number), trial.score.shown(trial.value), *values, " ".join(filter(None, (note, state))))
    return table


def write_tuned(path: Path, tuning: Tuning, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the found values as TOML, one table per method."""
    text = tomli_w.dumps({"tuning": vars(tuning), **{method: dict(values) for method, values in found.items()}})
    write_atomically(path, text.encode())


def load_tuned(paths: Sequence[Path], methods: Sequence[str], seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Read tuned values for a comparison; refuse what would make it unfair."""
    found: dict[str, dict[str, Any]] = {}
    trials: dict[int, Path] = {}
    for path in paths:
        tables = load_file(path)
        tuning = tables.pop("tuning", None)
        if not isinstance(tuning, dict) or not all(isinstance(tuning.get(key), int) for key in ("trials", "seed")):
            raise UserError(f"{path}: not a file that 'cflag tune' wrote: it has no [tuning] table")
        if tuning["seed"] in seeds:
            raise UserError(f"{path} was tuned on seed {tuning['seed']}, which the table must not use; drop it")
        trials[tuning["trials"]] = path
        for method in set(found) & set(tables):
            raise UserError(f"{path}: '{method}' was tuned in another file, too; which one holds?")
        found.update(tables)
    if len(trials) > 1:
        uneven = ", ".join(f"{path}: {count}" for count, path in trials.items())
        raise UserError(f"every method must be tuned with the same number of trials ({uneven})")
    for method in methods:
        if method not in found and registry.get("method", method).search_space:
            raise UserError(f"{', '.join(map(str, paths))}: '{method}' was not tuned; run 'cflag tune {method} ...'")
    return {method: found[method] for method in methods if method in found}
