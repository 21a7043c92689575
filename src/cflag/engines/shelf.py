"""Shared memory for answers: a worker puts tensors where its parent reads them, and gets the room back afterwards.

A tensor through a pipe is copied four times, and one handed over as torch does it costs a file of its own. Here is one
file without a name, in memory where the system has a place for that, cut into boards that are used again and again.
That place may be small (64 MB in a container, unless told otherwise): boards that do not fit are in a file on disk,
which is memory, too, as long as there is some.
"""

from __future__ import annotations

import errno
import mmap
import multiprocessing as mp
import os
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

Board = tuple[int, int, int]
"""The file that a board is in, where it begins there, and how long it is."""
Place = tuple[int, torch.dtype, tuple[int, ...]]
"""Where on its board a tensor begins, its type and its shape."""
Placed = dict[str, Place | float]
"""An answer whose tensors are on a board."""


class Shelf:
    """The boards between a worker and its parent, made before the worker is forked; then each side has its own view."""

    def __init__(self) -> None:
        where = [IN_MEMORY] if IN_MEMORY.is_dir() else []
        self._files = [tempfile.TemporaryFile(dir=folder) for folder in (*where, None)]  # noqa: SIM115 (they stay open)
        self._boards: dict[Board, mmap.mmap] = {}
        self._free: list[Board] = []
        self._away = 0
        self._returned, self._returns = mp.Pipe(duplex=False)

    # The worker's side ------------------------------------------------------------------------------------------------

    def put(self, answers: Sequence[Answer]) -> tuple[Board, list[Placed]]:
        """Copy the answers' tensors onto a board; return which it is, and where everything lies."""
        tensors = [value for answer in answers for value in answer.values() if isinstance(value, Tensor)]
        board = self._board(sum(_room(tensor) for tensor in tensors))
        memory, offset = self._boards[board], 0
        placed: list[Placed] = []
        for answer in answers:
            here: Placed = {}
            for name, value in answer.items():
                if isinstance(value, Tensor):
                    here[name] = offset, value.dtype, tuple(value.shape)
                    _on(memory, offset, value.dtype, value.numel()).copy_(value.detach().reshape(-1))
                    offset += _room(value)
                else:
                    here[name] = value
            placed.append(here)
        return board, placed

    def _board(self, size: int) -> Board:
        """Return a board that nobody reads and that is large enough; a new one, where there is room for it."""
        full = sum(length for _, _, length in self._boards) > ROOM
        while not (fitting := self._returned_and_fitting(size)) and full and self._away > 1:
            self._returned.poll(None)
        board = min(fitting, key=lambda board: board[2]) if fitting else self._new(size)
        if fitting:
            self._free.remove(board)
        self._away += 1
        return board

    def _returned_and_fitting(self, size: int) -> list[Board]:
        """Take boards back that were read; return those that are large enough."""
        while self._returned.poll():
            self._free.append(self._returned.recv())
            self._away -= 1
        return [board for board in self._free if board[2] >= size]

    def _new(self, size: int) -> Board:
        """Make a file longer by a board: the first one that has room for it."""
        unit = mmap.ALLOCATIONGRANULARITY
        length = max(1, -(-size // unit)) * unit
        for which, file in enumerate(self._files):
            start = os.fstat(file.fileno()).st_size
            try:
                _lengthen(file.fileno(), start, length)
                return self._open((which, start, length))
            except OSError as error:
                os.ftruncate(file.fileno(), start)
                if error.errno != errno.ENOSPC or file is self._files[-1]:
                    raise
        raise AssertionError("there is always a last file")

    def _open(self, board: Board) -> Board:
        which, start, length = board
        self._boards[board] = mmap.mmap(self._files[which].fileno(), length, offset=start)
        return board

    # The parent's side ------------------------------------------------------------------------------------------------

    def take(self, board: Board, placed: Placed) -> dict[str, Value]:
        """Return an answer whose tensors are on a board; they are there until it is given back."""
        here = self._boards[board if board in self._boards else self._open(board)]
        return {name: _at(here, value) if isinstance(value, tuple) else value for name, value in placed.items()}

    def give_back(self, board: Board) -> None:
        """Let the worker use a board again."""
        self._returns.send(board)

    def close(self) -> None:
        """Let go of the files; tensors that are still read keep their board."""
        self._boards.clear()
        for file in self._files:
            file.close()
        self._returned.close()
        self._returns.close()


def _lengthen(file: int, start: int, length: int) -> None:
    """Make a file longer, with pages behind it: a page that is missing when it is written to would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, start, length)
    else:
        os.ftruncate(file, start + length)


def _room(tensor: Tensor) -> int:
    """Return the bytes that a tensor takes up, with what is lost before the next one."""
    return -(-tensor.nbytes // ALIGNED) * ALIGNED


def _at(board: mmap.mmap, place: Place) -> Tensor:
    offset, dtype, shape = place
    return _on(board, offset, dtype, torch.Size(shape).numel()).view(shape)


def _on(board: mmap.mmap, offset: int, dtype: torch.dtype, count: int) -> Tensor:
    """Return part of a board as a flat tensor."""
    return torch.frombuffer(board, dtype=dtype, count=count, offset=offset) if count else torch.empty(0, dtype=dtype)
