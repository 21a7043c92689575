"""The source tree as a graph of imports: its rooms, their order, and a picture of them.

A room is a package or a module right under `src/cflag`; the Flower engine is a room of its own. The rooms lie in
layers, and a room imports only from layers below its own. `python -m tests.support.imports` draws the picture anew.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeGuard

from cflag import _HOMES
from tests.support.drawing import draw

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cflag"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"

Statement = ast.Import | ast.ImportFrom | ast.Attribute
Kind = Literal["top", "lazy", "type"]
"""When an import runs: with its file, when a function is called, or never (under `if TYPE_CHECKING:`)."""


@dataclass(frozen=True)
class Layers:
    """Rooms from low to high. Rooms of one layer do not import each other."""

    inside: str
    rows: tuple[tuple[str, ...], ...]

    def room(self, module: str) -> str | None:
        """Return the room that a module is in: of two that fit, as engines and engines.flower, the inner one."""
        within = [room for row in self.rows for room in row if f"{module}.".startswith(f"{self.inside}.{room}.")]
        return max(within, key=len, default=None)

    def level(self, room: str) -> int:
        """Return the layer of a room, from 0."""
        return next(level for level, row in enumerate(self.rows) if room in row)

    def between(self, imports: Iterable[Import]) -> list[tuple[str, str, Import]]:
        """Return the imports from one room by another, as importing room, imported room, import."""
        ends = [(self.room(i.importer), self.room(i.imported), i) for i in imports]
        return [(a, b, i) for a, b, i in ends if a is not None and b is not None and a != b]

    def against(self, imports: Iterable[Import]) -> list[tuple[str, str, Import]]:
        """Return the imports that do not point to a lower layer."""
        return [(a, b, i) for a, b, i in self.between(imports) if self.level(b) >= self.level(a)]


ROOMS = Layers(
    "cflag",
    (
        ("errors", "process", "rng"),
        ("cipher", "stopping", "registry", "diagnostics", "ranges"),
        ("files", "problems", "values"),
        ("data", "models", "conversation", "augmentations", "states"),
        ("memory", "learning", "means", "backbones"),
        ("privacy",),
        ("client", "server", "account"),
        ("methods", "presets", "checks"),
        ("config",),
        ("build",),
        ("results",),
        ("engines", "loggers"),
        ("engines.flower", "session"),
        ("checkpoint",),
        ("experiment",),
        ("own", "transfer", "theory", "report", "export"),
        ("launch", "pricing"),
        ("jobs",),
        ("comparison", "paper"),
        ("tuning",),
        ("commands",),
        ("cli",),
        ("__main__", "flower_process"),
    ),
)

UPWARD_TYPES = {("learning", "client"), ("learning", "server"), ("checks", "config")}
"""Rooms that may name a room above them in annotations: what a client, a server or a config hands to what it calls."""

FLOWER = Layers(
    "cflag.engines.flower",
    (
        ("environment", "messages", "private", "sealed"),
        ("identity", "trail"),
        ("client", "server"),
        ("processes",),
    ),
)
"""Inside the Flower engine: client and server share what travels and nothing else, and know nothing of processes."""


@dataclass(frozen=True)
class Import:
    """One module imports another, in a line of a file."""

    importer: str
    imported: str
    kind: Kind
    file: Path
    line: int

    def __str__(self) -> str:
        shown = self.file.relative_to(ROOT) if self.file.is_relative_to(ROOT) else self.file
        return f"{shown}:{self.line}: {self.importer} imports {self.imported}"


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Return the modules and packages of a source tree with their files."""
    files = {path.relative_to(source.parent).with_suffix(""): path for path in sorted(source.rglob("*.py"))}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in files.items()}


def read_imports(source: Path = SOURCE) -> list[Import]:
    """Return what the modules of a source tree import from each other, by reading them.

    `cflag/__init__.py` imports the public names when they are first used. It is left out, and a public name counts as
    an import of its own module. What the registry imports is left out, too: the user names it.
    """
    known = modules(source)
    found = {
        Import(name, imported, kind, path, node.lineno): None
        for name, path in known.items()
        if name != "cflag"
        for node, kind in _statements(ast.parse(path.read_text(encoding="utf-8")), "top")
        for named in _named(node, known, f"{path}:{node.lineno}")
        for imported in _loaded(named, name)
    }
    return list(found)


def _statements(tree: ast.AST, kind: Kind) -> Iterator[tuple[Statement, Kind]]:
    """Yield the imports of a file, and `cflag.run` and the like, which import what they name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_public_name(node):
            yield node, kind
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _statements(ast.Module(node.body, []), "type")
            yield from _statements(ast.Module(node.orelse, []), kind)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and kind == "top":
            yield from _statements(node, "lazy")
        else:
            yield from _statements(node, kind)


def _is_public_name(node: ast.AST) -> TypeGuard[ast.Attribute]:
    if not isinstance(node, ast.Attribute) or node.attr not in _HOMES:
        return False
    return isinstance(node.value, ast.Name) and node.value.id == "cflag"


def _named(node: Statement, known: Collection[str], where: str) -> Iterator[str]:
    """Yield the modules of ours that a statement names."""
    if isinstance(node, ast.Attribute):
        yield _HOMES[node.attr]
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
        return
    assert not node.level, f"{where}: write the import in full"
    for alias in node.names:
        name = f"{node.module}.{alias.name}"
        if name in known:
            yield name
        elif node.module == "cflag":
            yield _HOMES.get(alias.name, "cflag")
        elif node.module in known:
            yield str(node.module)


def _loaded(module: str, importer: str) -> Iterator[str]:
    """Yield a module with the packages that Python loads before it, except those that the importer is in."""
    parts = module.split(".")
    for count in range(2, len(parts) + 1):
        package = ".".join(parts[:count])
        if package == module or not f"{importer}.".startswith(f"{package}."):
            yield package


def find_cycle(imports: Iterable[Import]) -> list[Import]:
    """Return imports that lead from a module back to itself, if there are any."""
    lines = {(i.importer, i.imported): i for i in imports}
    needs = defaultdict(set)
    for importer, imported in lines:
        needs[importer].add(imported)
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        ring = error.args[1][::-1]
        return [lines[pair] for pair in pairwise(ring)]
    return []


def reduce(graph: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    """Return the edges of a graph without cycles that do not follow from others: its transitive reduction."""
    below: dict[str, set[str]] = {}
    for node in TopologicalSorter(graph).static_order():
        below[node] = {lower for child in graph.get(node, ()) for lower in (child, *below[child])}
    return sorted((a, b) for a in graph for b in graph[a] if not any(b in below[other] for other in graph[a]))


def picture() -> str:
    """Draw the rooms in their layers, with the arrows that do not follow from others."""
    graph = defaultdict(set)
    for importer, imported, _ in ROOMS.between(i for i in read_imports() if i.kind != "type"):
        graph[importer].add(imported)
    return draw(ROOMS.rows, reduce(graph))


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
