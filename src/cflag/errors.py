"""Errors a person may see: one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class CflagError(Exception):
    """Something went wrong while working; the command line ends with exit code 1."""

    exit_code = 1


class UserError(CflagError):
    """The input cannot be used as it is; the command line ends with exit code 2."""

    exit_code = 2


class DamagedError(UserError):
    """A file of ours is gone, or not what was written."""


class DataError(UserError):
    """A data set's files are missing, damaged, or not what they should be."""


class DivergedError(CflagError):
    """A client's loss or answer is no longer finite; the command line ends with exit code 3."""

    exit_code = 3


class PrunedError(CflagError):
    """A trial of a search was given up; the command line ends with exit code 4."""

    exit_code = 4


class InterruptedRunError(CflagError):
    """The run was stopped by Ctrl-C; it can be resumed."""

    exit_code = 130


ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # titles, links, clipboard
    r"|\x1b[ -/]*[0-~]"
)
"""What a terminal takes for a command."""


def one_line(text: object, longest: int = 400) -> str:
    """Return what someone else says as one printable line: no escape sequences, no control characters, no end to it."""
    plain = ESCAPES.sub("", str(text)[: 10 * longest])
    words = "".join(c if c.isprintable() else " " for c in plain).split()
    line = " ".join(words)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that something does not fit into memory; PyTorch has no kind of its own for that."""
    words = ("allocate memory", "out of memory", "calculation overflow", "multiplication overflow")
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(w in str(error) for w in words))


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name nobody knows, with the closest known name or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
    return UserError(f"unknown {kind} '{name}'; {hint}")
