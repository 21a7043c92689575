"""What a run learned can be used: raw samples in, and the very answers that the run's own tests counted."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import cflag
from cflag import Result, Source, registry, resume, run
from cflag.cli import main
from cflag.data.load import load_source
from cflag.errors import UserError
from cflag.files import checksum, write_sealed_json
from tests.support import quick
from tests.support.crashes import Crash, stop_after
from tests.support.tiny_backbones import PARTS, QUICKLY, pictures, register_tiny

QUICK: dict[str, Any] = {**quick.QUICK, "workers": 1}

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(autouse=True)
def _backbones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path / "data"))
    register_tiny()


def of_task(source: Source, classes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    chosen = torch.isin(source.test.y, torch.tensor(classes))
    return source.test.x[chosen], source.test.y[chosen]


def check_both_matrices(result: Result, source: Source) -> None:
    """Right answers over samples, counted here from raw samples, are the last rows of both matrices."""
    model = Result.load(result.folder or Path()).model()
    assert not model.training
    for task, classes in enumerate(model.tasks):
        x, y = of_task(source, classes)
        for reading, said in (("task", task), ("class", "any")):
            right = int((model.predict(x, said) == y).sum())  # type: ignore[arg-type]
            assert right / len(y) == result.matrices[reading][-1][task], (reading, task)


@pytest.mark.parametrize("scenario", ["task", "class"])
@pytest.mark.parametrize("method", ["cflag", "icarl", "ncm", "ridge", "slda", "derpp"])
def test_predictions_are_those_that_the_run_counted(method: str, scenario: str, tmp_path: Path) -> None:
    result = run("digits", method=method, scenario=scenario, out=tmp_path / "run", **{**QUICK, "tasks": 3})
    check_both_matrices(result, load_source("digits"))


@pytest.mark.parametrize("part", PARTS)
def test_backbones_adapters_and_sizes_come_along(part: str, tmp_path: Path) -> None:
    source = pictures()
    result = run(source=source, out=tmp_path / "run", **{**QUICKLY, **PARTS[part]})
    assert 0 < result.average_accuracy < 1
    check_both_matrices(result, source)
    model = result.model()
    assert model.class_names == ("ant", "bee", "cow", "dog")
    assert model.sample == ((3, 8, 8), "uint8")


def test_domains_share_all_classes(tmp_path: Path) -> None:
    """With `domain` every task has all classes, so a sample's task changes nothing; turned pictures come turned."""
    source = pictures()
    tasks = torch.arange(60) // 30
    marked = Source.from_tensors(
        (source.train.x, source.train.y), (source.test.x, source.test.y), "own", tasks=(tasks, tasks)
    )
    result = run(source=marked, scenario="domain", out=tmp_path / "run", clients=2, **QUICK)
    model = result.model()
    for task in (0, 1):
        x, y = source.test.x[tasks == task], source.test.y[tasks == task]
        assert float((model.predict(x) == y).double().mean()) == pytest.approx(result.accuracy_matrix[-1][task])
        assert torch.equal(model.predict(x), model.predict(x, task))


def test_a_task_must_be_said_where_tests_tell_it(tmp_path: Path) -> None:
    model = run("digits", out=tmp_path / "run", **QUICK).model()
    x = load_source("digits").test.x[:5]
    with pytest.raises(UserError, match=r"say task=0 to 1, or task='any'"):
        model.predict(x)
    for wrong in (2, -1):
        with pytest.raises(UserError, match=r"this run has tasks 0 to 1"):
            model.predict(x, wrong)
    own = model.probabilities(x, task=1)
    assert set(own.nonzero()[:, 1].tolist()) <= set(model.tasks[1])
    torch.testing.assert_close(own.sum(1), torch.ones(5))
    by_hand = model(x)[:, list(model.tasks[1])].softmax(1)
    torch.testing.assert_close(own[:, list(model.tasks[1])], by_hand)


def test_outputs_are_those_of_the_plain_network_on_normalised_samples(tmp_path: Path) -> None:
    model = run("digits", scenario="class", out=tmp_path / "run", **QUICK).model()
    x = load_source("digits").test.x[:7]
    with torch.no_grad():
        by_hand = model.network((x.float() / 255 - 0.3043) / 0.3761)
    torch.testing.assert_close(model(x), by_hand)
    assert torch.equal(model(x.numpy()), model(x))
    torch.testing.assert_close(model(x.float() / 255), by_hand)  # images may be given from 0 to 1, too


def test_samples_that_are_not_the_sources_are_refused(tmp_path: Path) -> None:
    model = run("digits", scenario="class", out=tmp_path / "run", **QUICK).model()
    for wrong, why in (
        (torch.zeros(2, 1, 9, 8, dtype=torch.uint8), r"shape \(2, 1, 9, 8\); this model takes \(n, 1, 8, 8\)"),
        (torch.zeros(1, 8, 8, dtype=torch.uint8), r"this model takes \(n, 1, 8, 8\)"),
        (torch.full((2, 1, 8, 8), 200.0), r"samples go from 200 to 200; images are bytes"),
    ):
        with pytest.raises(UserError, match=why):
            model.predict(wrong)
    signal = Source.from_tensors((torch.randn(40, 6), torch.arange(40) % 4), (torch.randn(8, 6), torch.arange(8) % 4))
    flat = run(source=signal, scenario="class", clients=1, out=tmp_path / "flat", **QUICK).model()
    with pytest.raises(UserError, match=r"samples are bytes; this model takes float32"):
        flat.predict(torch.zeros(2, 6, dtype=torch.uint8))
    assert len(flat.predict(torch.zeros(2, 6, dtype=torch.float64))) == 2


def test_a_model_of_ones_own_is_given_again(tmp_path: Path) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    result = run("digits", model=own, scenario="class", out=tmp_path / "run", **QUICK)
    with pytest.raises(UserError, match=r"handed over in Python: give it, the class or an object of it: result\.model"):
        result.model()
    again = result.model(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    x, y = of_task(load_source("digits"), again.tasks[1])
    assert float((again.predict(x) == y).double().mean()) == result.accuracy_matrix[-1][1]
    with pytest.raises(UserError, match=r"does not fit the model"):
        result.model(nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Linear(12, 10)))


NET = """
from torch import nn
from cflag import register

@register("model", "mine")
class Net(nn.Module):
    def __init__(self, shape, outputs, options):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, outputs))

    def forward(self, x):
        return self.layers(x)
"""


@pytest.mark.parametrize("named", ["by file", "by plugin"])
def test_a_model_by_file_is_found_while_the_file_is_what_it_was(named: str, tmp_path: Path) -> None:
    """Changed code whose weights fit (another activation) would answer otherwise without a word."""
    file = tmp_path / "net.py"
    file.write_text(NET)
    how: dict[str, Any] = {"model": f"{file}:Net"} if named == "by file" else {"model": "mine", "plugins": [str(file)]}
    result = run("digits", scenario="class", out=tmp_path / "run", **QUICK, **how)
    x, y = of_task(load_source("digits"), (about := result.model()).tasks[1])
    assert float((about.predict(x) == y).double().mean()) == result.accuracy_matrix[-1][1]
    schema = json.loads((Path(cflag.__file__).parent / "results" / "model.schema.json").read_text())
    jsonschema.validate(json.loads((tmp_path / "run" / "model.json").read_text()), schema)
    network = type(about.network)
    file.write_text(NET.replace("Tanh", "ReLU"))
    with pytest.raises(UserError, match=r"net\.py, was changed since; put it back, or give it, the class"):
        result.model()
    file.unlink()
    with pytest.raises(UserError, match=r"is not there: .*net\.py; put it back, or give it, the class"):
        result.model()
    if named == "by file":  # a plugin's run cannot be read without it
        assert torch.equal(result.model(network).predict(x), about.predict(x))
    registry._parts.pop(("model", "mine"), None)


def test_the_file_is_as_its_schema_says_and_the_same_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = json.loads((Path(cflag.__file__).parent / "results" / "model.schema.json").read_text())
    run("digits", method="icarl", scenario="class", out=tmp_path / "whole", **QUICK)
    about = json.loads((tmp_path / "whole" / "model.json").read_text())
    jsonschema.validate(about, schema)
    assert about["beside"] == ["means"]
    assert about["seen"] == [0, 1]
    stop_after(4, monkeypatch)  # after the last round of all
    with pytest.raises(Crash):
        run("digits", method="icarl", scenario="class", out=tmp_path / "killed", **QUICK)
    assert not (tmp_path / "killed" / "model.json").exists()
    resume(tmp_path / "killed")
    for name in ("model.json", "predict.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()


def test_old_and_changed_folders_end_in_one_line(tmp_path: Path) -> None:
    result = run("digits", method="ncm", scenario="class", out=tmp_path / "run", **QUICK)
    for name in ("model.json", "model.safetensors"):
        shutil.copytree(tmp_path / "run", tmp_path / name)
        (tmp_path / name / name).unlink()
        with pytest.raises(UserError, match=rf"has no {name}: .*; run it again with: cflag run .*config.toml"):
            Result.load(tmp_path / name).model()
    for name in ("model.json", "predict.safetensors"):
        path = tmp_path / "run" / name
        before = path.read_bytes()
        path.write_bytes(before[:-2] + b"9}")
        with pytest.raises(UserError, match=rf"{name} is not what digests.json says was written"):
            result.model()
        path.write_bytes(before)
    assert result.model().seen == (0, 1)


def test_the_command_answers_for_pictures_arrays_and_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = load_source("digits")
    result = run("digits", scenario="class", out=tmp_path / "run", **QUICK)
    x = source.test.x[:3]
    expected, sure = result.model().predict(x).tolist(), result.model().probabilities(x).amax(1)
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", x=x.numpy())
    np.savetxt("b.csv", x.flatten(1).numpy(), delimiter=",", fmt="%d", header=",".join("abcdefgh" * 8), comments="")
    for k, picture in enumerate(x):
        Image.fromarray(picture[0].numpy()).save(f"{k}.png")
    assert main(["predict", "run", "0.png", "1.png", "2.png", "a.npz", "b.csv", "--csv"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "file,sample,class,name,probability"
    assert [int(line.split(",")[2]) for line in lines] == expected * 3
    assert [float(line.split(",")[4]) for line in lines] == pytest.approx(sure.tolist() * 3, abs=1e-4)
    assert main(["predict", "run", "a.npz", "--task", "2"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["file", "sample", "class", "probability"]
    assert {int(line.split()[2]) for line in table[1:]} <= set(result.model().tasks[1])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere", "a.npz"], "nowhere holds no finished run"),
        (["run", "nothing.png"], "nothing.png: there is no such file"),
        (["run", "run/config.toml"], "not a picture, .npz or .csv file"),
        (["run", "short.csv"], "short.csv: 2 columns; a sample of this run is 64 numbers"),
        (["run", "words.csv"], "words.csv: not a table of numbers"),
        (["run", "flat.npz"], r"flat.npz: samples have shape \(3, 64\)"),
        (["run", "flat.npz", "--task", "3"], "--task 3: this run has tasks 1 to 2"),
    ],
)
def test_the_command_refuses_in_one_line(
    words: list[str], why: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    place = tmp_path_factory.getbasetemp() / "predict"
    if not place.exists():
        run("digits", scenario="class", out=place / "run", **QUICK)
        (place / "short.csv").write_text("1,2\n3,4\n")
        (place / "words.csv").write_text("1,2\n3,four\n")
        np.savez(place / "flat.npz", x=np.zeros((3, 64), np.uint8))
    monkeypatch.chdir(place)
    assert main(["predict", *words]) == 2
    error = capsys.readouterr().err
    assert re.search(why, error), error
    assert error.count("\n") == 1


def test_a_regression_predicts_numbers(tmp_path: Path) -> None:
    """R² by its definition, from predictions on the test half, is the run's."""
    result = run("diabetes", rounds=2, workers=1, out=tmp_path / "run")
    model, test = result.model(), load_source("diabetes").test
    assert test.task is not None
    for task in range(3):
        x, y = test.x[test.task == task], test.y[test.task == task].double()
        off = (model.predict(x).flatten().double() - y).square().sum() / (y - y.mean()).square().sum()
        assert 1 - float(off) == pytest.approx(result.score_matrix[-1][task], rel=1e-4)
    with pytest.raises(UserError, match="have no probabilities"):
        model.probabilities(x)


def _walks(folder: Path) -> list[list[str]]:
    """Two people's walks and rests, which one number tells apart, as a table with columns that are no features."""
    rows = [["who", "speed", "kind", "heat"]]
    rows += [[f"p{k % 2}", f"{(k // 2 % 2) * 4 + 0.1 * (k % 5):.1f}", ("rest", "walk")[k // 2 % 2], str(k % 3)]
             for k in range(40)]  # fmt: skip
    (folder / "walks.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    return rows


OF_WALKS: dict[str, Any] = {
    "source": "table:walks.csv",
    "tasks": 1,
    "clients": 2,
    "rounds": 3,
    "workers": 1,
    "out": "run",
}


@pytest.mark.parametrize("features", [(), ("heat", "speed")])
def test_the_table_that_was_learned_from_can_be_asked_about(
    features: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns of words and the label are left out, `data.features` says which are taken, and in which order."""
    rows = _walks(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path))
    said = {"label": "kind", "user": "who", "features": features}
    model = run(**OF_WALKS, data=said, scenario="class").model()
    assert main(["predict", "run", "walks.csv", "--csv"]) == 0
    answers = [line.split(",")[3] for line in capsys.readouterr().out.splitlines()[1:]]
    places = [rows[0].index(name) for name in (features or ("speed", "heat"))]
    x = torch.tensor([[float(row[place]) for place in places] for row in rows[1:]])
    assert answers == [model.class_names[k] for k in model.predict(x)]
    assert answers == [row[2] for row in rows[1:]]


def test_the_command_says_numbers_of_a_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = _walks(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path))
    said = {"label": "speed", "features": ("heat",)}
    model = run(**OF_WALKS, data=said, problem="regression", scenario="permuted").model()
    assert main(["predict", "run", "walks.csv"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["file", "sample", "predicted"]
    expected = model.predict(torch.tensor([[float(row[3])] for row in rows[1:]])).flatten()
    assert [float(line.split()[2]) for line in lines] == pytest.approx(expected.tolist(), rel=1e-5)


def _walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[str]], dict[str, Any]]:
    """Learn from a table in this folder; return its lines, and what the run says of its model."""
    rows = _walks(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path))
    run(**OF_WALKS, data={"label": "kind", "user": "who"}, scenario="class")
    return rows, json.loads(Path("run/model.json").read_text())


def test_columns_are_found_by_name_wherever_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns in another order are put into the run's; one that is missing is named; one too many is left out."""
    rows, about = _walked(tmp_path, monkeypatch)
    jsonschema.validate(about, json.loads((Path(cflag.__file__).parent / "results" / "model.schema.json").read_text()))
    assert about["spec"]["columns"] == ["speed", "heat"]
    assert about["table"] == {"label": "kind", "user": "who", "task": "task", "test": "test"}
    tables = {"turned": ["heat", "more", "speed"], "short": ["heat", "kind"]}
    for name, head in tables.items():
        known = [{**dict(zip(rows[0], row, strict=True)), "more": "9"} for row in rows[1:]]
        lines = [head, *([row[column] for column in head] for row in known)]
        Path(f"{name}.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    assert main(["predict", "run", "turned.csv", "--csv"]) == 0
    said = capsys.readouterr()
    assert [line.split(",")[3] for line in said.out.splitlines()[1:]] == [row[2] for row in rows[1:]]
    assert said.err == "note: turned.csv: not among what the run learned from, and left out: more\n"
    assert main(["predict", "run", "walks.csv", "--csv"]) == 0
    assert capsys.readouterr().err == ""  # the run's own table has nothing too many
    assert main(["predict", "run", "short.csv"]) == 2
    error = capsys.readouterr().err
    assert "short.csv: there is no column 'speed', which the run learned from; it has heat, kind" in error
    assert error.count("\n") == 1


def test_runs_that_kept_no_names_can_be_asked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model.json of an earlier version: by the order of the columns, as it was then."""
    rows, about = _walked(tmp_path, monkeypatch)
    del about["table"], about["spec"]["columns"], about["checksum"]
    write_sealed_json(Path("run/model.json"), about)
    digests = json.loads(Path("run/digests.json").read_text())
    del digests["checksum"]
    digests["model.json"] = checksum(Path("run/model.json").read_bytes())
    write_sealed_json(Path("run/digests.json"), digests)
    assert Result.load(Path("run")).model().columns == ()
    assert main(["predict", "run", "walks.csv", "--csv"]) == 0
    assert [line.split(",")[3] for line in capsys.readouterr().out.splitlines()[1:]] == [row[2] for row in rows[1:]]


def test_pictures_are_asked_about_as_they_were_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wide picture keeps its middle, as in training; squeezed into a square it would be another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path))
    for name, shade in (("dark", 20), ("light", 230)):
        Path("pics", name).mkdir(parents=True)
        for k in range(10):
            wide = Image.new("L", (24, 8), 255 - shade)
            wide.paste(shade + k, (8, 0, 16, 8))
            wide.save(f"pics/{name}/{k}.png")
    model = run(data={"size": 8}, **{**OF_WALKS, "source": "pictures:pics"}).model()
    middle = np.full((1, 1, 8, 8), 22, np.uint8)
    assert main(["predict", "run", "pics/dark/2.png", "--csv", "--task", "1"]) == 0
    probability = float(capsys.readouterr().out.splitlines()[1].split(",")[4])
    assert probability == pytest.approx(float(model.probabilities(middle, 0).max()), abs=1e-4)


def test_a_run_is_found_by_its_name_or_said_to_be_none(tmp_path: Path) -> None:
    folder = run("digits", out=tmp_path / "run", **QUICK).folder
    assert Result.load(str(folder)).folder == folder
    with pytest.raises(UserError, match=rf"is no run itself; name one of those in it: {folder}$"):
        Result.load(str(tmp_path))
    with pytest.raises(UserError, match="holds no finished run"):
        Result.load(str(tmp_path / "nowhere"))
