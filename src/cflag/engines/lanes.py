"""Lanes: the ways to a host, in this process or in a worker process. What goes in and comes out is the same."""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, Protocol

import torch
import torch.multiprocessing as mp
from torch import Tensor

from cflag.conversation import Reply
from cflag.engines.host import Host
from cflag.errors import CflagError
from cflag.process import end_with_parent

SMALL = 2**17
"""Bytes up to which a tensor goes through the pipe itself; several such answers fit into it without a reader."""


class Lane(Protocol):
    """Send a host one command, then receive one reply for each client named in it."""

    def send(self, command: str, *args: Any) -> None:
        """Start a command."""
        ...

    def receive(self) -> Any:
        """Return its next reply."""
        ...

    def close(self) -> None:
        """Stop whatever stands behind this lane."""
        ...


class HereLane:
    """A host in this process; it works on a client when its reply is asked for."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.replies: Iterator[Any] = iter(())

    def send(self, command: str, *args: Any) -> None:
        """Start a command."""
        self.replies = getattr(self.host, command)(*args)

    def receive(self) -> Any:
        """Return its next reply."""
        return next(self.replies)

    def close(self) -> None:
        """Drop what is left undone."""
        self.replies = iter(())


class WorkerLane:
    """A host in a worker process of its own, forked from this one, on one thread."""

    def __init__(self, host: Host, number: int) -> None:
        self.number = number
        context = mp.get_context("fork")
        self.connection, theirs = context.Pipe()
        ours = self.connection
        self.process = context.Process(target=_work, args=(host, theirs, ours), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, command: str, *args: Any) -> None:
        """Start a command."""
        try:
            _send(self.connection, (command, args))
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None

    def receive(self) -> Any:
        """Return its next reply, or raise what went wrong over there."""
        try:
            reply = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._died() from None
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def close(self) -> None:
        """Stop the worker at once: what it held is saved, or will be computed again."""
        self.connection.close()
        self.process.terminate()
        self.process.join()

    def _died(self) -> CflagError:
        self.process.join(timeout=5)
        code = self.process.exitcode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return CflagError(f"worker process {self.number} ended unexpectedly ({how}); is there enough memory?")


def _work(host: Host, connection: Connection, parents: Connection) -> None:
    """Carry out commands in a worker process until the pipe closes."""
    parents.close()  # or this worker would keep its own pipe open after the parent's death
    sys.excepthook = _lost_parent
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    while True:
        try:
            command, args = connection.recv()
            for reply in getattr(host, command)(*args):
                _send(connection, _detached(reply))
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


def _detached(reply: Any) -> Any:
    """Copy an answer's large tensors: they may be the learner's own, which the next client overwrites."""
    if not isinstance(reply, Reply):
        return reply
    answer = {k: v.clone() if isinstance(v, Tensor) and v.nbytes > SMALL else v for k, v in reply.answer.items()}
    return replace(reply, answer=answer)
