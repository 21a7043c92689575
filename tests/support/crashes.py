"""Runs that end where they should not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cflag import checkpoint
from cflag.results.folder import RunFolder


class Crash(BaseException):
    """Stands for the end of the process: no handler of ours runs on it."""


def stop_after(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die right after so many rounds were written down."""
    count = 0

    def counted(*args: Any) -> None:
        nonlocal count
        checkpoint.save_checkpoint(*args)
        count += 1
        if count == rounds:
            raise Crash

    monkeypatch.setattr("cflag.experiment.save_checkpoint", counted)


def stop_in(round_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die in a round, counted from one, when clients have done their part and nothing is written."""
    count = 0

    def counted(*args: Any) -> None:
        nonlocal count
        count += 1
        if count == round_:
            raise Crash
        checkpoint.save_checkpoint(*args)

    monkeypatch.setattr("cflag.experiment.save_checkpoint", counted)


def newest_checkpoint(run: Path) -> Path:
    """Return the server's last checkpoint."""
    return RunFolder(run).generations.files()[0]
