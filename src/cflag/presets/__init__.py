"""Presets: TOML files that name an experiment. Each starts with a comment that says what it is."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from cflag.errors import unknown


def preset_names() -> list[str]:
    """Return the presets that come with the package."""
    return sorted(p.name.removesuffix(".toml") for p in files(__name__).iterdir() if p.name.endswith(".toml"))


def _text(name: str) -> str:
    if name not in preset_names():
        raise unknown("preset", name, preset_names())
    return (files(__name__) / f"{name}.toml").read_text(encoding="utf-8")


def load_preset(name: str) -> dict[str, Any]:
    """Return a preset's raw values."""
    return tomllib.loads(_text(name))


def describe_preset(name: str) -> str:
    """Return the first line of a preset's opening comment."""
    return _text(name).splitlines()[0].lstrip("# ")
