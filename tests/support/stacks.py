"""Runs of several small clients, with and without a stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cflag import run
from tests.support.quick import without_times

SEVEN: dict[str, Any] = {"tasks": 2, "rounds": 2, "steps": 3, "clients": 7, "zeta": 0.3, "workers": 1, "batch": 16}


def everything(folder: Path) -> tuple[bytes, Any]:
    """Return the model, and all that clients logged on the way there."""
    return (folder / "model.safetensors").read_bytes(), without_times(folder)


def twice(tmp_path: Path, preset: str = "digits", **options: Any) -> None:
    """Run with and without a stack; both must be the same."""
    for stack in (1, 5):
        run(preset, out=tmp_path / str(stack), **{**SEVEN, **options, "stack": stack})
    assert everything(tmp_path / "1") == everything(tmp_path / "5")
