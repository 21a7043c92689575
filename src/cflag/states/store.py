"""The clients' states of one run: in which log each lies, as of the last checkpoint and of the one before it.

The store belongs to the process that carries the run. Workers append to logs, each to its own (`Tail`), and read any
(`Place`); the store keeps the index, which is made of the logs' heads when a run is resumed and never written. After a
checkpoint, contents that neither it nor the one before it needs are overwritten. Where more than half of the bytes are
such, the states that count are copied to a new log, and the old ones go with the last checkpoint that names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cflag.errors import DamagedError
from cflag.states import log
from cflag.states.log import Place, Tail, Walked

LEAST = 2**20
"""Below so many bytes that are no longer needed, logs are left as they are."""
Named = Mapping[str, Sequence[Any]]
"""What a checkpoint says of the states: for each log how many records count, and the last link."""


@dataclass
class _Log:
    """What the store knows of a log."""

    count: int
    link: bytes
    size: int


class StateStore:
    """Where the states of all clients are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clear()

    def _clear(self) -> None:
        self.index: dict[int, Place] = {}
        self._logs: dict[str, _Log] = {}
        self._tails: list[str] = []
        """The logs that grow, one for each worker."""
        self._live = 0
        self._needed_before: list[Place] = []
        """What the checkpoint before the last one needs, and the last one does not."""
        self._superseded: list[Place] = []
        """What the last checkpoint needs, and the next one will not."""

    def get(self, client: int) -> Place | None:
        """Return where a client's state lies; None for one that never changed."""
        return self.index.get(client)

    def tails(self, stamp: str, count: int) -> list[Tail]:
        """Return so many logs to append the states of a round to, at once."""
        while len(self._tails) < count:
            self._tails.append(self._begin(stamp))
        task, round_ = _round(stamp)
        return [Tail(self.folder / name, self._logs[name].link, task, round_) for name in self._tails[:count]]

    def _begin(self, stamp: str) -> str:
        number = 0
        while (name := f"clients-{number}.{stamp}.log") in self._logs:
            number += 1
        path = self.folder / name
        path.unlink(missing_ok=True)  # no checkpoint names it
        self._logs[name] = _Log(0, log.first_link(path), 0)
        return name

    def take(self, tail: Tail, places: Sequence[Place], link: bytes) -> None:
        """Note what was appended to a log."""
        known = self._logs[tail.path.name]
        known.count, known.link = known.count + len(places), link
        for place in places:
            known.size += place.size
            self._live += place.size
            if (old := self.index.get(place.client)) is not None:
                self._live -= old.size
                self._superseded.append(old)
            self.index[place.client] = place

    def compact(self, stamp: str) -> bool:
        """Copy the states that count to a new log where the others take more; say whether that was so."""
        spent = sum(known.size for known in self._logs.values()) - self._live
        if spent <= max(self._live, LEAST):
            return False
        name = self._begin(stamp)
        whole = [self.index[client] for client in sorted(self.index)]
        fresh = self._logs[name]
        places, link = log.copy(Tail(self.folder / name, fresh.link, 0, 0), whole)
        self.index = {place.client: place for place in places}
        self._live = sum(place.size for place in places)
        self._logs, self._tails = {name: _Log(len(places), link, self._live)}, [name]
        return True

    def named(self) -> dict[str, list[Any]]:
        """Return what a checkpoint says of the states as they are."""
        return {name: [known.count, known.link.hex()] for name, known in self._logs.items() if known.count}

    def checkpointed(self) -> None:
        """Drop what was only needed by a checkpoint that is now gone: there is a newer one, and one before that."""
        log.empty(self._needed_before)
        self._needed_before, self._superseded = self._superseded, []

    def finished(self) -> None:
        """Drop all that the last checkpoint does not need."""
        log.empty([*self._needed_before, *self._superseded])
        self._needed_before, self._superseded = [], []

    def restore(self, named: Named, before: Iterable[Named]) -> None:
        """States are from now on what a checkpoint says; those that another one before it needs stay readable."""
        self._clear()
        places: list[Place] = []
        walked = {name: log.walk(self.folder / name) for name in sorted(named)}
        for name in walked:
            count, link = named[name]
            found = log.counted(self.folder / name, count, link, walked[name])
            log.cut(self.folder / name, found)
            places += found
            self._logs[name] = _Log(count, bytes.fromhex(link), sum(place.size for place in found))
        self._tails = sorted(self._logs)
        self.index = log.latest(places)
        self._live = sum(place.size for place in self.index.values())
        live = set(self.index.values())
        earlier = {place for other in before for place in _latest(self.folder, other, walked).values()}
        dead = [place for place in places if place not in live]
        self._needed_before = [place for place in dead if place in earlier]
        log.empty(log.full(place for place in dead if place not in earlier))


def _latest(folder: Path, named: Named, walked: Mapping[str, Walked]) -> dict[int, Place]:
    """Return each client's state as of a checkpoint, as far as it can be read."""
    places: list[Place] = []
    for name, (count, link) in named.items():
        with suppress(DamagedError):
            places += log.counted(folder / name, count, link, walked.get(name))
    return log.latest(places)


def check(folder: Path, named: Named, stamp: str) -> None:
    """Refuse what a checkpoint says of the states if something that was written with it is damaged.

    Records that are older than it are looked at when they are needed: the checkpoint before it counts them, too. Those
    that were copied with it, to make room, it does not.
    """
    for name, (count, link) in named.items():
        places = log.counted(folder / name, count, link)
        for place in places if name.endswith(f".{stamp}.log") else [p for p in places if p.when == _round(stamp)]:
            place.load()


def _round(stamp: str) -> tuple[int, int]:
    """Return the task and the round in a stamp, RUN.TASK-ROUND."""
    task, round_ = stamp.split(".")[1].split("-")
    return int(task), int(round_)
