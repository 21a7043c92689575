"""Where memories are on disk: run folders, and the state folders of a fleet's clients.

A home is a run folder or a client's `--state`. In it are stores, folders with clients' states: `checkpoint/` of a run,
with logs of many clients' states, and one for each experiment of a client, with files of its own. A store may hold
several generations of a client's state.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cflag import registry
from cflag.data.options import ScheduleOptions
from cflag.data.samples import Samples
from cflag.data.schedules.base import Frame, Schedule
from cflag.errors import DamagedError, UserError
from cflag.files import WHAT_TO_DO, load_state, opened_state, read_bytes, read_json, save_states
from cflag.states import log
from cflag.states.log import Place

FILE = re.compile(r"client-(\d+)\.([0-9a-f]{16})\.(\d+)-(\d+)\.safetensors")
_SERVER = re.compile(r"server\.[0-9a-f]{16}\.(\d+)-(\d+)\.safetensors")
_EXPERIMENT = re.compile(r"[0-9a-f]{16}")
_FIELDS = {field.name for field in fields(Samples)}
_INNER = ("deployment", "simulation")
"""The folders in a run folder with the clients that the run itself started."""
_COPIES = "mlruns"
"""The folder beside runs in which MLflow keeps copies of their files; they hold no memories."""
MOST = 10**9
"""As many rounds or days as anybody may name; what is larger does not fit into a tensor of ages."""
Limits = tuple[int, float]
"""For how many rounds and for how many days a sample may be kept; 0 is no limit."""
PARTS = ("memory.", "state.")
"""Where samples may be in a client's state: its memory, and what its method keeps."""


def today() -> date:
    """Return the day, the same for everybody on earth."""
    return datetime.now(UTC).date()


@dataclass(frozen=True)
class Store:
    """One folder of clients' states."""

    path: Path
    config_file: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The experiment's settings, as they stand in its file."""
        try:
            return tomllib.loads(read_bytes(self.config_file).decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{self.config_file}: not a readable TOML file ({error})") from None

    @property
    def rounds(self) -> int:
        """How many rounds a task has."""
        return int(self._number("rounds", self.config.get("rounds"), 1, whole=True))

    @property
    def limits(self) -> Limits:
        """The experiment's own limits to how long a sample is kept."""
        own = self.config.get("memory", {})
        if not isinstance(own, dict):
            raise UserError(f"{self.config_file}: memory = {own!r} must be a table of settings; correct it")
        rounds = self._number("memory.expire_rounds", own.get("expire_rounds", 0), 0, whole=True)
        return int(rounds), self._number("memory.expire_days", own.get("expire_days", 0), 0, whole=False)

    def _number(self, name: str, value: object, least: int, whole: bool) -> float:
        """Return a number of the config; people may have edited the file."""
        kinds: tuple[type, ...] = (int,) if whole else (int, float)
        if type(value) not in kinds or not is_between(value, least):
            kind = "whole number" if whole else "number"
            raise UserError(f"{self.config_file}: {name} = {value!r} must be a {kind} from {least}; correct it")
        assert isinstance(value, int | float)
        return value

    def done(self) -> int:
        """Return how many rounds are finished; a client of a fleet knows which one it was last asked in."""
        if self.path.name == "checkpoint":  # the metrics have a line more while a round is being written down
            found = [_SERVER.fullmatch(path.name) for path in self.path.glob("server.*")]
            return max(((int(m[1]) - 1) * self.rounds + int(m[2]) for m in found if m), default=0)
        status = self.path / "status.json"
        if not status.is_file():
            return 0
        where = read_json(status)
        try:
            return (int(where["task"]) - 1) * self.rounds + int(where["round"]) - 1
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{status} is damaged: it does not say how far the client is; {WHAT_TO_DO}") from None

    def ends(self, client: int) -> Tensor:
        """Return after how many rounds a client leaves each task, by its own clock."""
        return torch.tensor(self._schedule.ends(client))

    @cached_property
    def _schedule(self) -> Schedule:
        """The experiment's schedule, as its plain settings make it."""
        own = self.config.get("schedule", {})
        own = own if isinstance(own, dict) else {"kind": own}
        kind: type[Schedule] = registry.get("schedule", str(own.get("kind", ScheduleOptions.kind)))
        known = {name: own[name] for name in (field.name for field in fields(kind.Settings)) if name in own}
        settings = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
        numbers = {name: int(self._number(name, self.config.get(name), 1, whole=True)) for name in ("clients", "tasks")}
        seed = int(self._number("seed", self.config.get("seed"), 0, whole=True))
        made = kind(kind.Settings(**settings), Frame(**numbers, rounds=self.rounds, seed=seed))
        try:
            made.plan.check()
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.config_file}: its schedule cannot be read ({error}); correct it") from None
        return made

    def files(self) -> list[Path]:
        """Return the files with clients' states, of all generations."""
        found = [path for path in self.path.glob("client-*.safetensors") if FILE.fullmatch(path.name)]
        return sorted([*found, *self._logs()])

    def _logs(self) -> list[Path]:
        return [path for path in self.path.glob("clients-*.log") if log.NAME.fullmatch(path.name)]

    def holdings(self) -> list[Holding]:
        """Read all states; where a running process replaces one meanwhile, look again."""
        return self._steady(lambda: [where.read() for where in self._states()])

    def newest(self) -> list[Holding]:
        """Read each client's newest state."""

        def read() -> list[Holding]:
            latest = {where.client: where for where in sorted(self._states(), key=lambda where: where.when)}
            return [latest[number].read() for number in sorted(latest)]

        return self._steady(read)

    def _steady(self, read: Callable[[], list[Holding]]) -> list[Holding]:
        for _ in range(20):
            before = self._look()
            try:
                return read()
            except (UserError, FileNotFoundError):
                if self._look() == before:
                    raise
        raise UserError(f"{self.path} changes faster than it can be read; try again")

    def _look(self) -> list[tuple[Path, int, int, int]]:
        """Return what changes when a file does."""
        seen = []
        for path in self.files():
            with suppress(FileNotFoundError):
                about = path.stat()
                seen.append((path, about.st_ino, about.st_size, about.st_mtime_ns))
        return seen

    def _states(self) -> list[Where]:
        """Return where the states are; what no checkpoint needs any more is empty, and none."""
        files = [Where(path) for path in self.files() if FILE.fullmatch(path.name)]
        walked = {path: log.walk(path) for path in sorted(self._logs())}
        for path in [path for path, found in walked.items() if found.torn]:
            self._refuse_cut(path, len(walked[path].places))
        places = log.full(place for found in walked.values() for place in found.places)
        return [*files, *(Where(Path(place.log) / place.name, place) for place in places)]

    def _refuse_cut(self, path: Path, whole: int) -> None:
        """Refuse a log whose end is not whole though a checkpoint counts it: it may hold anything."""
        counts = [0]
        for server in [found for found in self.path.glob("server.*") if _SERVER.fullmatch(found.name)]:
            with suppress(DamagedError):  # nobody goes on from a damaged checkpoint
                counts += load_state(server).get("states", {}).get(path.name, [])[:1]
        if max(counts) > whole:
            raise DamagedError(f"{path} is damaged: {whole} whole states where there were {max(counts)}; {WHAT_TO_DO}")

    def leftovers(self) -> list[Path]:
        """Return what a process that was killed left half written; behind the gate nobody writes."""
        return sorted(self.path.glob("client*.new"))

    def torn(self) -> list[Path]:
        """Return the logs at the end of which it did."""
        return sorted(path for path in self._logs() if log.walk(path).torn)


def is_between(value: Any, least: float) -> bool:
    """Whether a number is one that rounds and days can be compared with."""
    return least <= value <= MOST and isfinite(value)


def homes(folder: Path) -> list[Path]:
    """Return the homes in a folder: a run with the clients it started, a client's state, or several, at any depth."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    if (folder / "config.toml").is_file():
        return _homes_of_run(folder)
    found = _found(folder, {folder.resolve()})
    if not found:
        raise UserError(f"{folder} holds no memory: it is neither a run folder nor the --state folder of a client")
    return found


def _found(folder: Path, seen: set[Path]) -> list[Path]:
    """Return the homes in a folder, each once: what is in a run is the run's, and a link may lead anywhere."""
    if (folder / "config.toml").is_file() and any((folder / name).exists() for name in ("checkpoint", "experiment")):
        return _homes_of_run(folder)  # other programs have a config.toml, too: nothing is written beside theirs
    if _experiments(folder):
        return [folder]
    found: list[Path] = []
    folders = [path for path in folder.iterdir() if path.is_dir() and path.name != _COPIES]
    for inner in sorted(folders, key=lambda path: (path.is_symlink(), path)):
        if (real := inner.resolve()) not in seen:
            seen.add(real)
            found += _found(inner, seen)
    if not found and (folder / ".lock").exists():  # a client that was not asked yet
        return [folder]
    return found


def _homes_of_run(folder: Path) -> list[Path]:
    """Return a run folder and those of the clients in it; refuse what would be searched in vain."""
    if _EXPERIMENT.fullmatch(folder.name) and not (folder / "checkpoint").is_dir():
        raise UserError(f"{folder} is one experiment of a client; give the client's --state folder, {folder.parent}")
    inner = [path for name in _INNER for path in sorted((folder / name).glob("client-*"))]
    clients = [path for path in inner if path.is_dir()]
    if not clients and is_server(folder):
        raise UserError(f"{folder} is a server's: memories are at its clients; do it there, with their --state folders")
    return [folder, *clients]


def is_server(home: Path) -> bool:
    """Whether a home is a server's run, whose memories are at its clients."""
    return (home / "config.toml").is_file() and stores(home)[0].config.get("engine") == "flower"


def logged_in(home: Path) -> list[Path]:
    """Return the folders whose audit log tells of a home: its own and, of a client that a run started, the run's."""
    run = home.absolute().parent.parent
    return [home, run] if home.absolute().parent.name in _INNER else [home]


def stores(home: Path) -> list[Store]:
    """Return the folders with state files in a home."""
    if (home / "config.toml").is_file():
        return [Store(home / "checkpoint", home / "config.toml")]
    return [Store(path, path / "config.toml") for path in _experiments(home)]


def _experiments(home: Path) -> list[Path]:
    return sorted(p for p in home.iterdir() if _EXPERIMENT.fullmatch(p.name) and (p / "config.toml").is_file())


@dataclass(frozen=True)
class Where:
    """Where a state is: in a file, or in a place of a log, as if that were a folder."""

    path: Path
    place: Place | None = None

    @property
    def file(self) -> Path:
        """The file on disk."""
        return self.path if self.place is None else Path(self.place.log)

    @property
    def client(self) -> int:
        """Whose state it is."""
        return int(self._match[1])

    @property
    def when(self) -> tuple[int, int]:
        """Of which task and round, or at which question, it was made."""
        return int(self._match[3]), int(self._match[4])

    @property
    def _match(self) -> re.Match[str]:
        match = FILE.fullmatch(self.path.name)
        assert match is not None
        return match

    def read(self) -> Holding:
        """Read the state."""
        content = read_bytes(self.path) if self.place is None else log.content(self.place)
        return Holding(self, opened_state(self.path, self.path.name, content))


def write(holdings: Sequence[Holding]) -> None:
    """Put these in the place of the states of one file: the new one is safely on disk before the old one goes."""
    (file,) = {holding.where.file for holding in holdings}
    in_log = {h.where.place: h.state for h in holdings if h.where.place is not None}
    if in_log:
        log.rewrite(file, in_log)
    else:
        save_states([(holding.path, holding.state) for holding in holdings])


@dataclass(frozen=True)
class Holding:
    """What one state holds."""

    where: Where
    state: dict[str, Any]

    @property
    def path(self) -> Path:
        """Where it is, for people."""
        return self.where.path

    @property
    def client(self) -> int:
        """Whose state it is."""
        return self.where.client

    @property
    def samples(self) -> Samples | None:
        """The memory's samples."""
        return dict(self.parts()).get("memory.")

    @property
    def dates(self) -> dict[str, str]:
        """The day on which each task's samples were taken."""
        return dict(self.state.get("dates", {}))

    def parts(self) -> Iterator[tuple[str, Samples]]:
        """Yield the samples in the client's memory and, where it keeps some, in its method's state."""
        for prefix in PARTS:
            tensors = {k: v for k, v in self._rows(prefix).items() if k in _FIELDS}
            if {"x", "y", "task"} <= set(tensors):
                yield prefix, Samples(**tensors)

    def _rows(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors of a part that have a row for each sample."""
        tensors = {k.removeprefix(prefix): v for k, v in self.state.items() if k.startswith(prefix)}
        count = len(tensors["y"]) if isinstance(tensors.get("y"), Tensor) else -1
        return {k: v for k, v in tensors.items() if isinstance(v, Tensor) and v.dim() and len(v) == count}

    def without(self, gone: dict[str, Tensor]) -> Holding:
        """Return the same without some samples of its parts; a part of which none are left is as if never filled."""
        state = dict(self.state)
        for prefix, mask in gone.items():
            for name, rows in self._rows(prefix).items():
                state.pop(prefix + name)
                if not bool(mask.all()):
                    state[prefix + name] = rows[~mask]
        left = Holding(self.where, state)
        tasks = set() if left.samples is None else {str(task) for task in left.samples.task.unique().tolist()}
        if "dates" in state:
            state["dates"] = {task: day for task, day in self.dates.items() if task in tasks}
        return left

    def nbytes(self) -> int:
        """Return what the samples take."""
        return sum(t.nbytes for _, samples in self.parts() for t in samples.tensors().values())


def age_in_rounds(task: Tensor, ends: Tensor, done: int) -> Tensor:
    """Return for how many rounds samples of these tasks are kept: from when their client left each task."""
    return (done - ends[task]).clamp(min=0)


def age_in_days(task: Tensor, dates: dict[str, str], day: date) -> Tensor:
    """Return for how many days samples of these tasks are kept; -1 where nobody wrote the day down."""
    ages = {int(t): (day - date.fromisoformat(taken)).days for t, taken in dates.items()}
    return torch.tensor([ages.get(t, -1) for t in task.tolist()], dtype=torch.long)
