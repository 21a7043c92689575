"""Which loggers a run has and what they are told; test_logger_stores.py has real ones."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cflag import registry, run
from cflag.cli import main
from cflag.compare import Job, prepare
from cflag.config import load_raw, merge, resolve
from cflag.diagnostics import Figure, Marks, Series
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.loggers.attach import Careful
from cflag.loggers.base import scalars
from cflag.paper.reproduce import with_loggers
from cflag.results.display import Quiet
from cflag.results.folder import RunFolder
from tests.support.logs import expected

pytestmark = pytest.mark.usefixtures("no_figures")

QUICK: dict[str, Any] = {"tasks": 2, "rounds": 3, "clients": 3, "width": 8, "workers": 1}


def test_a_campaigns_runs_are_logged_also_those_begun_without(tmp_path: Path) -> None:
    config = resolve(merge(load_raw("digits"), QUICK.items()))
    jobs = [Job(tmp_path / name, config) for name in ("one", "two")]
    prepare(jobs[:1])
    assert with_loggers(jobs, "")[0].config.log == ""
    prepare(with_loggers(jobs, "tensorboard"))
    assert [RunFolder(job.folder).config().log for job in jobs] == ["tensorboard", "tensorboard"]
    prepare(jobs)  # repeated without: what is logged stays so
    assert RunFolder(tmp_path / "one").config() == replace(config, log="tensorboard")


def test_log_decides_no_number() -> None:
    config = resolve(load_raw("digits"))
    assert replace(config, log="mlflow").numbers() == config.numbers()


def test_what_is_no_number_is_left_out() -> None:
    clients = {"alpha": [0.1, None, float("nan"), 0.3], "case": ["none"] * 4, "beta": [None]}
    record = {"loss": float("nan"), "memory_loss": None, "accuracies": None, "gamma": float("inf"), "clients": clients}
    series = (Series("gamma", "Γ"), Series("own_rate", "β*"), Series("alpha", "α_i", by_client=True))
    figures = [Figure("own", "Of its own", (*series, Series("beta", "β_i", by_client=True)), Marks("case", (), ""))]
    assert scalars({**record, "own_rate": 0.5}, figures) == {"own/rate": 0.5, "own/alpha": 0.2}


def test_what_a_method_logs_and_does_not_declare_is_logged_as_the_methods() -> None:
    clients = {"loss": [1.0, 3.0], "memory_loss": [1.0, 1.0], "drift": [1.0, 2.0], "case": ["none", "none"]}
    record = {"task": 1, "round": 1, "loss": 2.0, "temperature": 0.5, "clients": clients, "seconds": 1.0}
    assert scalars(record, []) == {"loss/current": 2.0, "method/temperature": 0.5, "method/drift": 1.5}


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("tensorbord", "unknown logger 'tensorbord'; did you mean 'tensorboard'?"),
        ("mlflow,tensorbard", "did you mean 'tensorboard'?"),
        ("neptune", "known: mlflow, tensorboard, wandb"),
    ],
)
def test_bad_names_are_refused(log: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match="unknown logger"):
        resolve({"log": log})
    for argv in (["run", "digits", "--set", f"log={log}"], ["reproduce", "table-iid", "--log", log]):
        assert main([*argv, "--out", str(out)]) == 2
        assert said in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("log", "module", "extra"),
    [
        ("tensorboard", "tensorboard", "cflag[tensorboard]"),
        ("mlflow", "mlflow", "cflag[mlflow]"),
        ("tensorboard,mlflow", "sqlalchemy", "cflag[mlflow]"),
    ],
)
def test_without_its_package_the_line_says_what_to_install(
    log: str, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, module, None)
    out = tmp_path / "out"
    commands = [["run", "digits", "--set", f"log={log}"], ["deploy", "digits", "--set", f"log={log}"]]
    commands += [["compare", "digits", "--methods", "cflag", "--set", f"log={log}"]]
    commands += [["reproduce", "table-iid", "--log", log]]
    for argv in commands:
        assert main([*argv, "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert f"pip install '{extra}'" in error
        assert len(error.splitlines()) == 1
        assert not out.exists()
    experiment = Experiment(replace(resolve(load_raw("digits")), log=log))
    with pytest.raises(UserError, match="needs"):
        experiment.run(out)
    assert not out.exists()
    RunFolder.create(out, experiment.config)
    with pytest.raises(UserError, match="needs"):
        experiment.resume(out)
    assert not RunFolder(out).metrics.exists()


def test_a_plugins_logger_gets_every_round_and_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugin.py").write_text("""
import json

from cflag.loggers.base import Logger
from cflag.registry import register


@register("logger", "notebook", "one file of JSON")
class Notebook(Logger):
    def open(self, done):
        self.lines = []
        return set()

    def log(self, step, values):
        self.lines.append([step, values])

    def sum_up(self, result):
        self.lines.append(result["average_accuracy"])

    def close(self, status):
        (self.folder.path / "notebook.json").write_text(json.dumps([self.name, status, self.lines]))
""")
    registry.load_plugins([tmp_path / "plugin.py"])
    result = run("digits", out=tmp_path / "run", log="notebook", **QUICK)
    name, status, (*rounds, accuracy) = json.loads((tmp_path / "run" / "notebook.json").read_text())
    assert (name, status, accuracy) == ("notebook", "FINISHED", result.average_accuracy)
    assert [step for step, _ in rounds] == [1, 2, 3, 4, 5, 6]
    series = expected(tmp_path / "run")
    for step, values in rounds:
        assert values == {key: value for key, points in series.items() for at, value in points if at == step}


def test_a_careful_logger_that_never_started_stays_silent(tmp_path: Path) -> None:
    config = resolve(load_raw("digits"))
    Careful("mlflow", config, RunFolder(tmp_path), Quiet()).stop()
    assert list(tmp_path.iterdir()) == []
