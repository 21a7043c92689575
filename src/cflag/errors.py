"""Errors a person may see: one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CflagError(Exception):
    """Something went wrong while working; the command line ends with exit code 1."""

    exit_code = 1


class UserError(CflagError):
    """The input cannot be used as it is; the command line ends with exit code 2."""

    exit_code = 2


class DataError(UserError):
    """A data set's files are missing, damaged, or not what they should be."""


class DivergedError(CflagError):
    """A client's loss or answer is no longer finite; the command line ends with exit code 3."""

    exit_code = 3


class InterruptedRunError(CflagError):
    """The run was stopped by Ctrl-C; it can be resumed."""

    exit_code = 130


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name nobody knows, with the closest known name or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
    return UserError(f"unknown {kind} '{name}'; {hint}")
