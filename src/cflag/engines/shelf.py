"""Shared memory for answers: a worker puts tensors where its parent reads them, and gets the room back afterwards.

A tensor through a pipe is copied four times, and one handed over as torch does it costs a file of its own. Here is one
file without a name, in memory where the system has a place for that, cut into boards that are used again and again.
"""

from __future__ import annotations

import mmap
import multiprocessing as mp
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cflag.conversation import Answer, Value

IN_MEMORY = Path("/dev/shm")
ROOM = 2**28
"""Bytes of answers that may wait for the parent; a worker further ahead waits, but never with fewer than two boards."""
ALIGNED = 64

Place = tuple[int, torch.dtype, tuple[int, ...]]
"""Where on its board a tensor begins, its type and its shape."""
Placed = dict[str, Place | float]
"""An answer whose tensors are on a board."""


class Shelf:
    """The boards between a worker and its parent, made before the worker is forked; then each side has its own view."""

    def __init__(self) -> None:
        where = str(IN_MEMORY) if IN_MEMORY.is_dir() else None
        self._file = tempfile.TemporaryFile(dir=where)  # noqa: SIM115 (open as long as both processes are)
        self._size = 0
        self._boards: dict[int, mmap.mmap] = {}
        """Each board by where in the file it begins."""
        self._free: list[int] = []
        self._away = 0
        self._returned, self._returns = mp.Pipe(duplex=False)

    # The worker's side ------------------------------------------------------------------------------------------------

    def put(self, answers: Sequence[Answer]) -> tuple[tuple[int, int], list[Placed]]:
        """Copy the answers' tensors onto a board; return which it is and how long, and where everything lies."""
        tensors = [value for answer in answers for value in answer.values() if isinstance(value, Tensor)]
        start = self._board(sum(_room(tensor) for tensor in tensors))
        board, offset = self._boards[start], 0
        placed: list[Placed] = []
        for answer in answers:
            here: Placed = {}
            for name, value in answer.items():
                if isinstance(value, Tensor):
                    here[name] = offset, value.dtype, tuple(value.shape)
                    _on(board, offset, value.dtype, value.numel()).copy_(value.detach().reshape(-1))
                    offset += _room(value)
                else:
                    here[name] = value
            placed.append(here)
        return (start, len(board)), placed

    def _board(self, size: int) -> int:
        """Return a board that nobody reads and that is large enough; a new one, where there is room for it."""
        while True:
            while self._returned.poll(None if self._away > 1 and self._size > ROOM and not self._fitting(size) else 0):
                self._free.append(self._returned.recv())
                self._away -= 1
            fitting = self._fitting(size)
            if fitting or self._away <= 1 or self._size <= ROOM:
                break
        if fitting:
            start = min(fitting, key=lambda board: len(self._boards[board]))
            self._free.remove(start)
        else:
            start = self._new(size)
        self._away += 1
        return start

    def _fitting(self, size: int) -> list[int]:
        return [start for start in self._free if len(self._boards[start]) >= size]

    def _new(self, size: int) -> int:
        """Make the file longer by a board."""
        start, unit = self._size, mmap.ALLOCATIONGRANULARITY
        length = max(1, -(-size // unit)) * unit
        self._size += length
        self._file.truncate(self._size)
        self._boards[start] = mmap.mmap(self._file.fileno(), length, offset=start)
        return start

    # The parent's side ------------------------------------------------------------------------------------------------

    def take(self, board: tuple[int, int], placed: Placed) -> dict[str, Value]:
        """Return an answer whose tensors are on a board; they are there until it is given back."""
        start, length = board
        if start not in self._boards:
            self._boards[start] = mmap.mmap(self._file.fileno(), length, offset=start)
        here = self._boards[start]
        return {name: _at(here, value) if isinstance(value, tuple) else value for name, value in placed.items()}

    def give_back(self, board: tuple[int, int]) -> None:
        """Let the worker use a board again."""
        self._returns.send(board[0])

    def close(self) -> None:
        """Let go of the file; tensors that are still read keep their board."""
        self._boards.clear()
        for part in (self._file, self._returned, self._returns):
            part.close()


def _room(tensor: Tensor) -> int:
    """Return the bytes that a tensor takes up, with what is lost before the next one."""
    return -(-tensor.nbytes // ALIGNED) * ALIGNED


def _at(board: mmap.mmap, place: Place) -> Tensor:
    offset, dtype, shape = place
    return _on(board, offset, dtype, torch.Size(shape).numel()).view(shape)


def _on(board: mmap.mmap, offset: int, dtype: torch.dtype, count: int) -> Tensor:
    """Return part of a board as a flat tensor."""
    return torch.frombuffer(board, dtype=dtype, count=count, offset=offset) if count else torch.empty(0, dtype=dtype)
