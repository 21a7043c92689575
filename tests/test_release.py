"""The version is a tag's, and what cannot read tags is written by one command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from tools.release import APPS, ROOT, main, missing, write

FILES = ("CITATION.cff", "CHANGELOG.md", *APPS)
DAY = date(2031, 2, 3)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that a release writes."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_release_writes_its_version_and_nothing_else(tree: Path) -> None:
    assert missing(tree, "7.8.9") == ["CITATION.cff", *APPS, "CHANGELOG.md"]
    write(tree, "7.8.9", DAY)
    assert not missing(tree, "7.8.9")
    for name in FILES:
        old, new = (set((root / name).read_text().splitlines()) for root in (ROOT, tree))
        if name == "CHANGELOG.md":
            assert (old - new, new - old) == (set(), {"## 7.8.9 (2031-02-03)"})
        else:
            ((line,), (was,)) = new - old, old - new
            assert line.replace("7.8.9", "") == was.replace(said(), "")


def said() -> str:
    """Return the version that files have now."""
    (line,) = [line for line in (ROOT / "CITATION.cff").read_text().splitlines() if line.startswith("version: ")]
    return line.removeprefix("version: ")


def test_the_changelog_begins_with_what_is_not_released(tree: Path) -> None:
    write(tree, "7.8.9", DAY)
    lines = (tree / "CHANGELOG.md").read_text().splitlines()
    assert lines[2:5] == ["## Unreleased", "", "## 7.8.9 (2031-02-03)"]
    write(tree, "7.9.0", DAY)
    assert (tree / "CHANGELOG.md").read_text().splitlines()[2:7:2] == [
        "## Unreleased",
        "## 7.9.0 (2031-02-03)",
        "## 7.8.9 (2031-02-03)",
    ]


def test_what_has_no_line_for_it_is_named_and_nothing_is_written(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("# Changelog\n")
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md has 0 lines"):
        write(tree, "7.8.9", DAY)
    assert (tree / "CITATION.cff").read_bytes() == (ROOT / "CITATION.cff").read_bytes()


@pytest.mark.parametrize("version", ["7.8.9", "7.8.8", "6.9.9", "0.0.1"])
def test_versions_only_grow(version: str, tree: Path) -> None:
    write(tree, "7.8.9", DAY)
    before = [(tree / name).read_bytes() for name in FILES]
    with pytest.raises(SystemExit, match=r"7\.8\.9 is in the changelog already"):
        write(tree, version, DAY)
    assert [(tree / name).read_bytes() for name in FILES] == before
    write(tree, "7.8.10", DAY)


def test_files_that_cannot_read_tags_say_the_same() -> None:
    assert set(missing(ROOT, said())) <= {"CHANGELOG.md"}  # it names a version when that is released


@pytest.mark.parametrize("version", ["1.2", "v1.2.3.4", "next", "1.2.3rc1", "01.2.3"])
def test_other_versions_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["release", version])
    with pytest.raises(SystemExit, match="three numbers"):
        main()


def test_a_tag_that_files_do_not_say_is_refused() -> None:
    check = [sys.executable, "-m", "tools.release", "--check"]
    done = subprocess.run([*check, "v999.0.0"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("CITATION.cff, ")
    assert done.stderr.count("\n") == 1
