"""A log of clients' states: one file to which every checkpoint adds the states that changed, and nothing else.

A record is a head of 64 bytes and a sealed safetensors file, encrypted where there is a key: the very content that a
file of that client's own would have, with the name it would have. The head has the client's number, the round, the
content's length and a link: the checksum of the link before it and of whose and of which round the record is. So a
checkpoint that names a log, how many of its records count, and the last link, has said which states it means, in as
many bytes for a hundred thousand clients as for ten. What a record says is sealed by itself and not part of the chain:
a sample can be taken out of it (`rewrite`) and every checkpoint that counts it stays good.

Why not SQLite: a round writes one batch and reads by client, which needs no transactions of its own, since a checkpoint
is one; a log is written once, where a write-ahead log writes all twice; nothing old hides in free pages or in a
write-ahead log; each worker appends to its own file without waiting for the others; and a changed bit is found by the
seals that states have anyway, where a changed bit in a page of an index would hide a state.

Whatever moment a process dies at, a log is whole records and at most one piece of one. Records that no checkpoint
counts are cut off when the run goes on. A record that no checkpoint needs any more is overwritten with zeros.
"""

from __future__ import annotations

import os
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cflag import cipher
from cflag.errors import DamagedError
from cflag.files import WHAT_TO_DO, opened_client_state, packed, sync_folder

NAME = re.compile(r"clients-(\d+)\.([0-9a-f]{16})\.(\d+)-(\d+)\.log")
"""How a log is called: a number of its own, the run, and the round in which it was begun."""
_HEAD = struct.Struct("<8sQIIQ32s")
_MARK = b"cflag st"
_FIRST = 64
"""So many bytes of a content that is no longer needed are overwritten last: once they are zeros, all of it is."""
_PIECE = 2**20


class Place(NamedTuple):
    """Where a client's state lies. A log may be rewritten meanwhile: then `at` is wrong, and it is looked for."""

    log: str
    at: int
    size: int
    client: int
    task: int
    round: int

    @property
    def name(self) -> str:
        """The name that a file of its own would have, which is sealed with it."""
        return state_name(self.client, f"{Path(self.log).name.split('.')[1]}.{self.task}-{self.round}")

    @property
    def when(self) -> tuple[int, int]:
        """The round that it is of."""
        return self.task, self.round

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.at + _HEAD.size + self.size

    def load(self) -> dict[str, Any]:
        """Read the state; refuse what was damaged since, and another one in its place."""
        return opened_client_state(Path(self.log) / self.name, self.name, content(self))


class Walked(NamedTuple):
    """The whole records at the beginning of a log, the link after each, and whether something else follows them."""

    places: list[Place]
    links: list[bytes]
    torn: bool


@dataclass(frozen=True)
class Tail:
    """The end of a log, where the states of one round go next."""

    path: Path
    link: bytes
    task: int
    round: int

    def name(self, client: int) -> str:
        """Return the name of a client's state of this round."""
        return Place(str(self.path), 0, 0, client, self.task, self.round).name

    def write(self, states: Iterable[tuple[int, Mapping[str, Any]]]) -> tuple[list[Place], bytes]:
        """Add states; they are safely on disk when this returns. Return where they lie, and the last link."""
        given = iter(states)
        first = next(given, None)
        if first is None:
            return [], self.link
        made = ((client, packed(self.name(client), state)) for client, state in chain([first], given))
        return append(self, ((client, self.task, self.round, cipher.encrypted(content)) for client, content in made))


def state_name(client: int, stamp: str) -> str:
    """Return the name of a client's state of a run and round."""
    return f"{client_name(client)}.{stamp}.safetensors"


def client_name(client: int) -> str:
    """Return how the names of a client's states begin."""
    return f"client-{client:05d}"


def first_link(path: Path) -> bytes:
    """Return what the first link of a log is made of: another log's records do not continue it."""
    return sha256(path.name.encode()).digest()


def _next(link: bytes, client: int, task: int, round_: int) -> bytes:
    return sha256(link + struct.pack("<QII", client, task, round_)).digest()


Record = tuple[int, int, int, bytes]
"""Whose state a record is, of which task and round, and its content."""


def append(tail: Tail, records: Iterable[Record]) -> tuple[list[Place], bytes]:
    """Add records; where the disk is full, none of them."""
    places: list[Place] = []
    link, there, start = tail.link, tail.path.exists(), 0
    try:
        with open(tail.path, "ab") as file:
            start = at = file.tell()
            for client, task, round_, made in records:
                place = Place(str(tail.path), at, len(made), client, task, round_)
                link, at = _next(link, *place[3:]), place.end
                file.write(_HEAD.pack(_MARK, *place[3:], len(made), link))
                file.write(made)
                places.append(place)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            os.truncate(tail.path, start)
        raise
    if not there:
        sync_folder(tail.path.parent)
    return places, link


def walk(path: Path) -> Walked:
    """Read the heads of a log, up to the first thing that is not a whole record."""
    places: list[Place] = []
    links: list[bytes] = []
    name, link, at = str(path), first_link(path), 0
    with _opened(path) as file:
        number, length = file.fileno(), os.fstat(file.fileno()).st_size
        while (head := _head(number, at)) is not None:
            client, task, round_, size, its = head
            link, end = _next(link, client, task, round_), at + _HEAD.size + size
            if its != link or end > length:
                break
            places.append(Place(name, at, size, client, task, round_))
            links.append(link)
            at = end
    return Walked(places, links, at < length)


def _head(file: int, at: int) -> tuple[int, int, int, int, bytes] | None:
    raw = os.pread(file, _HEAD.size, at)
    if len(raw) < _HEAD.size or not raw.startswith(_MARK):
        return None
    _, client, task, round_, size, link = _HEAD.unpack(raw)
    return client, task, round_, size, link


def counted(path: Path, count: int, link: str, walked: Walked | None = None) -> list[Place]:
    """Return the first so many records of a log; refuse one whose records are not those that a checkpoint counts."""
    places, links, _ = walked or walk(path)
    if len(places) < count:
        raise DamagedError(f"{path} is damaged: {len(places)} whole states where there were {count}; {WHAT_TO_DO}")
    if (links[count - 1] if count else first_link(path)).hex() != link:
        raise DamagedError(f"{path} is damaged: not the states that its checkpoint counts; {WHAT_TO_DO}")
    return places[:count]


def latest(places: Iterable[Place]) -> dict[int, Place]:
    """Return each client's last state."""
    found: dict[int, Place] = {}
    for place in places:
        if place.client not in found or found[place.client].when < place.when:
            found[place.client] = place
    return found


def content(place: Place) -> bytes:
    """Return a record's content, whatever it is."""
    with _opened(Path(place.log)) as file:
        there = _found(file, place)
        return os.pread(file.fileno(), there.size, there.at + _HEAD.size)


def _found(file: FileIO, place: Place) -> Place:
    """Return where a record is now in its log."""
    head = _head(file.fileno(), place.at)
    if head is not None and head[:3] == place[3:]:
        return place._replace(size=head[3])
    moved = [other for other in walk(Path(place.log)).places if other[3:] == place[3:]]
    if not moved:
        raise DamagedError(f"{place.log} is damaged: it holds no {place.name}; {WHAT_TO_DO}")
    return moved[-1]


def _opened(path: Path, mode: Literal["rb", "r+b"] = "rb") -> FileIO:
    try:
        return open(path, mode, buffering=0)
    except FileNotFoundError:
        raise DamagedError(f"{path} cannot be read: No such file or directory; {WHAT_TO_DO}") from None


def full(places: Iterable[Place]) -> list[Place]:
    """Return the records whose content is not gone because no checkpoint needed it any more."""
    found: list[Place] = []
    for log, inside in _by_log(places).items():
        with _opened(Path(log)) as file:
            for place in inside:
                there = _found(file, place)
                if any(os.pread(file.fileno(), min(there.size, _FIRST), there.at + _HEAD.size)):
                    found.append(place)
    return found


def empty(places: Iterable[Place]) -> None:
    """Overwrite contents that no checkpoint needs any more; a log that is gone needs none of it."""
    for log, inside in _by_log(places).items():
        if Path(log).exists():
            with _opened(Path(log), "r+b") as file:
                for place in inside:
                    _overwrite(file.fileno(), _found(file, place))


def _by_log(places: Iterable[Place]) -> dict[str, list[Place]]:
    found: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        found[place.log].append(place)
    return found


def _overwrite(file: int, there: Place) -> None:
    start = there.at + _HEAD.size
    for at in range(start + _FIRST, there.end, _PIECE):
        os.pwrite(file, bytes(min(_PIECE, there.end - at)), at)
    os.pwrite(file, bytes(min(_FIRST, there.size)), start)


def cut(path: Path, places: list[Place]) -> None:
    """Cut off what follows these records."""
    end = places[-1].end if places else 0
    if path.stat().st_size > end:
        os.truncate(path, end)


def copy(tail: Tail, places: Iterable[Place]) -> tuple[list[Place], bytes]:
    """Add records of other logs as they are."""
    return append(tail, ((*place[3:], content(place)) for place in places))


def rewrite(path: Path, changed: Mapping[Place, Mapping[str, Any]]) -> None:
    """Write a log anew with other states in some places; empty records lose their zeros, and a torn end is dropped.

    The new one is safely on disk before it takes the old one's place, in one step.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")

    def records() -> Iterator[Record]:
        places = walk(path).places
        needed = set(full(places))
        for place in places:
            if place in changed:
                yield (*place[3:], cipher.encrypted(packed(place.name, changed[place])))
            else:
                yield (*place[3:], content(place) if place in needed else b"")

    try:
        append(Tail(fresh, first_link(path), 0, 0), records())
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
