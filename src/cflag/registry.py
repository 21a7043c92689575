"""The registry: names a user can type, and the parts that stand behind them.

Every kind of part works the same way. A part registers itself under its name:

    @register("method", "fedprox")
    class FedProx(FedAvg): ...

It is found in a file of cflag's own folder for its kind, in another package that names it as an entry point (group
`cflag.methods`, `cflag.sources`, ...), or in a plugin: a plain Python file that `--plugin` or `plugins` names.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from cflag.errors import UserError, unknown

KINDS = {
    "method": "cflag.methods",
    "source": "cflag.data.sources",
    "scenario": "cflag.data.scenarios",
    "partition": "cflag.data.partitions",
    "schedule": "cflag.data.schedules",
    "problem": "cflag.problems",
    "model": "cflag.models",
    "memory": "cflag.memory",
    "logger": "cflag.loggers",
    "mean": "cflag.means",
    "backbone": "cflag.backbones",
    "augmentation": "cflag.augmentations",
}
"""The kinds of parts, and the packages in which cflag's own are."""

OWN_FILE = "cflag_plugin_"
"""How the names of modules begin that were files of the user's own."""

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A part that was registered: the object, one line about it, and the module that registered it."""

    thing: Any
    about: str
    module: str


_parts: dict[tuple[str, str], Part] = {}


def register(kind: str, name: str, about: str = "") -> Callable[[T], T]:
    """Register what is decorated as a part of this kind; without `about` its docstring's first line describes it."""
    if kind not in KINDS:
        raise unknown("kind of part", kind, KINDS)
    module = sys._getframe(1).f_globals["__name__"]

    def keep(thing: T) -> T:
        other = _parts[kind, name].module if (kind, name) in _parts else _index(kind).get(name, _Found(module)).module
        if other != module:
            raise UserError(f"{kind} '{name}' is registered twice: in {_where(other)} and in {_where(module)}")
        _parts[kind, name] = Part(thing, about or _first_line(thing.__doc__), module)
        return thing

    return keep


def plural(kind: str) -> str:
    """Return a kind's plural: what `cflag list` calls it, and, after `cflag.`, the group of its entry points."""
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def names(kind: str) -> list[str]:
    """Return the names of all parts of a kind, without importing them."""
    registered = [name for of, name in _parts if of == kind]
    return sorted({*_index(kind), *_entry_points(kind), *registered})


def about(kind: str, name: str) -> str:
    """Return one line about a part, without importing it (and torch)."""
    if name in _index(kind):
        return _index(kind)[name].about
    return _parts[kind, name].about if (kind, name) in _parts else "from another package"


def require(kind: str, name: str) -> None:
    """Refuse a name nobody knows, and suggest the closest one, without importing the part (and torch)."""
    if name not in names(kind):
        raise unknown(kind, name, names(kind))


def get(kind: str, name: str) -> Any:
    """Return the part behind a name; for a name nobody knows, suggest the closest one."""
    if (kind, name) not in _parts:
        if name in _index(kind):
            import_module(_index(kind)[name].module)
        elif name in _entry_points(kind):
            entry = _entry_points(kind)[name]
            try:
                thing = entry.load()
            except Exception as error:
                raise UserError(f"{kind} '{name}' of {entry.value}: {type(error).__name__}: {error}") from error
            _parts.setdefault((kind, name), Part(thing, "from another package", entry.module))
        else:
            raise unknown(kind, name, names(kind))
    return _parts[kind, name].thing


# Cflag's own files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """A part that a file will register when it is imported."""

    module: str
    about: str = ""


def _index(kind: str) -> dict[str, _Found]:
    package = import_module(KINDS[kind])
    return _scan_package(kind, KINDS[kind], tuple(package.__path__))


@cache
def _scan_package(kind: str, package: str, path: tuple[str, ...]) -> dict[str, _Found]:
    """Return what the files of a package register, by reading them: importing them would import torch."""
    files = sorted(file for folder in path for file in Path(folder).glob("*.py"))
    modules = [(file, package if file.stem == "__init__" else f"{package}.{file.stem}") for file in files]
    return {name: _Found(module, about) for file, module in modules for name, about in _scan_file(kind, file)}


def _scan_file(kind: str, file: Path) -> Iterator[tuple[str, str]]:
    """Yield the names that a file registers; the first line about the file describes a part that is alone in it."""
    text = file.read_text(encoding="utf-8")
    if not re.search(rf"""register\(\s*["']{kind}["']""", text):  # parsing the others takes longer than all the rest
        return
    tree = ast.parse(text)
    described = {
        decorator: _first_line(ast.get_docstring(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        for decorator in node.decorator_list
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _registers(node) == kind]
    for call in calls:
        given = [a for a in [*call.args[2:3], *(k.value for k in call.keywords)] if isinstance(a, ast.Constant)]
        alone = _first_line(ast.get_docstring(tree)) if len(calls) == 1 else ""
        name = call.args[1]
        assert isinstance(name, ast.Constant)
        yield str(name.value), str(given[0].value) if given else alone or described.get(call, "")


def _registers(call: ast.Call) -> str | None:
    """Return the kind of the part that a call registers, if it does."""
    named = isinstance(call.func, ast.Name) and call.func.id == "register"
    words = [a.value for a in call.args[:2] if isinstance(a, ast.Constant)]
    return str(words[0]) if named and len(words) == 2 else None


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0].rstrip(".")


# Other packages and plugins -------------------------------------------------------------------------------------------


def _entry_points(kind: str) -> dict[str, EntryPoint]:
    return _find_entry_points(f"cflag.{plural(kind)}", tuple(sys.path))


@cache
def _find_entry_points(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return what other packages register; looking through all of them takes a while, so once per path."""
    return {entry.name: entry for entry in entry_points(group=group)}


def load_plugins(files: Iterable[str | Path]) -> None:
    """Import plugin files, each once; what they register can then be used by name."""
    for file in files:
        import_file(Path(file), "plugin")


def import_file(file: Path, what: str) -> ModuleType:
    """Return a Python file of the user's own as a module, imported once; `what` it is for is said where it fails."""
    path = file.expanduser().resolve()
    name = f"{OWN_FILE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        _import_own(path, name, what)
    return sys.modules[name]


def _import_own(path: Path, name: str, what: str) -> None:
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"{what} {path}: there is no such Python file")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        for key in [key for key, part in _parts.items() if part.module == name]:
            del _parts[key]
        if isinstance(error, UserError):
            raise
        raise UserError(f"{what} {path}: {type(error).__name__}: {error}") from error


# Classes handed over in Python ----------------------------------------------------------------------------------------


def name_of(kind: str, thing: Any) -> str:
    """Return the name that a class is registered under; one that is not yet is, under its own."""
    for (of, name), part in _parts.items():
        if of == kind and part.thing is thing:
            return name
    known = _parts.get((kind, thing.__name__))
    if thing.__name__ in names(kind) and (known is None or known.module != thing.__module__):
        raise UserError(f"{kind} '{thing.__name__}' is there already: give the class another name, or register it")
    _parts[kind, thing.__name__] = Part(thing, _first_line(thing.__doc__), thing.__module__)
    return str(thing.__name__)


def only_here(kind: str, name: str) -> bool:
    """Whether a part is known to this process alone: in no file that another process would read, too."""
    if name in _index(kind) or name in _entry_points(kind) or (kind, name) not in _parts:
        return False
    return not _parts[kind, name].module.startswith(OWN_FILE)


def _where(module: str) -> str:
    """Return the file of a module that is imported, else its name."""
    return str(getattr(sys.modules.get(module), "__file__", None) or module)
