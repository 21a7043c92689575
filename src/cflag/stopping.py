"""How a run stops early: Ctrl-C stops it cleanly, and a failure says what is kept and how to continue."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from cflag.errors import CflagError, DivergedError, InterruptedRunError, out_of_memory

_outer: threading.Event | None = None


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to stop after the current client; a second one is final.

    Nested inside another `stop_requests` it shares the outer one's request, so that none is lost between two runs.
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
def explain_failures(folder: Path, command: str = "run") -> Iterator[None]:
    """Say in one line what went wrong in a run and how to continue."""
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
            what = f"{error.filename or folder}: {error.strerror}; what was written before is kept; fix it and"
        else:
            raise
        raise CflagError(f"{what} {go_on}") from None
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        what = "out of memory; the last checkpoint is kept; with fewer workers, or other work ended,"
        raise CflagError(f"{folder}: {what} {go_on}") from None
