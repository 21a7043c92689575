"""Watching a run that another process carries: its folder tells all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cflag.config import Config
from cflag.results.display import Display
from cflag.results.folder import RunFolder


class Follower:
    """Shows a run's rounds and events as they appear in its folder."""

    def __init__(self, folder: RunFolder, config: Config, display: Display) -> None:
        self.display = display
        self.metrics = _Tail(folder.metrics, at_end=False)
        self.events = _Tail(folder.events, at_end=True)
        self.seen = len(list(self.metrics.lines()))
        display.start(config.method, config.tasks, config.rounds, self.seen)

    def look(self) -> bool:
        """Show what is new; say whether anything was."""
        events = list(self.events.lines())
        for line in events:
            self.display.note(line)
        records: list[dict[str, Any]] = [json.loads(line) for line in self.metrics.lines()]
        for record in records:
            self.display.update(record)
        return bool(events or records)


class _Tail:
    """The whole lines that were added to a file since the last look; starts over where it was cut."""

    def __init__(self, path: Path, at_end: bool) -> None:
        self.path = path
        self.at = path.stat().st_size if at_end and path.is_file() else 0

    def lines(self) -> list[str]:
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
        return whole.decode().splitlines()
