"""Names a user can type, and what stands behind them."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cflag.errors import unknown

if TYPE_CHECKING:
    from cflag.methods.base import Method


class Registry:
    """Maps a name to (`module:object`, one line about it); imports the module only when asked for the object."""

    def __init__(self, kind: str, entries: Mapping[str, tuple[str, str]]) -> None:
        self.kind = kind
        self.entries = dict(entries)

    def names(self) -> list[str]:
        """Return all names in the order they were written down."""
        return list(self.entries)

    def describe(self, name: str) -> str:
        """Return the one line about a name."""
        return self.entries[name][1]

    def get(self, name: str) -> Any:
        """Return the object behind a name, or raise an error that suggests the closest one."""
        if name not in self.entries:
            raise unknown(self.kind, name, self.entries)
        module, _, attribute = self.entries[name][0].partition(":")
        return getattr(import_module(module), attribute)


@cache
def _others(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the methods that other packages register; looking through all packages takes a while, so once a path."""
    return {entry.name: entry for entry in entry_points(group="cflag.methods")}


def method_names() -> list[str]:
    """Return every method: one file each in `cflag/methods`, and those that other packages register."""
    import cflag.methods

    ours = [m.name for m in pkgutil.iter_modules(cflag.methods.__path__) if m.name != "base"]
    return sorted({*ours, *_others(tuple(sys.path))})


def describe_method(name: str) -> str:
    """Return the first line of a method's docstring, read without importing it (and torch)."""
    import cflag.methods

    file = Path(cflag.methods.__path__[0]) / f"{name}.py"
    if not file.exists():
        return "from another package"
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


def get_method(name: str) -> type[Method]:
    """Return a method's class by its name."""
    from cflag.methods.base import Method

    if name not in method_names():
        raise unknown("method", name, method_names())
    if name in _others(tuple(sys.path)):
        return cast("type[Method]", _others(tuple(sys.path))[name].load())
    module = import_module(f"cflag.methods.{name}")
    return next(
        c
        for c in vars(module).values()
        if isinstance(c, type) and issubclass(c, Method) and c.__module__ == module.__name__
    )
