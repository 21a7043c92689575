"""W&B gets the run's numbers: real files, read back record by record. Nothing here talks to its server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cflag import run
from cflag.config import load_raw, merge, resolve
from cflag.engines.flower.processes.fleet import free_port
from cflag.experiment import Experiment
from cflag.launch import resume
from cflag.loggers.wandb import WandbLogger
from cflag.results.folder import RunFolder
from tests.support.logs import Notes, Points, expected, records
from tests.support.quick import without_times

pytestmark = pytest.mark.loggers

QUICK: dict[str, Any] = {"tasks": 2, "rounds": 3, "clients": 3, "width": 8, "workers": 1}
OWN = ("_timestamp", "_runtime", "_step")
"""What W&B adds to every row."""


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No account of the person who runs the tests; what we set for W&B's sake is taken back."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


@pytest.fixture(autouse=True)
def _service() -> Iterator[None]:
    """W&B's own process, and what it read of the environment, live as long as the process; here as long as a test."""
    import wandb

    yield
    wandb.teardown()


def read(folder: Path) -> list[Any]:
    """Return the records of the one W&B run in a run folder."""
    import wandb
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    wandb.teardown()  # its process writes the last records when it ends
    (file,) = (folder / "wandb").glob("*/*.wandb")
    store, found = DataStore(), []
    store.open_for_scan(str(file))
    while (raw := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(raw)
        found.append(record)
    store._fp.close()  # it leaves that to the garbage collector
    return found


def rows(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return W&B's history: steps and what was logged in each."""
    history = [record.history for record in read(folder) if record.WhichOneof("record_type") == "history"]
    items = [(h.step.num, {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in h.item}) for h in history]
    return [(step, {key: value for key, value in row.items() if key not in OWN}) for step, row in items]


def points(folder: Path) -> Points:
    found: Points = {}
    for step, row in rows(folder):
        for key, value in row.items():
            if not key.startswith("figures/"):
                found.setdefault(key, []).append((step, value))
    return found


def last(folder: Path) -> dict[str, Any]:
    """Return W&B's summary."""
    updates = [u for r in read(folder) if r.WhichOneof("record_type") == "summary" for u in r.summary.update]
    return {u.key or "/".join(u.nested_key): json.loads(u.value_json) for u in updates}


def test_a_log_has_the_floats_the_settings_and_the_end(tmp_path: Path) -> None:
    run("digits", out=tmp_path / "run", log="wandb", **QUICK)
    out, plain = tmp_path / "run", tmp_path / "plain"
    assert points(out) == expected(out)
    step, row = rows(out)[-1]
    assert step == 7
    assert sorted({"/".join(key.split("/")[:2]) for key in row}) == [
        f"figures/{p.stem}" for p in sorted((out / "figures").glob("*.png"))
    ]
    result, end = json.loads((out / "result.json").read_text()), last(out)
    assert end["result/average_accuracy"] == result["average_accuracy"]
    assert end["total/bytes_up"] == result["costs"]["bytes_up"]
    (begun,) = [record.run for record in read(out) if record.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert begun.project == "cflag"
    assert begun.display_name == "run"
    assert config["rounds"] == 3
    assert "finetune.lr" not in config  # another method's
    run("digits", out=plain, **QUICK)
    assert without_times(out) == without_times(plain)


def test_a_killed_run_goes_on_without_gap_or_double(tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = [part for key, value in (QUICK | {"rounds": 10}).items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "cflag", "run", "digits", *flags, "--set", "log=wandb", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while RunFolder(out).rounds_done() < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(records(out)) < 20
    resume(out)
    assert points(out) == expected(out)
    assert [record.exit.exit_code for record in read(out) if record.WhichOneof("record_type") == "exit"] == [0]


def test_a_failed_run_says_so(tmp_path: Path) -> None:
    config = resolve(merge(load_raw("digits"), [*QUICK.items(), ("log", "wandb")]))
    with pytest.raises(ValueError, match="broken"):
        Experiment(config).run(tmp_path / "run", Notes(stop_at=3))
    assert [r.exit.exit_code for r in read(tmp_path / "run") if r.WhichOneof("record_type") == "exit"] == [1]


def test_a_logger_that_breaks_for_a_while_has_all_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WandbLogger.log
    calls: list[int] = []

    def flaky(self: WandbLogger, step: int, values: dict[str, float]) -> None:
        calls.append(step)
        if len(calls) == 3:
            raise ConnectionError("gone")
        log(self, step, values)

    monkeypatch.setattr(WandbLogger, "log", flaky)
    out, notes = tmp_path / "run", Notes()
    Experiment(resolve(merge(load_raw("digits"), [*QUICK.items(), ("log", "wandb")]))).run(out, notes)
    assert len(notes.told) == 1
    assert calls == [1, 2, 3, 1, 2, 3, 4, 5, 6]  # the files are written anew
    assert points(out) == expected(out)


def test_a_server_that_is_gone_ends_no_run_and_is_made_good_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    out, notes = tmp_path / "run", Notes()
    config = resolve(merge(load_raw("digits"), [*QUICK.items(), ("log", "wandb")]))
    Experiment(config).run(out, notes)
    (note,) = notes.told
    assert "logging to W&B failed" in note
    monkeypatch.setenv("WANDB_MODE", "offline")
    resume(out)
    assert points(out) == expected(out)
