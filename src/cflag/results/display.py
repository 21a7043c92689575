"""What people see in the terminal: progress during a run, tables at its end."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from cflag.problems.score import ACCURACY, Score
from cflag.results.result import Result
from cflag.results.table import as_text

MOST_ROWS = 20
"""Milestones that are printed: with clocks of their own, clients may have hundreds."""


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class PatientConsole(Console):
    """A console that survives a reader which closes the pipe, as `head` does.

    In a file or a pipe lines may be long, so that no number of a table is cut off.
    """

    def __init__(self) -> None:
        super().__init__()
        if not self.is_terminal:
            self.width = max(self.width, 160)

    def on_broken_pipe(self) -> None:
        """Print nothing from now on."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def loading(console: Console, what: str = "loading torch and the data") -> Iterator[None]:
    """Say at once that something goes on: a spinner on a terminal, elsewhere a line."""
    if console.is_terminal:
        with console.status(what):
            yield
        return
    console.print(f"{what} ...", highlight=False)
    console.file.flush()
    yield


class Display(Protocol):
    """Follows a run, round by round."""

    def start(self, name: str, tasks: int, rounds: int, done: int, own: int = 0, score: Score = ACCURACY) -> None:
        """The run begins, or goes on after `done` rounds; `own`: all rounds, where clients have clocks of their own.

        `score` is what records hold under `accuracy`.
        """
        ...

    def update(self, record: dict[str, Any]) -> None:
        """A round is finished."""
        ...

    def note(self, text: str) -> None:
        """Something happened that people may want to know."""
        ...

    def stop(self) -> None:
        """The run ended, successfully or not."""
        ...


class Quiet:
    """Shows nothing."""

    def start(self, name: str, tasks: int, rounds: int, done: int, own: int = 0, score: Score = ACCURACY) -> None:
        """Show nothing."""

    def update(self, record: dict[str, Any]) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def stop(self) -> None:
        """Show nothing."""


EVERY = 10.0
"""Seconds after which a line is due where there is no terminal, whatever is finished."""


class Bar:
    """A live progress bar on a terminal; elsewhere a line per task, or per as many rounds, and every few seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self.clock = clock
        self.progress: Progress | None = None

    def start(self, name: str, tasks: int, rounds: int, done: int, own: int = 0, score: Score = ACCURACY) -> None:
        """Start a bar for this run."""
        self.name, self.tasks, self.rounds, self.own, self.score = name, tasks, rounds, own, score
        self.said = self.clock()
        if not self.console.is_terminal:
            return
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[accuracy]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=False),
            console=self.console,
            expand=True,
        )
        self.bar = self.progress.add_task(
            self._where(done // rounds + 1, done % rounds), total=own or tasks * rounds, completed=done, accuracy=""
        )
        self.progress.start()

    def _where(self, task: int, round_: int) -> str:
        if self.own:
            return f"{self.name}  round {(task - 1) * self.rounds + round_}/{self.own}"
        return f"{self.name}  task {min(task, self.tasks)}/{self.tasks}  round {round_}/{self.rounds}"

    def update(self, record: dict[str, Any]) -> None:
        """Move on by one round."""
        accuracy = record["accuracy"]
        if self.progress is not None:
            if accuracy is not None:
                now = f"{self.score.label} {self.score.said(accuracy):>7}{_spent(record)}"
                self.progress.update(self.bar, accuracy=now)
            self.progress.update(self.bar, advance=1, description=self._where(record["task"], record["round"]))
            return
        line = self._line(record)
        if not line and self.clock() >= self.said + EVERY:
            line = self._where(record["task"], record["round"]).removeprefix(self.name).strip().replace("  ", ", ")
        if line:
            self.said = self.clock()
            so_far = (
                "" if accuracy is None else f", {self.score.text} so far {self.score.said(accuracy)}{_spent(record)}"
            )
            self.console.print(f"{self.name}: {line} done{so_far}")

    def _line(self, record: dict[str, Any]) -> str:
        """Return what is finished, where a line is due: a task, or as many rounds, or the whole run."""
        if not self.own:
            return f"task {record['task']}/{self.tasks}" if record["round"] == self.rounds else ""
        done = (record["task"] - 1) * self.rounds + record["round"]
        return f"round {done}/{self.own}" if done in (self.own, record["task"] * self.rounds) else ""

    def note(self, text: str) -> None:
        """Write a line above the bar."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def stop(self) -> None:
        """Remove the bar."""
        if self.progress is not None:
            self.progress.stop()


def _spent(record: dict[str, Any]) -> str:
    """Return ε so far, for a line that shows a private run's score."""
    return f", ε {record['epsilon']:.4g}" if "epsilon" in record else ""


class RoundsBar:
    """A bar over the rounds of several runs, on a terminal."""

    def __init__(self, console: Console, rounds: int | None = None) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total} rounds"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
            disable=not console.is_terminal,
        )
        self.bar = self.progress.add_task("", total=rounds)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advance(self, rounds: int, what: str) -> None:
        """Add finished rounds, and show what they belong to."""
        self.progress.update(self.bar, advance=rounds, description=what)


class Overview(RoundsBar):
    """The progress of several runs at once, counted again at every update; without a terminal one line per run."""

    told = 0
    began: tuple[float, int] | None = None
    """When the first update came, and how many rounds were done by then."""

    def update(self, jobs: Sequence[Any]) -> None:
        """Count the rounds that are done."""
        counts = [(job.done(), job.rounds) for job in jobs]
        self.began = self.began or (time.monotonic(), sum(done for done, _ in counts))
        done, total = sum(done for done, _ in counts), sum(rounds for _, rounds in counts)
        finished = sum(done == rounds for done, rounds in counts)
        self.progress.update(self.bar, completed=done, total=total, description=f"{finished}/{len(jobs)} runs")
        if self.progress.disable and finished > self.told:
            left = self._left(done, total)
            self.progress.console.print(
                f"{finished} of {len(jobs)} runs, {done} of {total} rounds{left}", highlight=False
            )
        self.told = finished

    def _left(self, done: int, total: int) -> str:
        """Return the time left, as the rounds done since the first update tell it."""
        since, before = self.began or (0.0, done)
        if done in (before, total):
            return ""
        return f", about {duration((time.monotonic() - since) / (done - before) * (total - done))} left"


@contextmanager
def overview(console: Console | None) -> Iterator[Callable[[Sequence[Any]], None]]:
    """Return what shows the progress of several runs, on a console or, without one, nowhere."""
    if console is None:
        yield lambda jobs: None
        return
    with Overview(console) as shown:
        yield shown.update


def matrix_table(result: Result) -> Table:
    """Return the matrix of the run's score as a table."""
    score = result.score
    title = f"{result.method}: {score.text}{score.brackets} on each task"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    unit, numbers = result.rows
    table.add_column(f"after {unit}")
    for j in range(len(result.initial_accuracy)):
        table.add_column(str(j + 1), justify="right")
    for i in shown_rows(len(numbers), result.together):
        cells = [score.shown(v) for v in result.accuracy_matrix[i]]
        dimmed = [cell if result.begun(i, j) else f"[dim]{cell}[/dim]" for j, cell in enumerate(cells)]
        table.add_row(str(numbers[i]), *dimmed)
    return table


def shown_rows(count: int, together: bool) -> list[int]:
    """Return which rows of a matrix to print: all of tasks, and of many milestones some, from the first to the last."""
    if together or count <= MOST_ROWS:
        return list(range(count))
    return [round(k * (count - 1) / (MOST_ROWS - 1)) for k in range(MOST_ROWS)]


def show_results(console: Console, results: Sequence[Result]) -> None:
    """Print matrices (of single runs), the summary, and where everything was written."""
    show_tables(console, results)
    show_files(console, results)


def show_tables(console: Console, results: Sequence[Result]) -> None:
    """Print matrices (of single runs) and the summary."""
    methods = [r.method for r in results]
    for result in results:
        if methods.count(result.method) == 1:
            console.print(matrix_table(result))
    console.print(as_text(results))
    if any(not result.together for result in results):
        known = any(result.measures.get("clients") for result in results)
        whose = "each client's own moment of leaving a task" if known else "the moment when the last client left a task"
        console.print(f"Forget, learn: from {whose}\nrounds: of the whole run", highlight=False)


def show_files(console: Console, results: Sequence[Result]) -> None:
    """Print where everything was written, and who was missing."""
    for result in results:
        if result.folder is not None:
            console.print(f"{result.method} (seed {result.seed}):", highlight=False)
            for path in written(result.folder):
                console.print(f"  {path}", highlight=False, soft_wrap=True)
            for line in absences(result):
                console.print(f"  {line}", highlight=False, soft_wrap=True)


def absences(result: Result) -> list[str]:
    """Return in how many rounds which client was missing, where clients are on other machines."""
    rounds = Counter(number for record in result.metrics for number in record.get("missing", {}))
    return [
        f"client {number} was missing in {count} of {len(result.metrics)} rounds; metrics.jsonl says why"
        for number, count in sorted(rounds.items())
    ]


def written(folder: Path) -> list[str]:
    """Return the files worth opening, with relative paths where those are shorter."""
    names = ["result.json", "metrics.jsonl", "model.safetensors"]
    names += [f"figures/{p.name}" for p in sorted((folder / "figures").glob("*.png"))]
    shown = min(os.path.relpath(folder), str(folder), key=len)
    return [f"{shown}/{name}" for name in names]
