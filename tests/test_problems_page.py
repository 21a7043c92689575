"""Everything that docs/problems.md shows runs as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from cflag import registry
from cflag.cli import main
from cflag.problems.base import find
from tests.support.pages import ROOT, blocks, lines

pytestmark = pytest.mark.usefixtures("no_figures", "runs_here")

TEXT = (ROOT / "docs" / "problems.md").read_text(encoding="utf-8")
CODE = [block.text for block in blocks("docs/problems.md", "python")]
COMMANDS = [line for block in blocks("docs/problems.md", "bash") for line in lines(block.text)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (plugin,) = (code for code in CODE if "@register" in code)
    (tmp_path / "huber.py").write_text(plugin)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(command: str) -> None:
    program, *words = shlex.split(command)
    assert program == "cflag"
    short = [] if words[0] == "list" else ["--set=rounds=1", "--set=workers=1", "--set=epochs=1"]
    assert main([*words, *short]) == 0


@pytest.mark.parametrize("code", [code for code in CODE if "@register" not in code])
def test_every_block_of_code_runs(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    there: dict[str, Any] = {}
    exec(compile(code, "problems.md", "exec"), there)
    if "linspace(-1, 1, 8)" in code:  # the regression is nearly linear, and learned
        assert there["result"].average_score > 0.9
        assert capsys.readouterr().out.startswith("R² 0.9")


def test_the_tables_name_all_problems_and_scores() -> None:
    rows = dict(re.findall(r"^\| `(\w+)`(?: \(default\))? \|.*\| (`.*) \|$", TEXT, re.MULTILINE))
    for name in ("classes", "regression", "multilabel", "sequence"):
        assert name in registry.names("problem")
        assert re.findall(r"`(\w+)`", rows[name]) == [score.name for score in find(name).scores]


def test_those_who_are_for_classes_are_named() -> None:
    (sentence,) = re.findall(r"but for these: (.*?) are for classes, and `ridge`", TEXT, re.DOTALL)
    named = set(re.findall(r"`([\w-]+)`", sentence))
    own = {name for name in registry.names("method") if registry.get("method", name).problems == ("classes",)}
    assert named == own
