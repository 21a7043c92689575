"""TensorBoard and MLflow get the run's numbers: real event files and a real store, read back with their own readers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pytest

from cflag import run
from cflag.cli import main
from cflag.config import OPTION_TABLES, load_raw, merge, resolve
from cflag.engines.flower.processes.fleet import free_port, tool
from cflag.errors import InterruptedRunError
from cflag.experiment import Experiment
from cflag.launch import resume
from cflag.loggers.mlflow import MlflowLogger, own_store
from cflag.loggers.tensorboard import TensorBoardLogger
from cflag.results.display import Quiet
from cflag.results.folder import RunFolder, runs_in
from tests.support.crashes import Crash
from tests.support.grid import FakeGrid, Node
from tests.support.logs import Notes, Points, expected, records
from tests.support.quick import without_times

pytestmark = pytest.mark.loggers

QUICK: dict[str, Any] = {"tasks": 2, "rounds": 3, "clients": 3, "width": 8, "workers": 1}
FLAGS = [part for key, value in QUICK.items() for part in ("--set", f"{key}={value}")]
BOTH = "tensorboard,mlflow"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No store of the person who runs the tests; what we set for MLflow's sake is taken back."""
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def at_the_end(folder: Path) -> Points:
    result = json.loads((folder / "result.json").read_text())
    names = ["average_accuracy", "forgetting", "forgetting_max", "backward_transfer", "forward_transfer"]
    values = {f"result/{name}": result[name] for name in [*names, "learning_accuracy"]}
    measured = ("accuracy_seen", "accuracy_anyone", "worst_tenth", "anytime_accuracy")
    values |= {f"result/{name}": result["measures"]["all"][name] for name in measured}
    values |= {f"total/{name}": value for name, value in result["costs"].items()}
    values["total/capped"] = sum(sum(record["clients"].get("capped", [])) for record in records(folder))
    return {name: [(len(records(folder)), value)] for name, value in values.items()}


def accumulated(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    return events.Reload()


def tensorboard(folder: Path) -> Points:
    events = accumulated(folder)
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def single(series: Points) -> Points:
    """The nearest numbers of single precision: TensorBoard has no others."""
    return {name: [(step, float(np.float32(value))) for step, value in points] for name, points in series.items()}


def wanted(folder: Path) -> Points:
    return {**expected(folder), **at_the_end(folder)}


def mlflow_runs(store: Path) -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{store}")
    experiment = client.get_experiment_by_name("cflag")
    return client, list(client.search_runs([experiment.experiment_id]))


def mlflow(folder: Path) -> Points:
    client, runs = mlflow_runs(folder.parent / "mlflow.db")
    (found,) = [run for run in runs if run.info.run_name == folder.name]
    histories = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    return {name: [(m.step, m.value) for m in history] for name, history in histories.items()}


def status(folder: Path) -> str:
    _, runs = mlflow_runs(folder.parent / "mlflow.db")
    (found,) = [run for run in runs if run.info.run_name == folder.name]
    return str(found.info.status)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("logged") / "a run"
    run("digits", out=out, log=BOTH, **QUICK)
    return out


@pytest.fixture
def _store(logs: Path, tmp_path: Path) -> None:
    """An empty store, copied from one that was made: that takes longer than a run."""
    empty = logs.parent / "empty"
    if not empty.exists():
        empty.mkdir()
        own_store(empty)
    shutil.copy(empty / "mlflow.db", tmp_path / "mlflow.db")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain") / "run"
    run("digits", out=out, **QUICK)
    return out


def test_a_log_has_the_floats_of_metrics_and_result(logs: Path) -> None:
    assert mlflow(logs) == wanted(logs)
    assert tensorboard(logs) == single(wanted(logs))


def test_logging_changes_no_number(logs: Path, plain: Path) -> None:
    assert without_times(logs) == without_times(plain)
    assert (logs / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


def test_mlflow_has_the_settings_the_files_and_the_end(logs: Path) -> None:
    client, (found,) = mlflow_runs(logs.parent / "mlflow.db")
    config = json.loads((logs / "result.json").read_text())["config"]
    params = {k: str(v) for k, v in config.items() if not isinstance(v, dict)}
    params |= {f"{table}.{k}": str(v) for table in (*OPTION_TABLES, "cflag") for k, v in config[table].items()}
    assert found.data.params == params
    assert found.info.status == "FINISHED"
    kept = Path(client.download_artifacts(found.info.run_id, ""))
    names = [
        "config.toml",
        "metrics.jsonl",
        "result.json",
        *(f"figures/{p.name}" for p in (logs / "figures").iterdir()),
    ]
    assert sorted(names) == sorted(str(p.relative_to(kept)) for p in kept.rglob("*") if p.is_file())
    assert all((kept / name).read_bytes() == (logs / name).read_bytes() for name in names)


def test_tensorboard_has_the_settings_and_the_figures(logs: Path) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = accumulated(logs)
    assert sorted(events.Tags()["images"]) == [f"figures/{p.stem}" for p in sorted((logs / "figures").glob("*.png"))]
    (image,) = events.Images("figures/accuracy_matrix")
    assert image.encoded_image_string.startswith(b"\x89PNG")
    (text,) = events.Tensors("config/text_summary")
    assert (logs / "config.toml").read_text() in text.tensor_proto.string_val[0].decode()
    raw = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = HParamsPluginData.FromString(raw).session_start_info.hparams
    assert hparams["rounds"].number_value == 3
    assert (
        hparams["cflag.adapt"].string_value
        == json.loads((logs / "result.json").read_text())["config"]["cflag"]["adapt"]
    )
    assert "finetune.lr" not in hparams  # another method's


class Stop(Quiet):
    """Ends the run in a round, after its checkpoint and before a logger hears of it."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at, self.error = at, error

    def update(self, record: dict[str, Any]) -> None:
        self.at -= 1
        if not self.at:
            raise self.error


@pytest.mark.usefixtures("_store")
@pytest.mark.parametrize(
    ("error", "ends"),
    [(InterruptedRunError("stopped"), "KILLED"), (KeyboardInterrupt(), "KILLED"), (ValueError("broken"), "FAILED")],
)
def test_an_ended_run_says_how_and_goes_on_without_gap_or_double(
    error: BaseException, ends: str, tmp_path: Path
) -> None:
    out, config = tmp_path / "run", resolve(merge(load_raw("digits"), [*QUICK.items(), ("log", BOTH)]))
    with pytest.raises(type(error)):
        Experiment(config).run(out, Stop(4, error))
    assert len(records(out)) == 4
    assert [step for step, _ in tensorboard(out)["seconds"]] == [1, 2, 3]
    assert status(out) == ends
    resume(out)
    assert status(out) == "FINISHED"
    assert mlflow(out) == wanted(out)
    assert tensorboard(out) == single(wanted(out))


@pytest.mark.usefixtures("_store")
def test_a_real_kill_leaves_no_gap_and_no_double(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "cflag", "run", "--quiet"]
    begin = [*command, "digits", *FLAGS, "--set", "rounds=10", "--set", f"log={BOTH}", "--out", str(out)]
    process = subprocess.Popen(begin, stdout=subprocess.DEVNULL)
    while RunFolder(out).rounds_done() < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(records(out)) < 20
    assert status(out) == "RUNNING"
    subprocess.run([*command, "--resume", str(out)], check=True, stdout=subprocess.DEVNULL)
    assert status(out) == "FINISHED"
    assert mlflow(out) == wanted(out)
    assert tensorboard(out) == single(wanted(out))


def test_an_event_file_that_was_cut_short_is_made_good(tmp_path: Path) -> None:
    out, config = tmp_path / "run", resolve(merge(load_raw("digits"), [*QUICK.items(), ("log", "tensorboard")]))
    with pytest.raises(ValueError, match="broken"):
        Experiment(config).run(out, Stop(4, ValueError("broken")))
    (file,) = (out / "tensorboard").iterdir()
    os.truncate(file, file.stat().st_size - 5)  # in the middle of the third round
    assert [step for step, _ in tensorboard(out)["loss/current"]] == [1, 2]
    resume(out)
    assert tensorboard(out) == single(wanted(out))


@pytest.mark.usefixtures("_store")
@pytest.mark.parametrize(("name", "logger"), [("tensorboard", TensorBoardLogger), ("mlflow", MlflowLogger)])
def test_a_death_while_summing_up_is_made_good(
    name: str, logger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is on disk, so the run is finished; the log is not, and nothing but --resume is left to finish it."""

    def dying(*_: object) -> None:
        raise Crash

    monkeypatch.setattr(logger, "close", dying)
    out = tmp_path / "run"
    with pytest.raises(Crash):
        run("digits", out=out, log=name, **QUICK)
    monkeypatch.undo()
    resume(out)
    if logger is TensorBoardLogger:
        assert tensorboard(out) == single(wanted(out))
    else:
        assert mlflow(out) == wanted(out)
    assert json.loads((out / "loggers.json").read_text())[name]["finished"]


@pytest.mark.usefixtures("_store")
def test_a_server_that_is_gone_ends_no_run_and_is_made_good_later(
    tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    out, notes = tmp_path / "run", Notes()
    config = resolve(merge(load_raw("digits"), [*QUICK.items(), ("log", "mlflow")]))
    Experiment(config).run(out, notes)
    (note,) = notes.told
    assert "logging to MLflow failed" in note
    assert "the run goes on" in note
    assert (out / "events.log").read_text().count("logging to MLflow failed") == 1
    assert without_times(out) == without_times(plain)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    resume(out)
    assert mlflow(out) == wanted(out)
    assert status(out) == "FINISHED"


@pytest.mark.usefixtures("_store")
def test_a_logger_that_breaks_for_a_while_has_all_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MlflowLogger.log
    calls: list[int] = []

    def flaky(self: MlflowLogger, step: int, values: dict[str, float]) -> None:
        calls.append(step)
        if len(calls) == 3:
            raise ConnectionError("gone")
        log(self, step, values)

    monkeypatch.setattr(MlflowLogger, "log", flaky)
    out, notes = tmp_path / "run", Notes()
    config = resolve(merge(load_raw("digits"), [*QUICK.items(), ("log", "mlflow")]))
    Experiment(config).run(out, notes)
    assert len(notes.told) == 1
    assert calls[:3] == [1, 2, 3]  # and then no more until the end
    assert calls[3:] == [3, 4, 5, 6, 6]
    assert mlflow(out) == wanted(out)
    assert status(out) == "FINISHED"


def test_a_log_that_is_asked_for_late_has_all_rounds(tmp_path: Path) -> None:
    out, config = tmp_path / "run", resolve(merge(load_raw("digits"), QUICK.items()))
    with pytest.raises(ValueError, match="broken"):
        Experiment(config).run(out, Stop(2, ValueError("broken")))
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace('log = ""', 'log = "tensorboard"'))
    resume(out)
    assert tensorboard(out) == single(wanted(out))


@pytest.mark.usefixtures("_store")
def test_a_fleets_server_logs_every_round_once(tmp_path: Path) -> None:
    from cflag.commands.server_app import run_server_app

    raw = merge(load_raw("digits"), [*QUICK.items(), ("engine", "flower"), ("log", BOTH)])
    folder = RunFolder.create(tmp_path / "run", resolve(raw))
    run_server_app(FakeGrid([Node(k, tmp_path / f"node-{k}") for k in range(3)]), folder)  # type: ignore[arg-type]
    assert mlflow(folder.path) == wanted(folder.path)
    assert tensorboard(folder.path) == single(wanted(folder.path))


def test_runs_of_a_comparison_share_a_store(tmp_path: Path) -> None:
    out = tmp_path / "fair"
    flags = [*FLAGS, "--set", "log=mlflow", "--methods", "cflag,finetune", "--seeds", "1", "--jobs", "2"]
    assert main(["compare", "digits", *flags, "--out", str(out)]) == 0
    _, runs = mlflow_runs(out / "mlflow.db")
    assert sorted(run.info.run_name for run in runs) == ["cflag-3-1", "finetune-3-1"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert runs_in(out) == [out / "cflag-3-1", out / "finetune-3-1"]  # MLflow's copies are no runs
    assert "lambda" in records(out / "cflag-3-1")[-1]["clients"]
    assert mlflow(out / "finetune-3-1")["accuracy/mean"] == [
        (k, r["accuracy"]) for k, r in enumerate(records(out / "finetune-3-1"), 1)
    ]


def test_tensorboards_own_server_serves_the_scalars(logs: Path) -> None:
    """Its fast reader is another program than the one in Python, and pickier."""
    port = free_port()
    command = [tool("tensorboard"), "--logdir", str(logs.parent), "--host", "127.0.0.1", "--port", str(port)]
    query = urlencode({"run": f"{logs.name}/tensorboard", "tag": "accuracy/mean"})
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        points: list[list[float]] = []
        end = time.monotonic() + 120
        while len(points) < len(records(logs)) and time.monotonic() < end:
            assert process.poll() is None
            time.sleep(0.5)
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?{query}") as page:
                points = json.load(page)
    finally:
        process.terminate()
        process.wait()
    assert [step for _, step, _ in points] == list(range(1, len(records(logs)) + 1))
    for (_, _, value), record in zip(points, records(logs), strict=True):
        assert value == float(np.float32(record["accuracy"]))
