"""The run folder: config, metrics, checkpoint, result. Nothing in it is ever half written or silently replaced.

config.toml          the resolved config
benchmark.json       the source's name, the classes of each task, and how many samples of each every client has, where
                     that is known
experiment           the run's name, drawn once: all its state carries it
metrics.jsonl        one line per round
events.log           who was missing or came back, where clients are on other machines; a logger that broke; what a
                     method says about settings that do not fit
tensorboard/, loggers.json    with `log`: TensorBoard's events, and what loggers need to go on
checkpoint/          the server after each of the last two rounds, logs with the clients' states as of then, and the
                     test after each task
pruned.json          with `cflag tune`: why a trial was given up
result.json, model.safetensors, model.json, digests.json, figures/    once the run is finished
predict.safetensors  then, too: what the method needs beside the model to answer
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from cflag.config import Config, load_file, resolve
from cflag.data.benchmark import ClassCounts
from cflag.errors import DamagedError, UserError
from cflag.files import (
    UNSEALED,
    WHAT_TO_DO,
    json_lines,
    load_state,
    read_json,
    save_state,
    sealed,
    strict_json,
    sweep,
    write_atomically,
)  # fmt: skip
from cflag.results.digests import check_ending, write_digests
from cflag.results.drawing import FOLDER, draw, draw_run
from cflag.results.generations import Generations
from cflag.results.metrics import chained
from cflag.results.result import Result, no_run
from cflag.states.store import StateStore

if TYPE_CHECKING:
    from cflag.account import Counts

ARTIFACTS = "mlruns"
"""The folder beside the runs in which MLflow keeps copies of their files, where it has no server."""


class RunFolder:
    """One run's folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events.log"
        self.benchmark = path / "benchmark.json"
        self.name_file = path / "experiment"
        self.pruned_file = path / "pruned.json"
        self.checkpoints = path / "checkpoint"
        self.generations = Generations(self.checkpoints)
        self.states = StateStore(self.checkpoints)

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """Make a new run folder; refuse one that is already there."""
        refuse_existing(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / "config.toml", config.to_toml().encode())
        except OSError as error:
            raise UserError(f"{path} cannot be made: {error.strerror}") from None
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open a run folder that is there."""
        if not (path / "config.toml").is_file():
            raise no_run(path, "holds no run to resume: there is no config.toml in it")
        folder = cls(path)
        folder.checkpoints.mkdir(exist_ok=True)
        return folder

    @cached_property
    def name(self) -> str:
        """The run's name: drawn once, and part of the names of all state, on clients' machines, too."""
        if not self.name_file.is_file():
            write_atomically(self.name_file, secrets.token_hex(8).encode())
        name = self.name_file.read_text(errors="replace").strip()
        if not re.fullmatch(r"[0-9a-f]{16}", name):
            raise UserError(f"{self.name_file} is damaged: it should hold the run's name, 16 digits; {WHAT_TO_DO}")
        return name

    def config(self) -> Config:
        """Read the config back."""
        path = self.path / "config.toml"
        try:
            return resolve(_whole(load_file(path)))
        except UserError as error:
            raise UserError(
                f"{path}: {error} (a part of your own? name its file: --plugin FILE.py; or was the run begun by "
                "another version of cflag?)"
            ) from None

    def log_to(self, log: str, plugins: tuple[str, ...]) -> None:
        """Let a run that is not finished be logged elsewhere, too, from now on; the logger may be a plugin's."""
        config = self.config()
        if log and log != config.log and not self.finished:
            known = tuple(dict.fromkeys((*config.plugins, *plugins)))
            write_atomically(self.path / "config.toml", replace(config, log=log, plugins=known).to_toml().encode())

    def add_plugins(self, files: Sequence[str]) -> None:
        """Let the run's processes read more plugins from now on."""
        path = self.path / "config.toml"
        raw = load_file(path)
        known = list(dict.fromkeys([*raw.get("plugins", []), *files]))
        if known != raw.get("plugins", []) and not self.finished:
            write_atomically(path, tomli_w.dumps({**raw, "plugins": known}).encode())

    def describe_data(self, counts: ClassCounts, source: str = "") -> None:
        """Write down what the source calls itself and which client got how many samples of which class.

        Only where samples have a class, and unless it stands there.
        """
        if counts and self.class_counts() != counts:
            text = strict_json({"checksum": UNSEALED, "source": source, "class_counts": counts})
            write_atomically(self.benchmark, sealed(text.encode()))

    def class_counts(self) -> ClassCounts | None:
        """Return what `describe_data` wrote; None where nobody knows, as in deployments."""
        if not self.benchmark.exists():
            return None
        tasks = read_json(self.benchmark).get("class_counts")
        if tasks is None:
            raise UserError(f"{self.benchmark} is damaged: it has no class_counts; {WHAT_TO_DO}")
        return [{int(label): counts for label, counts in task.items()} for task in tasks]

    def source_name(self) -> str:
        """Return what the source calls itself; nothing where `describe_data` did not say."""
        return str(read_json(self.benchmark).get("source", "")) if self.benchmark.exists() else ""

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "result.json").is_file()

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do: the run is finished, or a search has given it up."""
        return self.finished or self.pruned_file.is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out; the system lets go of the lock when this one ends, however it ends.

        A POSIX lock, because worker processes do not inherit it and so cannot hold it longer than their parent.
        """
        with open(self.path / ".lock", "w") as file:
            for trial in range(5):
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if trial == 4:
                        raise UserError(f"{self.path} is in use by another process") from None
                    time.sleep(0.05)  # `in_use` of another process may have been looking
            sweep(self.checkpoints)
            for stem in ("benchmark", "model", "predict", "digests", "result"):  # others are not ours alone
                sweep(self.path, stem)
            yield

    def in_use(self) -> bool:
        """Whether another process runs it at the moment."""
        try:
            with open(self.path / ".lock") as file:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def append(self, record: dict[str, Any]) -> bytes:
        """Add a line to the metrics; return the line."""
        line = (strict_json(record) + "\n").encode()
        with open(self.metrics, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())  # the checkpoint that counts this line comes after it
        return line

    def rounds_done(self) -> int:
        """Return how many rounds are in the metrics."""
        return self.metrics.read_bytes().count(b"\n") if self.metrics.exists() else 0

    def say(self, text: str) -> None:
        """Add a line to the run's events: what people may want to know beside the numbers."""
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        with open(self.events, "a", encoding="utf-8") as file:
            file.write(f"{now}  {' '.join(text.split())}\n")

    def save_test(self, index: int, counts: Counts) -> None:
        """Save the test after `index` tasks, as the smallest numbers that hold its counts; sums are not rounded."""
        import torch

        if counts.is_floating_point():
            save_state(self._test_file(index), {"counts": counts})
            return
        largest = int(counts.max()) if counts.numel() else 0
        kind = torch.uint8 if largest < 2**8 else torch.int32 if largest < 2**31 else torch.int64
        save_state(self._test_file(index), {"counts": counts.to(kind)})

    def tests(self, count: int) -> Iterator[Counts]:
        """Yield the first so many tests; one that a run left behind when it was killed is not among them."""
        for index in range(count):
            counts = load_state(self._test_file(index))["counts"]
            yield counts if counts.is_floating_point() else counts.long()

    def _test_file(self, index: int) -> Path:
        return self.checkpoints / f"test-{index:05d}.{self.name}.safetensors"

    def check_test(self, index: int) -> None:
        """Refuse the test after `index` tasks if it is not what was written."""
        load_state(self._test_file(index))

    def cut_metrics(self, length: int) -> None:
        """Cut the metrics back to a checkpoint."""
        if self.metrics.exists():
            os.truncate(self.metrics, length)

    def check_metrics(self, length: int, checksum: str) -> None:
        """Refuse metrics whose lines are not those that a checkpoint counts."""
        if not self.metrics.exists() or self.metrics.stat().st_size < length:
            raise DamagedError(f"{self.metrics} is damaged: shorter than its checkpoint says; {WHAT_TO_DO}")
        found = ""
        with open(self.metrics, "rb") as file:
            while file.tell() < length and (line := file.readline()):
                found = chained(found, line)
        if found != checksum:
            raise DamagedError(f"{self.metrics} is damaged: not the lines that its checkpoint counts; {WHAT_TO_DO}")

    def finish(self, result: Result, model: dict[str, Any]) -> None:
        """Write the model, the figures, the checksums and, last of all, the result; figures drawn beside come later."""
        self.generations.keep_newest()
        self.states.finished()
        save_state(self.path / "model.safetensors", model)
        draw(draw_run, result, self.path)
        content = json_lines(result.to_dict())
        write_digests(self.path, self.name, content)
        write_atomically(self.path / "result.json", content)

    def draw_missing(self, result: Result) -> None:
        """Draw the figures of a finished run that was killed while they were drawn beside it."""
        if not (self.path / FOLDER).exists():
            draw(draw_run, result, self.path)

    def result(self) -> Result:
        """Return the result of a finished run whose files are all as they were written."""
        result = Result.load(self.path)
        if self.name_file.exists():  # earlier versions had neither names nor digests
            check_ending(self.path, self.name)
        model = self.path / "model.safetensors"
        if model.exists():  # people may have deleted it to save space
            load_state(model)
        return result


def _whole(raw: dict[str, Any]) -> dict[str, Any]:
    """Refuse an empty config: that of a run holds all keys, and defaults are not what it was begun with."""
    if not raw:
        raise UserError("it is empty; put back a copy of it")
    return raw


def new_folder(name: str, parent: Path = Path("runs")) -> Path:
    """Return runs/NAME, or runs/NAME-2 and so on where that is taken."""
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path


def runs_in(root: Path) -> list[Path]:
    """Return the run folders in a folder, at any depth, without the copies that MLflow keeps."""
    found = sorted(path.parent for path in root.rglob("config.toml"))
    return [folder for folder in found if ARTIFACTS not in folder.relative_to(root).parts]


def refuse_existing(path: Path) -> None:
    """Nothing that is already there is ever overwritten."""
    if path.exists() and (not path.is_dir() or any(not p.name.endswith(".new") for p in path.iterdir())):
        raise UserError(f"{path} already exists; choose another --out, or continue it with: cflag run --resume {path}")
