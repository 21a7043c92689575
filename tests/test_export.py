"""An exported model gives the run's own answers, in the hands of someone who has no cflag."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cflag import FedAvg, Samples, Source, register, run
from cflag.backbones.base import Backbone, BackboneOptions
from cflag.build import build_method
from cflag.cli import main
from cflag.commands import export as command
from cflag.config import resolve
from cflag.data.sources.digits import digits
from cflag.data.spec import Spec
from cflag.errors import UserError
from cflag.export import FORMS, LOADING, Exported, Form, _refuse, export, usage
from cflag.learning.learner import Learner
from cflag.problems.base import Problem
from cflag.problems.classes import Classes
from cflag.results.model import TrainedModel
from tests.support.tiny_backbones import PARTS, QUICKLY, chain, pictures, register_tiny

pytestmark = pytest.mark.usefixtures("no_figures")

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
    config = resolve({"source": "digits", "method": "finetune"})
    about = {"spec": spec.to_dict(), "seen": [0, 1], "sample": None}
    trained = TrainedModel(Learner(layer, spec.heads, spec.normalise), build_method(config), config, about)
    scores = Exported(trained)(torch.tensor([[255, 0]], dtype=torch.uint8))
    assert scores.tolist() == [[2.0, -2.0, -torch.inf]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["icarl", "ncm", "slda", "ridge"])
def test_methods_that_answer_by_class_means_are_in_the_model(
    method: str, form: Form, finished_by: Callable[[str], Path], tmp_path: Path, answers: Answers
) -> None:
    """The accuracies of result.json again; classes of one task alone are asked for, too."""
    where = finished_by(method)
    folder, test = export(where, form, tmp_path / "out"), digits(Path()).test
    about, result = (json.loads(file.read_text()) for file in (folder / "about.json", where / "result.json"))
    for task, classes in enumerate(about["tasks"]):
        chosen = np.isin(test.y.numpy(), classes)
        x, y = test.x.numpy()[chosen], test.y.numpy()[chosen]
        assert float(np.mean(answers(folder, x) == y)) == result["matrices"]["class"][-1][task]
        assert float(np.mean(answers(folder, x, str(task + 1)) == y)) == result["matrices"]["task"][-1][task]


@pytest.fixture(scope="module")
def finished_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of a method, one for all tests."""

    @cache
    def made(method: str) -> Path:
        out = tmp_path_factory.mktemp("methods") / method
        run("digits", out=out, method=method, scenario="class", model="mlp", **SMALL)
        return out

    return made


HARDER = ("half features", "ncm", "cut", "in one piece", "smaller")


@pytest.mark.parametrize(
    ("part", "form"),
    [(part, form) for part in PARTS for form in FORMS if form == "torchscript" or part in HARDER],
)
def test_backbones_adapters_and_sizes_are_in_the_model(
    part: str, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers
) -> None:
    """Pictures go in as the source has them, and come out with the names that the run's own model gives them."""
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path / "data"))
    register_tiny()
    source = pictures()
    result = run(source=source, out=tmp_path / "run", **{**QUICKLY, **PARTS[part]})
    folder, model = export(tmp_path / "run", form), result.model()
    x = source.test.x
    said = [model.class_names[k] for k in model.predict(x)]
    assert answers(folder, x.numpy(), kind=str) == said
    assert len(set(said)) > 1
    about = json.loads((folder / "about.json").read_text())
    assert about["input"] == {"name": "x", "shape": ["n", 3, 8, 8], "dtype": "uint8"}
    before = about["preprocessing"]
    if backbone := PARTS[part].get("backbone"):
        assert (before["backbone"], before["size"], before["mean"], before["std"]) == (backbone, 8, [0] * 3, [0.5] * 3)
    else:
        assert (before.get("size"), before["mean"], before["std"]) == (PARTS[part].get("image_size"), [0.4], [0.2])


@pytest.mark.parametrize("form", FORMS)
def test_pictures_are_resized_for_a_backbone_in_the_model(
    form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers
) -> None:
    """Of 8 × 8 pixels to the 12 that the run showed its backbone."""
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path / "data"))

    @register("backbone", "sized")
    def sized(options: BackboneOptions) -> Backbone:
        return Backbone("sized", chain(), options.size, (0.0,) * 3, (0.5,) * 3)

    source = pictures()
    own = {"backbone": "sized", "image_size": 12, "model": "linear"}
    model = run(source=source, out=tmp_path / "run", **{**QUICKLY, **own}).model()
    said = answers(export(tmp_path / "run", form), source.test.x.numpy(), kind=str)
    assert said == [model.class_names[k] for k in model.predict(source.test.x)]
    assert len(set(said)) > 1


def test_a_fleets_model_on_a_backbone_takes_pictures_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers
) -> None:
    """A server has no samples: model.json says nothing of them."""
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path / "data"))
    register_tiny()
    source = pictures()
    model = run(source=source, out=tmp_path / "run", **{**QUICKLY, **PARTS["features"]}).model()
    monkeypatch.setattr(model, "sample", None)
    monkeypatch.setattr("cflag.export.load_model", lambda *_: model)
    folder = export(tmp_path / "run", "torchscript")
    assert json.loads((folder / "about.json").read_text())["input"]["shape"] == ["n", 3, 8, 8]
    assert answers(folder, source.test.x.numpy(), kind=str) == [
        model.class_names[k] for k in model.predict(source.test.x)
    ]


TAGGER = """
import torch

class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.known, self.head = torch.nn.Embedding(5, 6), torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.known(x.long()))
"""


@pytest.mark.parametrize("form", FORMS)
def test_an_exported_tagger_names_a_class_for_every_step(form: Form, tmp_path: Path, answers: Answers) -> None:
    """Words 0 to 4 are tagged by word modulo 3; steps that are none are answered, too, as `predict` does."""
    (tmp_path / "net.py").write_text(TAGGER)
    x = torch.randint(0, 5, (60, 7), generator=torch.Generator().manual_seed(6))
    y = x % 3
    y[::2, 5:] = -100
    source = Source.from_tensors((x[:40].float(), y[:40]), (x[40:].float(), y[40:]), problem="sequence",
                                 class_names=("noun", "verb", "rest"))  # fmt: skip
    own = {**SMALL, "tasks": 1, "rounds": 15, "scenario": "permuted", "method": "finetune", "finetune": {"lr": 1.0}}
    own |= {"model": f"{tmp_path / 'net.py'}:Tagger"}
    result = run(source=source, out=tmp_path / "run", **{k: v for k, v in own.items() if k != "width"})
    folder = export(tmp_path / "run", form)
    said = [line.split() for line in answers(folder, x[40:].float().numpy(), kind=str, by_line=True)]
    names = np.array(["noun", "verb", "rest"])
    assert said == names[result.model().predict(x[40:].float()).numpy()].tolist()
    counted = (y[40:] != -100).numpy()
    right = (np.array(said) == names[y[40:].clamp(min=0).numpy()])[counted]
    assert float(right.mean()) == result.score_matrix[-1][0]
    assert json.loads((folder / "about.json").read_text())["output"]["shape"] == ["n", 7, 3]


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
    with pytest.raises(UserError, match=f"is no run itself; name one of those in it: {copy}"):
        export(tmp_path, "torchscript")
    with pytest.raises(UserError, match="holds no run:"):
        export(copy / "figures", "torchscript")
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


@pytest.mark.parametrize("name", ["Net", "net"])
def test_a_network_that_was_handed_over_is_named_again(name: str, tmp_path: Path, answers: Answers) -> None:
    """Its class, or an object of it, whose own weights do not matter."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n"
        "    def __init__(self):\n        super().__init__(nn.Flatten(), nn.Linear(64, 10))\nnet = Net()\n"
    )
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    result = run("digits", out=tmp_path / "run", model=own, **SMALL)
    to = ["export", str(tmp_path / "run"), "--to", "torchscript"]
    with pytest.raises(UserError, match=r"handed over in Python: name it, or its class, with --model FILE\.py:NAME"):
        export(tmp_path / "run", "torchscript")
    assert main([*to, "--model", f"{tmp_path / 'net.py'}:{name}"]) == 0
    x = digits(Path()).test.x
    said = answers(tmp_path / "run" / "export-torchscript", x.numpy())
    assert said == result.model(own).predict(x, "any").tolist()
    run("digits", out=tmp_path / "named", model="mlp", **SMALL)
    with pytest.raises(UserError, match="this run has model = 'mlp'"):
        export(tmp_path / "named", "torchscript", own=lambda *_: own)


def test_a_problem_of_ones_own_is_refused(tmp_path: Path) -> None:
    class Own(Problem):
        labels = Classes.labels
        outputs = Classes.outputs
        losses = Classes.losses
        sums = Classes.sums
        width = Classes.width
        score = Classes.score
        scores = Classes.scores

    register("problem", "own", "another")(Own)
    config = resolve({"source": "digits", "method": "finetune"})
    with pytest.raises(UserError, match=r"problem = 'own': models are exported for classes, multilabel, sequence, reg"):
        _refuse(replace(config, problem="own"), None)


class Moody(FedAvg):
    """Answers in a way that no trace can follow: by the number of samples."""

    def predict(self, learner: Learner, samples: Samples, **sent: Any) -> torch.Tensor:
        outputs = learner.outputs(samples)
        return -outputs if outputs.shape[0] == 3 else outputs


@pytest.mark.parametrize(("form", "why"), [("torchscript", "does not answer as"), ("pytorch", "cannot be written in")])
def test_what_decides_in_python_is_refused(form: Form, why: str, tmp_path: Path) -> None:
    register("method", "moody")(Moody)
    run("digits", out=tmp_path / "run", method="moody", **SMALL)
    with pytest.raises(UserError, match=f"--to {form}: .*{why}") as refused:
        export(tmp_path / "run", form)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run" / f"export-{form}").exists()
