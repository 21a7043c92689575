"""Answers that wait for their turn: a few in memory, others in a file that has no name and ends with the process."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch
from torch import Tensor

from cflag.conversation import Reply, nbytes

ROOM = 2**28
"""Bytes of answers that wait in memory."""


@dataclass(frozen=True)
class _Span:
    """Where a tensor lies in the file, and what it is."""

    at: int
    like: Tensor
    """A tensor of the same kind and device, without numbers."""
    shape: torch.Size


class Backlog:
    """Replies by client's number, whose tensors take bounded memory, and come back as they were, bit by bit."""

    def __init__(self, folder: Path, room: float = ROOM) -> None:
        self.folder = folder
        self.room = room
        self._here: dict[int, Reply] = {}
        self._there: dict[int, Reply] = {}
        """Their tensors are spans of the file."""
        self._held = 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Backlog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def __contains__(self, number: int) -> bool:
        return number in self._here or number in self._there

    def put(self, number: int, reply: Reply) -> None:
        """Let a reply wait."""
        size = nbytes(reply.answer)
        if self._held + size <= self.room:
            self._here[number] = reply
            self._held += size
            return
        spans = {k: self._write(v) if isinstance(v, Tensor) else v for k, v in reply.answer.items()}
        self._there[number] = replace(reply, answer=spans)  # type: ignore[arg-type]

    def take(self, number: int) -> Reply:
        """Take a reply out, whose turn it is or which nobody wants."""
        if number in self._here:
            reply = self._here.pop(number)
            self._held -= nbytes(reply.answer)
            return reply
        spilled = self._there.pop(number)
        spans: dict[str, Any] = dict(spilled.answer)
        answer = {k: self._read(v) if isinstance(v, _Span) else v for k, v in spans.items()}
        if not self._there and self._file is not None:
            self._file.truncate(0)
        return replace(spilled, answer=answer)

    def _write(self, tensor: Tensor) -> _Span:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (closed in __exit__)
        at = self._file.seek(0, os.SEEK_END)
        self._file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return _Span(at, tensor.new_empty(0), tensor.shape)

    def _read(self, span: _Span) -> Tensor:
        assert self._file is not None
        self._file.seek(span.at)
        content = bytearray(self._file.read(span.shape.numel() * span.like.element_size()))
        if not content:
            return span.like.reshape(span.shape)
        return torch.frombuffer(content, dtype=span.like.dtype).reshape(span.shape).to(span.like.device)
