"""Runs that hold people's samples, and `cflag memory` on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cflag import run
from cflag.cli import main
from tests.support.crashes import Crash, stop_after
from tests.support.people import People


def stopped(people: People, out: Path, after: int = 3, **settings: Any) -> Path:
    """A run that died after some rounds: two tasks of two rounds, so after three its memories hold the first task."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(after, patch)
        with pytest.raises(Crash):
            run(None, out=out, **people.settings(**settings))
    return out


def cflag(*words: object) -> None:
    """Run a command of `cflag memory` that must not fail."""
    assert main(["memory", *map(str, words)]) == 0


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """Return what a command says as JSON."""
    capsys.readouterr()
    cflag(*words, "--json")
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one line with which a command is refused."""
    capsys.readouterr()
    assert main(["memory", *map(str, words)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said
