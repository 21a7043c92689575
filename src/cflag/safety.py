"""What keeps a run safe: Ctrl-C stops it tidily, and a failure says what is kept and how to go on."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from cflag.errors import CflagError, DivergedError, InterruptedRunError, UserError

STARTER = "CFLAG_STARTER"
"""The environment variable with the process that started this one."""

_outer: threading.Event | None = None


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to stop after the current client; a second one is final.

    Inside another `stop_requests` it is the outer one's, so that a request is never lost between two runs.
    """
    global _outer
    requested = _outer or threading.Event()
    if _outer is not None or threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        requested.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
    _outer = requested
    try:
        yield requested.is_set
    finally:
        _outer = None
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def require_flower() -> Iterator[None]:
    """Say what to install where Flower is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("flwr", "ray"):
            raise
        raise UserError("this needs Flower; install it with: pip install 'cflag[flower]'") from None


@contextmanager
def explain_failures(folder: Path, command: str = "run") -> Iterator[None]:
    """Say in one line what went wrong in a run and how to go on."""
    go_on = f"continue with: cflag {command} --resume {folder}"
    try:
        yield
    except InterruptedRunError:
        raise InterruptedRunError(f"stopped; all finished rounds are saved; {go_on}") from None
    except DivergedError as error:
        raise DivergedError(f"{error}; the last good checkpoint is kept in {folder / 'checkpoint'}") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            what = f"{folder}: the disk is full ({error.strerror}); the last checkpoint is kept; free some space and"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO):
            what = f"{error.filename or folder}: {error.strerror}; what was written before is kept; mend it and"
        else:
            raise
        raise CflagError(f"{what} {go_on}") from None


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """End this process with its parent, also in the middle of its work: nobody waits for the answer any more."""
    # The starter says who it is where it can: it may be gone before this process is up.
    parent = int(os.environ.pop(STARTER, os.getppid()))  # and this one's own children have another
    _end_unless(lambda: os.getppid() == parent)


def end_with(process: int) -> None:
    """End this process with another one of this machine."""

    def exists() -> bool:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    _end_unless(exists)


def _end_unless(needed: Callable[[], bool]) -> None:
    def follow() -> None:
        while needed():
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()


def keep_freed_memory() -> None:
    """Let glibc keep what is freed: giving big buffers back and faulting them in again costs a third of a small step.

    Worker processes inherit it; other C libraries have no such switch and need none.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        trim_threshold, mmap_threshold = -1, -3  # the names these have in malloc.h
        # An older glibc takes no more than 32 MiB; without the second the first would turn its own adaptation off.
        if mallopt(mmap_threshold, 2**30) or mallopt(mmap_threshold, 2**25):
            mallopt(trim_threshold, 2**30)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: more would change the order of sums, and worker processes use the cores better.

    Also gives torch's random generator back as it was.
    """
    import torch

    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
