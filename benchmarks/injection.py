"""Faults at file operations: the n-th one kills the process, or finds the disk full; and bits that flip."""

from __future__ import annotations

import builtins
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

Strike = Callable[[], None]
_PLACES = (("os.replace", os, "replace"), ("os.fsync", os, "fsync"), ("os.unlink", os, "unlink"),
           ("os.pwrite", os, "pwrite"))  # fmt: skip


class Operations:
    """While it is entered, counts what changes files, and strikes at the n-th operation, or at each from then on.

    A file is opened for writing, written, synced, put in its place or removed. A write that is struck has written half.
    """

    def __init__(self, at: int, strike: Strike, goes_on: bool = False) -> None:
        self.at = at
        self.strike = strike
        self.goes_on = goes_on
        self.count = 0
        self._kept: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Operations:
        for _, owner, name in _PLACES:
            self._replace(owner, name, self._struck(getattr(owner, name)))
        self._replace(os, "truncate", self._struck(os.truncate))
        self._replace(builtins, "open", self._opened(open))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for owner, name, original in self._kept:
            setattr(owner, name, original)

    def hit(self) -> bool:
        """Count an operation; tell whether it is struck."""
        self.count += 1
        return self.count == self.at or (self.goes_on and self.count > self.at)

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        self._kept.append((owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    def _struck(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def struck(*args: Any, **options: Any) -> Any:
            if self.hit():
                self.strike()
            return call(*args, **options)

        return struck

    def _opened(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if not set(mode) & set("wax"):
                return call(file, mode, *args, **options)
            if self.hit():
                self.strike()
            return _Written(call(file, mode, *args, **options), self)

        return opened


class _Written:
    """A file that is being written, whose writes count."""

    def __init__(self, file: Any, operations: Operations) -> None:
        self._file = file
        self._operations = operations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, content: Any) -> Any:
        """Write, or write half and be struck."""
        if self._operations.hit():
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            self._operations.strike()
        return self._file.write(content)


def disk_full() -> None:
    """What the system says when there is no space."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")


def flip_bit(path: Path, draw: random.Random) -> tuple[bytes, bytes]:
    """Change one bit of a file; return what it was and what it is now."""
    whole = path.read_bytes()
    damaged = bytearray(whole)
    bit = draw.randrange(8 * len(whole))
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    return whole, bytes(damaged)
