"""The tests themselves: what they share is in tests/support, never in another test."""

from __future__ import annotations

import ast
from pathlib import Path


def imported(path: Path) -> set[str]:
    """Return all names that a file imports, with dots."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def test_no_file_of_the_tests_imports_a_test() -> None:
    files = sorted(Path(__file__).parent.rglob("*.py"))
    assert len(files) > 30
    for path in files:
        tests = {name for name in imported(path) if any(part.startswith("test_") for part in name.split("."))}
        assert not tests, f"{path.name} imports {', '.join(tests)}; move what it needs to tests/support"
