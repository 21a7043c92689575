"""An exported model gives the run's own answers, in the hands of someone who has no cflag."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cflag import Source, run
from cflag.cli import main
from cflag.commands import export as command
from cflag.data.sources.digits import digits
from cflag.data.spec import Spec
from cflag.errors import UserError
from cflag.export import FORMS, LOADING, Exported, Form, export, usage

SMALL: dict[str, Any] = {"tasks": 2, "rounds": 3, "clients": 3, "width": 8, "workers": 1}
ALONE = """
import runpy, sys
class NoCflag:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "cflag":
            raise ImportError("cflag is not here")
sys.meta_path.insert(0, NoCflag())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "run"
    run("digits", out=out, scenario="class", model="cnn", **SMALL)
    return out


Answers = Callable[..., list[Any]]


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answers:
    """What `use.py` prints for samples."""

    def ask(folder: Path, x: np.ndarray[Any, Any], *task: str, kind: Any = int, by_line: bool = False) -> list[Any]:
        np.save(tmp_path / "x.npy", x)
        monkeypatch.setattr(sys, "argv", ["use.py", str(tmp_path / "x.npy"), *task])
        capsys.readouterr()
        runpy.run_path(str(folder / "use.py"))
        said = capsys.readouterr().out
        return [kind(word) for word in (said.splitlines() if by_line else said.split())]

    return ask


@pytest.mark.parametrize("form", FORMS)
def test_the_exported_model_answers_as_the_run_did(
    finished: Path, form: Form, tmp_path: Path, answers: Answers
) -> None:
    """The accuracies of result.json, counted again by the exported file: of all classes, and knowing the task."""
    folder = tmp_path / "out"
    assert main(["export", str(finished), "--to", form, "--out", str(folder)]) == 0
    result = json.loads((finished / "result.json").read_text())
    about = json.loads((folder / "about.json").read_text())
    test = digits(Path()).test
    for task, classes in enumerate(about["tasks"]):
        chosen = np.isin(test.y.numpy(), classes)
        x, y = test.x.numpy()[chosen], test.y.numpy()[chosen]
        found = {"class": answers(folder, x), "task": answers(folder, x, str(task + 1))}
        for kind, said in found.items():
            assert float(np.mean(said == y)) == result["matrices"][kind][-1][task]
    assert sorted(label for classes in about["tasks"] for label in classes) == list(range(10))
    assert about["input"] == {"name": "x", "shape": ["n", 1, 8, 8], "dtype": "uint8"}
    assert about["average_accuracy"] == result["average_accuracy"]


def test_the_snippet_needs_no_cflag(finished: Path, tmp_path: Path, answers: Answers) -> None:
    """In a process in which it cannot be imported, the answers are those of this one."""
    folder, x = export(finished, "onnx", tmp_path / "out"), digits(Path()).test.x.numpy()
    said = answers(folder, x)
    alone = [sys.executable, "-c", ALONE, str(folder / "use.py"), str(tmp_path / "x.npy")]
    done = subprocess.run(alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [int(line) for line in done.stdout.split()] == said
    assert len(set(said)) > 2


def test_samples_are_scaled_and_closed_classes_are_never_the_answer() -> None:
    """By hand: bytes 255 and 0 are 1 and 0; less 0.5 over 0.25 they are 2 and -2."""
    spec = Spec((2,), "uint8", 3, (0.5,), (0.25,), ((0,), (1,)), False, 1)
    layer = nn.Linear(2, 3, bias=False)
    layer.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [9.0, -9.0]])
    scores = Exported(layer, spec, torch.tensor([True, True, False]))(torch.tensor([[255, 0]], dtype=torch.uint8))
    assert scores.tolist() == [[2.0, -2.0, -torch.inf]]


@pytest.mark.parametrize("form", FORMS)
def test_an_exported_regression_answers_in_the_labels_own_unit(form: Form, tmp_path: Path, answers: Answers) -> None:
    """MAE of result.json, from what `use.py` prints; labels are of the order of a hundred thousand."""
    generator = torch.Generator().manual_seed(3)
    x, task = torch.randn(60, 3, generator=generator), torch.arange(60) % 2
    y = 500_000 + 200_000 * (x @ torch.tensor([[0.5, -1.0], [0.3, 0.1], [0.2, 0.0]]))
    source = Source.from_tensors((x[:40], y[:40]), (x[40:], y[40:]), tasks=(task[:40], task[40:]),
                                 problem="regression", label_scale="train")  # fmt: skip
    result = run(source=source, out=tmp_path / "run", scenario="domain", model="mlp", score="mae", **SMALL)
    folder = export(tmp_path / "run", form)
    said = np.array(answers(folder, x[40:].numpy(), kind=float)).reshape(20, 2)
    for t in range(2):
        mine = (task[40:] == t).numpy()
        mae = np.abs(said - y[40:].double().numpy())[mine].mean()
        assert mae == pytest.approx(result.score_matrix[-1][t], rel=1e-6)
    about = json.loads((folder / "about.json").read_text())
    assert about["problem"] == "regression"
    assert about["average_mae"] == result.average_score
    assert "classes" not in about
    assert about["postprocessing"]["add"] == pytest.approx(y[:40].double().mean(0).tolist())


def test_an_exported_multilabel_model_says_which_are_yes(tmp_path: Path, answers: Answers) -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(80, 4, generator=generator)
    y = (x[:, :3] > 0).long()
    source = Source.from_tensors((x, y), (x, y), problem="multilabel", class_names=("a", "b", "c"))
    result = run(source=source, out=tmp_path / "run", scenario="permuted", score="exact", **{**SMALL, "tasks": 1})
    said = answers(export(tmp_path / "run", "torchscript"), x.numpy(), kind=str, by_line=True)
    right = [
        set(line.split()) == {"abc"[k] for k in row.nonzero().flatten()} for line, row in zip(said, y, strict=True)
    ]
    assert np.mean(right) == result.score_matrix[-1][0]
    assert len(set(said)) > 2


def test_merged_adapters_are_in_the_exported_model(tmp_path: Path, answers: Answers) -> None:
    lora = {"lora": {"rank": 2, "merge": True}, "model": "mlp"}
    result = run("digits", out=tmp_path / "run", **SMALL | lora)
    folder = export(tmp_path / "run", "torchscript")
    about = json.loads((folder / "about.json").read_text())
    test = digits(Path()).test
    chosen = np.isin(test.y.numpy(), about["tasks"][0])
    said = answers(folder, test.x.numpy()[chosen], "1")
    assert float(np.mean(said == test.y.numpy()[chosen])) == result.matrices["task"][-1][0]


@pytest.mark.parametrize("form", FORMS)
def test_the_snippet_is_ten_lines(form: Form) -> None:
    lines = usage(form).splitlines()
    assert len(lines[1:]) == 10
    assert "cflag" not in usage(form)
    assert set(LOADING) == set(FORMS) == set(command.FORMS)


def test_what_cannot_be_exported_is_refused_in_one_line(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    export(copy, "torchscript")
    with pytest.raises(UserError, match="already exists; choose another --out, or delete it"):
        export(copy, "torchscript")
    with pytest.raises(UserError, match="holds no run:"):
        export(tmp_path, "torchscript")
    with monkeypatch.context() as patch:
        patch.setattr("cflag.export.find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"pip install 'cflag\[export\]'"):
            export(copy, "onnx")
    (copy / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        export(copy, "pytorch")
    (copy / "result.json").unlink()
    with pytest.raises(UserError, match="is not finished"):
        export(copy, "pytorch")


def test_a_method_that_answers_otherwise_is_refused(tmp_path: Path) -> None:
    run("digits", out=tmp_path / "run", method="ncm", **SMALL | {"tasks": 2, "rounds": 1})
    with pytest.raises(UserError, match="does not answer with its model's outputs alone"):
        export(tmp_path / "run", "pytorch")
