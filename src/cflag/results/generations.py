"""The server's checkpoints of the last two rounds. Where the last one is damaged, the one before it is the last good.

A checkpoint is a file `server.RUN.TASK-ROUND.safetensors`, written in one step; it names the logs in which clients'
states are as of then, and how much of each counts. A log that no checkpoint names is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cflag.errors import DamagedError, UserError
from cflag.files import load_state, save_state
from cflag.states.store import Named

KEPT = 2
_NAME = re.compile(r"server\.([0-9a-f]{16})\.(\d+)-(\d+)\.safetensors")
State = dict[str, Any]


class Generations:
    """Checkpoints in one folder, the newest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._named: dict[Path, Named] = {}
        """The logs that each checkpoint names, the newest first."""
        self._there: set[str] = set()

    def runs(self) -> set[str]:
        """Return the names of the runs whose checkpoints are here."""
        return {_parts(path)[0] for path in self.files()}

    def files(self) -> list[Path]:
        """Return the checkpoints, the newest first."""
        if (self.folder / "server.safetensors").exists():
            raise UserError(f"{self.folder.parent} was begun by another version of cflag; start a new run")
        found = [path for path in self.folder.glob("server.*") if _NAME.fullmatch(path.name)]
        return sorted(found, key=_round, reverse=True)

    def save(self, stamp: str, state: State) -> None:
        """Write the checkpoint of a round, then drop what neither it nor the one before it names."""
        path = self.folder / f"server.{stamp}.safetensors"
        save_state(path, state)
        self._keep({path: _states(state)} | {p: n for p, n in self._named.items() if p != path}, KEPT)

    def load(self, check: Callable[[State, str], None]) -> tuple[State | None, str]:
        """Return the newest checkpoint that is whole, None where there is none, and what is wrong with a newer one.

        `check` is given a checkpoint and its stamp, RUN.TASK-ROUND.
        """
        wrong: list[DamagedError] = []
        files = self.files()
        self._there = {
            file.name for file in self.folder.glob("clients-*.log")
        }  # a run that was killed may have left some
        self._named = {path: {} for path in files}
        for k, path in enumerate(files):
            try:
                state = load_state(path)
                check(state, path.name.removeprefix("server.").removesuffix(".safetensors"))
            except DamagedError as error:
                wrong.append(error)
                continue
            self._keep({path: _states(state)} | _readable(files[k + 1 :]), KEPT)
            return state, str(wrong[0]) if wrong else ""
        if wrong:
            raise wrong[0]
        self._keep({}, 0)
        return None, ""

    def before(self) -> list[Named]:
        """Return the logs that checkpoints before the newest name."""
        return list(self._named.values())[1:]

    def keep_newest(self) -> None:
        """Drop all that the newest checkpoint does not name: there is nothing to go back for any more."""
        self._keep(self._named, 1)

    def _keep(self, named: dict[Path, Named], count: int) -> None:
        before, self._named = self._named, dict(list(named.items())[:count])
        for path in before.keys() - self._named.keys():
            path.unlink(missing_ok=True)
        wanted = set().union(*self._named.values())
        for name in self._there - wanted:
            (self.folder / name).unlink(missing_ok=True)
        self._there = wanted


def _states(state: State) -> Named:
    return dict(state["states"])


def _readable(files: list[Path]) -> dict[Path, Named]:
    """Return what older checkpoints name, as far as they can be read."""
    named = {}
    for path in files:
        with suppress(DamagedError):
            named[path] = _states(load_state(path))
    return named


def _parts(path: Path) -> tuple[str, int, int]:
    """Return the run, the task and the round in a checkpoint's name."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return match[1], int(match[2]), int(match[3])


def _round(path: Path) -> tuple[int, int]:
    return _parts(path)[1:]
