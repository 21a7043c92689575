"""Runs side by side, each in a process of its own: what comparisons, searches and campaigns are made of."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cflag.config import Config
from cflag.data.schedules.base import total_rounds
from cflag.errors import CflagError, DivergedError, InterruptedRunError, PrunedError, UserError
from cflag.files import read_json, write_json
from cflag.launch import carry
from cflag.loggers.attach import require_loggers
from cflag.own import Own
from cflag.process import end_with_parent, forks_can_learn, use_one_thread
from cflag.results.floors import Floors
from cflag.results.folder import RunFolder
from cflag.results.result import Result
from cflag.stopping import stop_requests

OWN_FILE = "own.json"
"""Where a folder of runs says which objects of the user's own they were made with."""


@dataclass(frozen=True)
class Job:
    """One run of several; below `floors`, accuracies after each task, it is given up."""

    folder: Path
    config: Config
    floors: tuple[float, ...] = ()

    @cached_property
    def rounds(self) -> int:
        """How many rounds it has in all."""
        return total_rounds(self.config)

    def done(self) -> int:
        """How many of them are finished; asked several times a second, so files of finished runs are not read."""
        folder = RunFolder(self.folder)
        return self.rounds if folder.ended else folder.rounds_done()


def prepare(jobs: Sequence[Job], own: Own | None = None) -> None:
    """Make the runs' folders; those that are there must belong to the same settings, and to the same objects."""
    for log in dict.fromkeys(job.config.log for job in jobs):
        require_loggers(log)
    for job in jobs:
        if own is not None and own.here_only(job.config):
            _check_own(job, own)
        if not (job.folder / "config.toml").exists():
            RunFolder.create(job.folder, job.config)
            continue
        folder = RunFolder.open(job.folder)
        if folder.config().numbers() != job.config.numbers():
            raise UserError(f"{job.folder} holds a run with other settings; choose another --out")
        folder.log_to(job.config.log, job.config.plugins)


def _check_own(job: Job, own: Own) -> None:
    """Refuse runs that were made with another source, model or method of one's own, which no config tells apart."""
    if not _can_fork(job.config):
        raise UserError(
            f"device = '{job.config.device}', engine = '{job.config.engine}': parts of your own reach other processes "
            "on device = 'cpu' and engine = 'local' only; name them in a file (plugins, model = 'net.py:Net')"
        )
    path, digest = job.folder.parent / OWN_FILE, own.digest(job.config)
    known = read_json(path) if path.exists() else {}
    key = job.folder.name
    if known.get(key, digest) != digest:
        raise UserError(f"{job.folder} was made with another source, model or method of your own; choose another out")
    if key not in known:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**known, key: digest})


@contextmanager
def held(root: Path) -> Iterator[None]:
    """Keep others out of a folder of runs, and let `cflag watch` know that someone is at work in it."""
    if (root / "config.toml").exists():
        raise UserError(f"{root} is the folder of one run, and would be mixed with others; choose another --out")
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = open(root / ".lock", "w")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise UserError(f"{root} cannot be made: {error.strerror}") from None
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{root} is in use by another process; choose another --out") from None
        yield


def stop_at_failure(job: Job, error: CflagError) -> None:
    """What a comparison does about a run that fails: a table with a hole in it would be no table."""
    raise error


def run_all(
    jobs: Sequence[Job],
    at_once: int,
    watch: Callable[[Sequence[Job]], None],
    failed: Callable[[Job, CflagError], None] = stop_at_failure,
    own: Own | None = None,
) -> list[Result]:
    """Run what has not ended, several at once, each in a process of its own; return the results there are."""
    own = own or Own()
    waiting = [job for job in jobs if not RunFolder(job.folder).ended]
    running: dict[Job, Any] = {}
    forks = _forks_can_learn(waiting, own)
    with stop_requests() as stopped, _ended(running):
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job] = _Fork(job, own) if forks and _can_fork(job.config) else _start(job)
            time.sleep(0.05)
            watch(jobs)
            if stopped():  # asked first: the runs got the same Ctrl-C, which is no failure of theirs
                raise InterruptedRunError("stopped; all finished rounds are saved; repeat the command to go on")
            for job, process in list(running.items()):
                if process.poll() is None:
                    continue
                error = _failure(job, running.pop(job))
                if error is not None:
                    failed(job, error)
    return [Result.load(job.folder) for job in jobs if RunFolder(job.folder).finished]


def _can_fork(config: Config) -> bool:
    """Whether a run may be forked, which spares it loading torch: CUDA and Ray do not survive a fork."""
    return config.device == "cpu" and config.engine == "local"


def _forks_can_learn(waiting: Sequence[Job], own: Own) -> bool:
    """Whether forks can compute gradients; refuse where only they have what the user handed over."""
    forks = bool(waiting) and forks_can_learn()
    if not forks and any(own.here_only(job.config) for job in waiting):
        raise UserError(
            "this process computed gradients, and this torch lets no fork of it do so: parts of your own reach "
            "others from a Python started anew only, or if a file has them (plugins, model = 'net.py:Net')"
        )
    return forks


def _start(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cflag", "run", "--quiet", "--resume", str(job.folder)]
    command += ["--floors", ",".join(map(repr, job.floors))] if job.floors else []
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


class _Fork:
    """A run in a process that was forked from this one, with all that was handed over in Python; like a `Popen`."""

    def __init__(self, job: Job, own: Own) -> None:
        import torch.multiprocessing as mp

        context = mp.get_context("fork")
        self.words, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_carry_forked, args=(job, own, theirs), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it has not."""
        code: int | None = self.process.exitcode
        return code

    def poll(self) -> int | None:
        """Return how it ended; None while it has not."""
        return self.returncode

    def wait(self) -> None:
        """Wait for its end."""
        self.process.join()

    def terminate(self) -> None:
        """Ask it to stop after the current client."""
        self.process.terminate()

    def communicate(self) -> tuple[str, str]:
        """Return what it said on standard output, nothing, and what it died of."""
        self.process.join()
        try:
            return "", self.words.recv() if self.words.poll() else f"it ended with exit code {self.returncode}"
        except EOFError:
            return "", f"it ended with exit code {self.returncode}"


def _carry_forked(job: Job, own: Own, words: Connection) -> None:
    """Be the process of a run; handlers of Ctrl-C and SIGTERM came along with the fork."""
    end_with_parent()
    use_one_thread()
    with open(os.devnull, "w") as nowhere:
        for stream in (1, 2):  # the parent's display is there, and tells what matters
            os.dup2(nowhere.fileno(), stream)
    try:
        folder = RunFolder.open(job.folder)
        carry(own.experiment(folder.config()), folder, Floors(folder, job.floors))
    except CflagError as error:
        words.send(str(error)[:4000])
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(InterruptedRunError.exit_code)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        words.send(f"{type(error).__name__}: {error} ({at.filename}, line {at.lineno}, in {at.name})"[:4000])
        sys.exit(1)


def _failure(job: Job, process: Any) -> CflagError | None:
    """Return what a run that has ended died of."""
    _, errors = process.communicate()
    if not process.returncode:
        return None
    last = (errors.strip().splitlines() or ["it said nothing"])[-1].removeprefix("cflag: ")
    kinds = {kind.exit_code: kind for kind in (DivergedError, PrunedError)}
    kind = kinds.get(process.returncode, CflagError)
    return kind(f"{job.config.method} with seed {job.config.seed} failed: {last}")


@contextmanager
def _ended(running: Mapping[Job, Any]) -> Iterator[None]:
    """Whatever happens, leave no process behind; a SIGTERM lets each save its state."""
    try:
        yield
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
