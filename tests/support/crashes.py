"""Runs that end where they should not."""

from __future__ import annotations

from typing import Any

import pytest

from cflag.experiment import Experiment


class Crash(BaseException):
    """Stands for the end of the process: no handler of ours runs on it."""


def stop_after(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Experiment._checkpoint
    count = 0

    def counted(self: Experiment, *args: Any) -> None:
        nonlocal count
        original(self, *args)
        count += 1
        if count == rounds:
            raise Crash

    monkeypatch.setattr(Experiment, "_checkpoint", counted)
