"""Watching a run of another process through its folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console

from cflag.config import Config
from cflag.data.schedules.base import own_rounds, total_rounds
from cflag.errors import UserError
from cflag.problems.base import scoring
from cflag.results.display import Bar, Display, Overview, show_results
from cflag.results.folder import RunFolder, runs_in
from cflag.results.metrics import read_line
from cflag.results.result import Result


class Follower:
    """Shows a run's rounds and events as they appear in its folder."""

    def __init__(self, folder: RunFolder, config: Config, display: Display) -> None:
        self.display = display
        self.metrics = _Tail(folder.metrics, at_end=False)
        self.events = _Tail(folder.events, at_end=True)
        self.seen = len(list(self.metrics.lines()))
        score = scoring(config.problem, config.score).score
        display.start(config.method, config.tasks, config.rounds, self.seen, own_rounds(config), score)

    def look(self) -> bool:
        """Show what is new; return whether anything was."""
        events = list(self.events.lines())
        for line in events:
            self.display.note(line.decode(errors="replace"))
        records: list[dict[str, Any]] = [read_line(line, self.metrics.path) for line in self.metrics.lines()]
        for record in records:
            self.display.update(record)
        return bool(events or records)


def watch(root: Path, console: Console, pause: float = 0.5, patience: float = 60.0) -> None:
    """Show a running experiment, or all runs of a campaign, until they are finished; Ctrl-C stops only the watching.

    What was only just started has no run yet: loading torch and pricing methods take a while.
    """
    _await_runs(root, console, pause, patience)
    if (root / "config.toml").is_file():
        _watch_run(RunFolder(root), console, pause)
    else:
        _watch_runs(root, console, pause)


def _await_runs(root: Path, console: Console, pause: float, patience: float) -> None:
    """Wait until a folder has a run in it, or as long as someone is at work in it; say that we wait."""
    until, told = time.monotonic() + patience, False
    while not runs_in(root):
        if time.monotonic() >= until and not RunFolder(root).in_use():
            raise UserError(f"{root} holds no run to watch, and in {patience:.0f} s none came")
        if not told:
            console.print(f"{root}: no run yet; waiting for one (Ctrl-C ends this)", highlight=False, soft_wrap=True)
            told = True
        time.sleep(pause)


def _watch_run(folder: RunFolder, console: Console, pause: float) -> None:
    bar = Bar(console)
    follower = Follower(folder, folder.config(), bar)
    try:
        while not folder.finished:
            follower.look()
            time.sleep(pause)
        follower.look()
    finally:
        bar.stop()
    show_results(console, [Result.load(folder.path)])


def _watch_runs(root: Path, console: Console, pause: float) -> None:
    """Follow the runs of a folder; more may come as long as someone is at work in it."""
    runs: dict[Path, _Progress] = {}
    with Overview(console) as overview:
        while True:
            at_work = RunFolder(root).in_use()
            for folder in runs_in(root):
                runs.setdefault(folder, _Progress(RunFolder(folder)))
            overview.update(list(runs.values()))
            if not at_work and all(run.folder.ended for run in runs.values()):
                break
            time.sleep(pause)
    show_results(console, [Result.load(folder) for folder, run in runs.items() if run.folder.finished])


class _Progress:
    """How far a run of a campaign is."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.rounds = total_rounds(folder.config())

    def done(self) -> int:
        """Return how many rounds are finished; none is left where a search gave the run up."""
        return self.rounds if self.folder.ended else self.folder.rounds_done()


class _Tail:
    """The whole lines added to a file since the last look, also after it was cut back."""

    def __init__(self, path: Path, at_end: bool) -> None:
        self.path = path
        self.at = path.stat().st_size if at_end and path.is_file() else 0

    def lines(self) -> list[bytes]:
        """Return the new lines."""
        if not self.path.is_file():
            return []
        if self.path.stat().st_size < self.at:  # a resumed run cuts its metrics back to the checkpoint
            self.at = self.path.stat().st_size
        with open(self.path, "rb") as file:
            file.seek(self.at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.at += len(whole)
        return whole.splitlines()
