"""Lanes: the ways to a host, in this process or in a worker process. What goes in and comes out is the same.

One lane is always here: a process that only waited for the others would cost each round a process's wake-ups, which is
what a round of small clients is about as long as.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, Protocol

import torch
import torch.multiprocessing as mp
from torch import Tensor

from cflag.conversation import Answer, Reply, nbytes
from cflag.engines.bundles import Bundle, Note, note_of, reply_of
from cflag.engines.host import Host
from cflag.engines.shelf import ROOM, Board, Placed, Shelf
from cflag.errors import CflagError
from cflag.process import allowed_cores, collect_rarely, end_with_parent, this_core, use_one_thread

SMALL = 2**17
"""Bytes up to which a tensor goes through the pipe itself."""

Noted = tuple[Placed, Note | Bundle]
"""A reply whose tensors are on a board of the shelf."""


class Lane(Protocol):
    """Send a host one command, then receive its replies one by one.

    An answer's tensors are whoever's they are, and good until the next reply is asked for.
    """

    def send(self, command: str, *args: Any) -> None:
        """Start a command."""
        ...

    def receive(self) -> Any:
        """Return its next reply."""
        ...

    def waits(self) -> bool:
        """Say whether the next reply is still to come, from elsewhere."""
        ...

    def close(self) -> None:
        """Stop whatever stands behind this lane."""
        ...


class HereLane:
    """A host in this process; it works on clients when a reply is asked for, or while others keep us waiting."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.replies: Iterator[Any] = iter(())
        self.ahead: deque[Any] = deque()
        self._held = 0

    def send(self, command: str, *args: Any) -> None:
        """Start a command."""
        self.close()
        self.replies = (reply for came in getattr(self.host, command)(*args) for reply in _several(came))

    def receive(self) -> Any:
        """Return its next reply."""
        if not self.ahead:
            return next(self.replies)
        reply = self.ahead.popleft()
        self._held -= _size(reply)
        return reply

    def work_ahead(self) -> bool:
        """Make one more reply before its turn; say whether there was one to make, and room for it."""
        if self._held > ROOM:
            return False
        for reply in self.replies:
            self.ahead.append(copied(reply))
            self._held += _size(reply)
            return True
        return False

    def waits(self) -> bool:
        """Nothing here comes from elsewhere."""
        return False

    def close(self) -> None:
        """Drop what is left undone."""
        self.replies, self._held = iter(()), 0
        self.ahead.clear()


class WorkerLane:
    """A host in a worker process of its own, forked from this one, on one thread; `apart` keeps it off our core."""

    def __init__(self, host: Host, number: int, apart: bool = False) -> None:
        self.number = number
        self.cores = allowed_cores() if apart else set()
        self.left_to_us: int | None = None
        context = mp.get_context("fork")
        self.connection, theirs = context.Pipe()
        ours = self.connection
        self.shelf = Shelf()
        self.board: Board | None = None
        self.replies: deque[Any] = deque()
        self.process = context.Process(target=_work, args=(host, theirs, ours, self.shelf), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, command: str, *args: Any) -> None:
        """Start a command."""
        self._leave_us_our_core()
        try:
            _send(self.connection, (command, args))
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None

    def _leave_us_our_core(self) -> None:
        """Let the worker run anywhere but here, since this process is about to compute.

        Linux leaves a process that we wake on our core where cores were busy of late, although another one is idle
        now: a round of milliseconds is over, one client after the other, before it looks again.
        """
        core = this_core()
        if core != self.left_to_us and self.process.pid and self.cores - {core}:
            with suppress(OSError):  # it has just died, or may not be told where to run
                os.sched_setaffinity(self.process.pid, self.cores - {core})
            self.left_to_us = core

    def receive(self) -> Any:
        """Return its next reply, or raise what went wrong over there."""
        while not self.replies:
            self._fetch()
        reply = self.replies.popleft()
        return reply if self.board is None or reply is None else _read(self.shelf, self.board, reply)

    def waits(self) -> bool:
        """Say whether the next reply is still to come."""
        return not self.replies and not self.connection.poll()

    def _fetch(self) -> None:
        """Wait for more replies; those before are read by now, and their board is free."""
        if self.board is not None:
            self.shelf.give_back(self.board)
            self.board = None
        try:
            came = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._died() from None
        if isinstance(came, BaseException):
            raise came
        self.board, replies = came
        self.replies.extend(replies)

    def close(self) -> None:
        """Stop the worker at once: what it held is saved, or will be computed again."""
        self.connection.close()
        self.process.kill()  # one that only just started would take a SIGTERM for a request to stop, and wait for ever
        self.process.join()
        self.shelf.close()

    def _died(self) -> CflagError:
        self.process.join(timeout=5)
        code = self.process.exitcode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return CflagError(f"worker process {self.number} ended unexpectedly ({how}); is there enough memory?")


def _work(host: Host, connection: Connection, parents: Connection, shelf: Shelf) -> None:
    """Carry out commands in a worker process until the pipe closes."""
    parents.close()  # or this worker would keep its own pipe open after the parent's death
    sys.excepthook = _lost_parent
    end_with_parent()
    collect_rarely()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    use_one_thread()
    while True:
        try:
            command, args = connection.recv()
            for came in getattr(host, command)(*args):
                _send(connection, _written(shelf, _several(came)))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            os._exit(0)
        except (CflagError, OSError) as error:  # what the parent explains to the user, such as a full disk
            connection.send(error)
        except Exception:  # a defect: show the parent where
            connection.send(RuntimeError(f"in a worker process:\n{traceback.format_exc()}"))


def _lost_parent(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Be silent if a thread that hands tensors over notices the parent's end before `end_with_parent` does."""
    if not issubclass(kind, EOFError | ConnectionError):
        sys.__excepthook__(kind, error, trace)


class _Pickler(ForkingPickler):
    """Sends small tensors by value; handing over shared memory, as torch does, costs more than copying them."""

    def reducer_override(self, thing: Any) -> Any:
        """Say how to send a thing, or leave it to torch."""
        if isinstance(thing, Tensor) and thing.device.type == "cpu" and thing.nbytes <= SMALL:
            return torch.from_numpy, (thing.detach().numpy(),)
        return NotImplemented


def _send(connection: Connection, what: Any) -> None:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(what)
    connection.send_bytes(buffer.getbuffer())


def _several(came: Any) -> list[Any]:
    """Return replies that come together as they are, and one that comes by itself in a list."""
    return came if isinstance(came, list) else [came]


def copied(reply: Any) -> Any:
    """Return a reply with tensors of its own: those it has may be the learner's, which the next client overwrites."""
    if isinstance(reply, Bundle):
        return replace(reply, total=_own(reply.total))
    return replace(reply, answer=_own(reply.answer)) if isinstance(reply, Reply) else reply


def _own(answer: Answer) -> Answer:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in answer.items()}


def _size(reply: Any) -> int:
    """Return how many bytes a reply's tensors take."""
    if isinstance(reply, Bundle):
        return nbytes(reply.total)
    return nbytes(reply.answer) if isinstance(reply, Reply) else 0


def _written(shelf: Shelf, replies: Sequence[Any]) -> tuple[Board | None, Sequence[Any]]:
    """Return replies as they travel: a client's with its tensors on the shelf, others as they are."""
    answered = [reply for reply in replies if isinstance(reply, Reply | Bundle)]
    if not answered:
        return None, replies
    board, placed = shelf.put([reply.answer if isinstance(reply, Reply) else reply.total for reply in answered])
    noted = iter([(place, _beside(reply)) for reply, place in zip(answered, placed, strict=True)])
    return board, [None if reply is None else next(noted) for reply in replies]


def _beside(reply: Reply | Bundle) -> Note | Bundle:
    """Return what travels beside the tensors."""
    return note_of(reply) if isinstance(reply, Reply) else replace(reply, total={})


def _read(shelf: Shelf, board: Board, noted: Noted) -> Reply | Bundle:
    placed, beside = noted
    answer = shelf.take(board, placed)
    return replace(beside, total=answer) if isinstance(beside, Bundle) else reply_of(beside, answer)
