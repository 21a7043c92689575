"""Presets: TOML files that name an experiment. Each starts with a comment that says what it is."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from cflag.errors import UserError, unknown

PROTOCOL = "protocol:"
"""What the names of presets begin with that are other papers' protocols; they are in a folder of their own."""


def preset_names() -> list[str]:
    """Return the presets that come with the package."""
    return _names(files(__name__))


def protocol_names() -> list[str]:
    """Return the presets that follow other papers' protocols."""
    return [f"{PROTOCOL}{name}" for name in _names(files(__name__) / "protocols")]


def _names(folder: Traversable) -> list[str]:
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def _text(name: str) -> str:
    if name not in (known := [*preset_names(), *protocol_names()]):
        if "." in name or "/" in name:
            raise UserError(f"'{name}' is no preset, and the name of a file of yours must end in .toml")
        raise unknown("preset", name, known)
    folder = files(__name__) / "protocols" if name.startswith(PROTOCOL) else files(__name__)
    return (folder / f"{name.removeprefix(PROTOCOL)}.toml").read_text(encoding="utf-8")


def load_preset(name: str) -> dict[str, Any]:
    """Return a preset's raw values."""
    return tomllib.loads(_text(name))


def describe_preset(name: str) -> str:
    """Return the first line of a preset's opening comment."""
    return _text(name).splitlines()[0].lstrip("# ")
