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


def watch(root: Path, console: Console, pause: float = 0.5) -> None:
    """Show a running experiment, or all runs of a campaign, until they are finished; Ctrl-C stops only the watching."""
    folders = runs_in(root)
    if (root / "config.toml").is_file():
        _watch_run(RunFolder(root), console, pause)
    elif folders:
        _watch_runs(folders, console, pause)
    else:
        raise UserError(f"{root} holds no run to watch")


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


def _watch_runs(folders: list[Path], console: Console, pause: float) -> None:
    runs = [_Progress(RunFolder(folder)) for folder in folders]
    with Overview(console) as overview:
        overview.update(runs)
        while any(not run.folder.finished for run in runs):
            time.sleep(pause)
            overview.update(runs)
    show_results(console, [Result.load(run.folder.path) for run in runs])


class _Progress:
    """How far a run of a campaign is."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.rounds = total_rounds(folder.config())

    def done(self) -> int:
        """Return how many rounds are finished."""
        return self.folder.rounds_done()


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
