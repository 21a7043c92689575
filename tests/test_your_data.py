"""docs/your-data.md, word for word: its code, its files and its commands, in their order."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cflag.cli import main
from tests.support.pages import blocks

LONG = ("compare", "tune", "report")
BLOCKS = blocks("docs/your-data.md")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CFLAG_DATA", raising=False)
    return tmp_path


def commands(block: str) -> Iterator[list[str]]:
    """Yield the commands of a block; one that shows output has none."""
    for line in block.splitlines():
        if line.startswith("cflag "):
            yield shlex.split(line)[1:]


def prepare(folder: Path) -> dict[str, Any]:
    """Run the code that makes data, and save the files that the page names."""
    space: dict[str, Any] = {}
    for _, block in (found for found in BLOCKS if found[0] == "python" and "Source" not in found[1]):
        exec(compile(block, "your-data.md", "exec"), space)
    tables = [block for kind, block in BLOCKS if kind == "toml"]
    for name, block in zip(("chars.toml", "people.toml"), tables, strict=True):
        (folder / name).write_text(block, encoding="utf-8")
    return space


def give(*kinds: str, into: Sequence[str] = (), rounds: int = 0) -> None:
    """Give the page's commands of these kinds, in their order; or those into these folders, with other rounds."""
    fewer = ["--set", f"rounds={rounds}"] if rounds else []
    for _, block in BLOCKS:
        for words in commands(block):
            if words[0] in kinds and (not into or words[-1] in into):
                assert main([*words, *fewer, *(["--quiet"] if words[0] == "run" else [])]) == 0, words


def test_every_command_is_given_by_a_test() -> None:
    assert {words[0] for _, block in BLOCKS for words in commands(block)} == {"data", "run", *LONG, "deploy"}


@pytest.mark.usefixtures("no_figures")
def test_the_page_works_as_it_stands(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = prepare(here)
    give("data", "run")
    for _, block in (found for found in BLOCKS if found[0] == "python" and "Source" in found[1]):
        exec(compile(block, "your-data.md", "exec"), space)
    shown = capsys.readouterr().out
    (printed,) = (block for kind, block in BLOCKS if block.startswith("source   "))
    assert printed in shown
    assert "(3, 8, 8)" in shown
    for path in ("runs/chars", "runs/sensor", "runs/listed", "runs/people"):
        assert (here / path / "result.json").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_its_comparison_search_and_report_work(here: Path) -> None:
    prepare(here)
    give(*LONG)
    assert (here / "report.html").is_file()


@pytest.mark.fleet
@pytest.mark.usefixtures("no_figures")
@pytest.mark.slow
def test_its_fleets_have_the_numbers_of_one_machine(here: Path) -> None:
    """Two rounds of each task: a question more through real processes takes half a second, and shows nothing new."""
    prepare(here)
    pairs = [(f"runs/{name}", f"runs/{name}-fleet") for name in ("people", "chars")]
    give("run", "deploy", into=sum(pairs, ()), rounds=2)
    for one, two in ((here / one, here / two) for one, two in pairs):
        assert len((two / "metrics.jsonl").read_text().splitlines()) == 4
        assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


def test_what_is_missing_is_no_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column that is 5 wherever it is known has mean 5, whichever samples are held out."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("a,label\n" + "5,x\n,x\n5,x\n5,y\n,y\n5,y\n")
    main(["data", "check", "t.csv"])
    assert "mean 5," in capsys.readouterr().out
