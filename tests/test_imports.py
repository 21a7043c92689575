"""The source tree is a house of layers: imports point down, and the picture in the docs shows what the code does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.drawing import WIDEST, Layout, draw
from tests.support.imports import (
    FLOWER,
    PICTURE,
    ROOMS,
    SOURCE,
    UPWARD_TYPES,
    Import,
    Layers,
    find_cycle,
    modules,
    picture,
    read_imports,
    reduce,
)

Tree = Callable[[Mapping[str, str]], Path]


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return read_imports()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A source tree of these files."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "cflag" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "cflag"

    return write


def running(imports: Collection[Import]) -> list[Import]:
    return [i for i in imports if i.kind != "type"]


def listed(found: Collection[object]) -> str:
    return "\n".join(["", *map(str, found)])


# The rules ------------------------------------------------------------------------------------------------------------


def test_no_module_imports_itself_by_way_of_others(imports: list[Import]) -> None:
    cycle = find_cycle(running(imports))
    assert not cycle, f"a cycle of imports:{listed(cycle)}"


def test_rooms_import_from_lower_layers_only(imports: list[Import]) -> None:
    found = [i for _, _, i in ROOMS.against(running(imports))]
    assert not found, f"against the order of ROOMS in tests/support/imports.py:{listed(found)}"


def test_annotations_name_higher_rooms_only_where_that_is_agreed(imports: list[Import]) -> None:
    against = ROOMS.against(i for i in imports if i.kind == "type")
    found = [i for a, b, i in against if (a, b) not in UPWARD_TYPES]
    assert not found, f"not among UPWARD_TYPES in tests/support/imports.py:{listed(found)}"
    assert {(a, b) for a, b, _ in against} == UPWARD_TYPES, "UPWARD_TYPES names pairs that nobody needs any more"


def test_inside_the_flower_engine_imports_point_down_too(imports: list[Import]) -> None:
    found = [i for _, _, i in FLOWER.against(imports)]
    assert not found, f"against the order of FLOWER in tests/support/imports.py:{listed(found)}"


@pytest.mark.parametrize("layers", [ROOMS, FLOWER], ids=["rooms", "flower"])
def test_every_module_has_its_layer(layers: Layers) -> None:
    inside = {name: path for name, path in modules().items() if name.startswith(f"{layers.inside}.")}
    homeless = [path.relative_to(SOURCE) for name, path in inside.items() if layers.room(name) is None]
    assert not homeless, f"give these a layer in tests/support/imports.py:{listed(homeless)}"
    rooms = [room for row in layers.rows for room in row]
    assert len(rooms) == len(set(rooms))
    gone = set(rooms) - {layers.room(name) for name in inside}
    assert not gone, f"tests/support/imports.py has layers for what is gone: {', '.join(sorted(gone))}"


# What is read ---------------------------------------------------------------------------------------------------------


def test_imports_are_read_wherever_they_are_and_resolved_to_modules(tree: Tree) -> None:
    source = tree(
        {
            "__init__.py": "from cflag.cli import main",
            "cli.py": "import typing\nif typing.TYPE_CHECKING:\n    import cflag.rng\nelse:\n    import cflag.errors\n",
            "rng.py": "",
            "errors.py": "class A:\n    import cflag.rng\n    def f(self):\n        from cflag import rng",
            "data/__init__.py": "",
            "data/base.py": "import cflag\nfrom cflag import rng, __version__\nfrom cflag.data import other",
            "data/other.py": "from cflag import Server\nx = lambda: cflag.run('digits'), cflag.__version__",
            "models/small.py": "from os import path\nfrom cflag.data.base import x, y\nfrom cflag.data import z",
        }
    )
    read = {(i.importer, i.imported, i.kind, i.line) for i in read_imports(source)}
    assert read == {
        ("cflag.cli", "cflag.rng", "type", 3),
        ("cflag.cli", "cflag.errors", "top", 5),
        ("cflag.errors", "cflag.rng", "top", 2),
        ("cflag.errors", "cflag.rng", "lazy", 4),
        ("cflag.data.base", "cflag.rng", "top", 2),
        ("cflag.data.base", "cflag.data.other", "top", 3),
        ("cflag.data.other", "cflag.server", "top", 1),
        ("cflag.data.other", "cflag.launch", "top", 2),
        ("cflag.models.small", "cflag.data", "top", 2),
        ("cflag.models.small", "cflag.data.base", "top", 2),
        ("cflag.models.small", "cflag.data", "top", 3),
    }


def test_relative_imports_are_refused_by_line(tree: Tree) -> None:
    with pytest.raises(AssertionError, match=r"rng\.py:2: write the import in full"):
        read_imports(tree({"rng.py": "\nfrom . import errors"}))


def test_a_cycle_is_found_through_functions_and_packages_but_not_through_annotations(tree: Tree) -> None:
    annotated = {"errors.py": "if TYPE_CHECKING:\n    from cflag.rng import x\n", "rng.py": "import cflag.errors"}
    assert not find_cycle(running(read_imports(tree(annotated))))
    lazy = read_imports(tree({"errors.py": "def f():\n    from cflag.rng import x\n"}))
    cycle = [str(i) for i in find_cycle(running(lazy))]
    assert len(cycle) == 2
    assert any(line.endswith("errors.py:2: cflag.errors imports cflag.rng") for line in cycle)
    hidden = {"errors.py": "", "data/__init__.py": "import cflag.rng", "data/a.py": "", "rng.py": "import cflag.data.a"}
    assert {i.importer for i in find_cycle(read_imports(tree(hidden)))} == {"cflag.rng", "cflag.data"}


@pytest.mark.parametrize(
    ("file", "text", "against"),
    [
        ("data/load.py", "def f():\n    from cflag.learning.learner import Learner", [("data", "learning")]),
        ("memory/ring.py", "\nimport cflag.learning", [("memory", "learning")]),
        ("engines/local.py", "\nfrom cflag.engines.flower import messages", [("engines", "engines.flower")]),
        ("engines/flower/messages.py", "\nfrom cflag.engines import local", []),
        ("client.py", "\nfrom cflag.learning import learner", []),
    ],
)
def test_an_import_against_the_order_is_found(tree: Tree, file: str, text: str, against: list[tuple[str, str]]) -> None:
    empty = ("learning/__init__.py", "learning/learner.py", "engines/flower/messages.py", "engines/local.py")
    found = ROOMS.against(read_imports(tree({**dict.fromkeys(empty, ""), file: text})))
    assert {(a, b) for a, b, _ in found} == set(against)
    assert all(i.line == 2 and i.file.name == Path(file).name for _, _, i in found)


# The picture ----------------------------------------------------------------------------------------------------------


def reachable(edges: Collection[tuple[int, int]], start: int) -> set[int]:
    below = {b for a, b in edges if a == start}
    return below.union(*(reachable(edges, b) for b in below))


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda edge: edge[0] > edge[1])))
def test_what_is_drawn_says_all_and_nothing_twice(edges: set[tuple[int, int]]) -> None:
    graph = {str(a): {str(d) for c, d in edges if c == a} for a, _ in edges}
    kept = [(int(a), int(b)) for a, b in reduce(graph)]
    assert set(kept) <= edges
    for start in range(8):
        assert reachable(kept, start) == reachable(edges, start)
    for edge in kept:
        rest = [other for other in kept if other != edge]
        assert edge[1] not in reachable(rest, edge[0])


def test_boxes_and_trunks_keep_apart_and_crossings_are_undone() -> None:
    layers = [("left", "right"), ("between",), ("over_right", "over_left")]
    layout = Layout.of(layers, [("over_left", "left"), ("over_right", "right"), ("over_left", "between")])
    assert layout.crossings() == 0
    for row in layout.rows:
        spans = [(layout.x[n] - layout.width(n) / 2, layout.x[n] + layout.width(n) / 2) for n in row]
        assert all(right < left for (_, right), (left, _) in pairwise(spans))


def test_the_picture_in_the_docs_is_what_the_code_draws() -> None:
    drawn = picture()
    assert PICTURE.read_text(encoding="utf-8") == drawn, "draw it anew: python -m tests.support.imports"
    svg = ElementTree.fromstring(drawn)
    assert 0 < int(svg.attrib["width"]) <= WIDEST
    names = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")][1:]
    assert sorted(map(str, names)) == sorted(room for row in ROOMS.rows for room in row)


def test_a_name_is_text_in_the_picture() -> None:
    assert "a&lt;b" in draw([("a<b",)], [])
