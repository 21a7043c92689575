"""The method in CONTRIBUTING.md works as it stands there, dropped in as one file and no edit elsewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import cflag
import cflag.methods
from cflag import registry, run
from cflag.errors import UserError
from tests.support.quick import QUICK

pytestmark = pytest.mark.usefixtures("no_figures")

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()


@pytest.fixture
def dropped_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(code) == 1
    (tmp_path / "fedprox.py").write_text(code[0])
    monkeypatch.setattr(cflag.methods, "__path__", [*cflag.methods.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "cflag.methods.fedprox", raising=False)


@pytest.mark.usefixtures("dropped_in")
def test_one_file_is_enough(tmp_path: Path) -> None:
    assert "fedprox" in registry.names("method")
    pulled = run("digits", method="fedprox", fedprox={"mu": 5.0}, out=tmp_path / "a", **QUICK)
    free = run("digits", method="fedprox", fedprox={"mu": 0.0}, out=tmp_path / "b", **QUICK)
    assert pulled.metrics[-1]["loss"] != free.metrics[-1]["loss"]
    with pytest.raises(UserError, match=r"fedprox.lr = 0.0 must be positive"):
        run("digits", method="fedprox", fedprox={"lr": 0}, out=tmp_path / "c", **QUICK)


@pytest.mark.usefixtures("dropped_in")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_the_pull_it_is_fine_tuning_with_any_optimizer(optimizer: str, tmp_path: Path) -> None:
    same: dict[str, Any] = {**QUICK, "optimizer": optimizer}
    fedprox = run("digits", method="fedprox", fedprox={"mu": 0.0, "lr": 0.01}, out=tmp_path / "a", **same)
    finetune = run("digits", method="finetune", finetune={"lr": 0.01}, out=tmp_path / "b", **same)
    assert fedprox.accuracy_matrix == finetune.accuracy_matrix
    assert [m["loss"] for m in fedprox.metrics] == [m["loss"] for m in finetune.metrics]


def test_the_same_file_is_a_plugin(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "fedprox.py").write_text(code)
    own: dict[str, Any] = {"method": "fedprox", "plugins": [str(tmp_path / "fedprox.py")]}
    assert run("digits", **own, **QUICK, out=tmp_path / "run").method == "fedprox"


def test_every_public_name_is_documented_and_says_what_it_is() -> None:
    section = TEXT.partition("## Public names")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"`(\w+)`", section.partition("\n\n")[2].partition("|---|")[2])) == cflag.__all__
    aliases = {"Answer", "Conversation"}  # types without a docstring of their own
    assert all(getattr(cflag, name).__doc__ for name in set(cflag.__all__) - aliases)
    with pytest.raises(AttributeError):
        cflag.Nothing  # noqa: B018


def test_another_package_can_bring_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny installed package: its metadata names an entry point, its module holds the class."""
    (tmp_path / "elsewhere.py").write_text(
        "from cflag.methods.finetune import Finetune\nclass Mine(Finetune):\n    'Fine-tuning under another name.'\n"
    )
    info = tmp_path / "elsewhere-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[cflag.methods]\nmine = elsewhere:Mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "mine" in registry.names("method")
    assert registry.get("method", "mine").__name__ == "Mine"
    result = run("digits", method="mine", mine={"lr": 0.1}, out=tmp_path / "run", **QUICK)
    assert result.method == "mine"
