"""Runs that end where they should not."""

from __future__ import annotations

from typing import Any

import pytest

from cflag import checkpoint


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
