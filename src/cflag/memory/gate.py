"""The gate of a home: a round, or a client's answer, happens behind it, and so does a change to what memories hold.

So `cflag memory` can work on a folder in use: it waits for the end of the round, or of the client's answer, and
whoever runs there waits for it. POSIX locks: worker processes do not inherit them, and the system lets go of them when
a process ends, however it ends.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = ".gate"
_GATE, _TURN, _LOG = 0, 1, 2
"""Bytes of the file: the gate itself; whose turn it is, or one who comes again at once would always be first; and the
audit log, which one writes at a time."""


@contextmanager
def at_work(home: Path) -> Iterator[None]:
    """Work behind the gate; before that, let those go first who wait for it."""
    with open(home / NAME, "a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, _TURN)
        fcntl.lockf(file, fcntl.LOCK_UN, 1, _TURN)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, _GATE)
        yield


@contextmanager
def let_in(home: Path, waiting: Callable[[Path], None]) -> Iterator[None]:
    """Get in between two rounds or answers; `waiting` is told where one has to wait for that."""
    with open(home / NAME, "a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _TURN)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _GATE)
        except OSError:
            waiting(home)
            fcntl.lockf(file, fcntl.LOCK_EX, 1, _TURN)
            fcntl.lockf(file, fcntl.LOCK_EX, 1, _GATE)
        yield


@contextmanager
def log_alone(folder: Path) -> Iterator[None]:
    """Write the audit log of a folder while nobody else does."""
    with open(folder / NAME, "a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, _LOG)
        yield
