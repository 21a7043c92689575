"""Processes that tests start: run here instead where the process itself is not what is tested, and found if left."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from cflag.cli import main

COMMAND = [sys.executable, "-m", "cflag"]
"""`cflag`, as a process of this interpreter: importing torch takes it two seconds."""
GRACE = 20.0
"""How long a process that was told to end may take, in seconds."""
MARK = "CFLAG_TESTED_BY"
"""In the environment of all that tests start, so that it is found also where its parent has died."""

_popen = subprocess.Popen


class Finished:
    """What a process of `cflag` is to the one that started it, run to its end in this one."""

    def __init__(self, arguments: list[str]) -> None:
        self.errors = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(self.errors):
            self.returncode = main(arguments)

    def poll(self) -> int:
        return self.returncode

    def wait(self) -> int:
        return self.returncode

    def terminate(self) -> None:
        """Do nothing: it has ended."""

    def communicate(self) -> tuple[str, str]:
        return "", self.errors.getvalue()


def start_here(command: Any, *args: Any, **options: Any) -> Any:
    """Stand in for subprocess.Popen."""
    if list(command[:3]) == COMMAND:
        return Finished(list(command[3:]))
    return _popen(command, *args, **options)


def mark() -> None:
    """Mark what this process starts from now on."""
    os.environ[MARK] = str(os.getpid())


def left_running() -> list[str]:
    """Return the command lines of processes that were started from this one and do not end; end them."""
    deadline = time.monotonic() + GRACE
    while (found := started()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # Ray's agents notice only after a while that what they served is gone: that is Ray's affair, not a leak of ours.
    # Python's fork server stays until the process that used it ends.
    theirs = ("ray::", "from multiprocessing.forkserver import")
    return [words for words in found.values() if not any(word in words for word in theirs)]


def started() -> dict[int, str]:
    """Return the living processes that were started from this one, by id (on Linux; none elsewhere).

    They carry its mark, or were forked from it and so have the environment that it was started with.
    """
    mark, found = f"{MARK}={os.getpid()}".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            ours = int(parent) == os.getpid() or mark in (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if ours and state != "Z" and "multiprocessing.resource_tracker" not in words:
                found[int(folder.name)] = words
    return found


@contextmanager
def background(command: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in the background, and stop it."""
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[2], env=env
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_for(there: Callable[[], bool], what: str) -> None:
    """Wait until something is there, two minutes at most."""
    end = time.monotonic() + 120
    while not there():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.2)
