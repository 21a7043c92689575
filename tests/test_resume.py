"""Killed at any point and resumed, a run gives the same bytes as one that was never stopped."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import cflag.files
from cflag import Client, Server, run
from cflag.cli import main
from cflag.config import resolve
from cflag.errors import CflagError, UserError
from cflag.files import load_state, save_state
from cflag.launch import resume
from cflag.results.folder import RunFolder
from cflag.results.generations import Generations
from cflag.states.log import Tail, append
from tests.support.crashes import Crash, newest_checkpoint, stop_after
from tests.support.quick import QUICK, same, without_times
from tests.support.states import places

pytestmark = pytest.mark.usefixtures("no_figures")

SETTINGS = {**QUICK, "tasks": 3, "rounds": 3, "average_tail": 0.67, "zeta": 1.0,
            "cflag": {"estimator": "iag", "rules": "both", "drift": 1.0}}  # fmt: skip
FLAGS = [f"--set={k}={v}" for k, v in SETTINGS.items() if k != "cflag"]
FLAGS += ["--set=cflag.estimator=iag", "--set=cflag.rules=both", "--set=cflag.drift=1.0"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    run("digits", out=out, **SETTINGS)
    return out


@pytest.mark.parametrize("fatal", [1, 2, 3, 5, 8, 9, 11, 12, 16, 17])
def test_a_crash_at_any_write_loses_nothing(
    fatal: int, tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Die right before the n-th file is put in its place, with half of the new one written."""
    count = 0
    replace = os.replace

    def dying(source: str, target: str) -> None:
        nonlocal count
        count += 1
        if count == fatal:
            raise Crash
        replace(source, target)

    monkeypatch.setattr("cflag.files.os.replace", dying)
    out = tmp_path / "run"
    with pytest.raises(Crash):
        run("digits", out=out, workers=1, **SETTINGS)
    monkeypatch.undo()
    if fatal == 1:  # died before the config was there: nothing was computed, nothing is lost
        assert not (out / "config.toml").exists()
        return
    resume(out)
    same(out, unbroken)
    assert not [path for path in out.rglob("*.new") if not path.name.startswith(("config", "experiment"))]


def test_a_crash_between_metrics_and_checkpoint_leaves_no_double_line(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def crash(*_: object) -> None:
        raise Crash

    monkeypatch.setattr(Generations, "save", crash)
    with pytest.raises(Crash):
        run("digits", out=out, workers=1, **SETTINGS)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 1
    monkeypatch.undo()
    resume(out)
    same(out, unbroken)


@pytest.mark.slow
def test_sigkill_at_random_moments(tmp_path: Path, unbroken: Path) -> None:
    """The real thing: a process with workers, killed again and again until it happens to finish."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "cflag", "run", "--quiet"]
    start = [*command, "digits", *FLAGS, "--set=workers=2", f"--out={out}"]
    moments = random.Random(4)
    for attempt in range(30):
        process = subprocess.Popen(
            [*command, "--resume", str(out)] if (out / "config.toml").exists() else start,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not (out / "checkpoint").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        lines = len((out / "metrics.jsonl").read_text().splitlines()) if (out / "metrics.jsonl").exists() else 0
        while attempt < 4 and process.poll() is None and time.monotonic() < deadline:
            # wait until it is at work again, then strike at a random moment
            now = (out / "metrics.jsonl").read_text().count("\n") if (out / "metrics.jsonl").exists() else 0
            if now > lines or (out / "result.json").exists():
                break
            time.sleep(0.005)
        if attempt < 4:
            time.sleep(moments.uniform(0, 0.1))
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        assert "in use" not in errors
        assert "Traceback" not in errors
        if (out / "result.json").exists():
            break
    same(out, unbroken)


def test_ctrl_c_stops_saves_and_says_how_to_go_on(tmp_path: Path, unbroken: Path) -> None:
    out = tmp_path / "run"
    start = [sys.executable, "-m", "cflag", "run", "digits", *FLAGS, f"--out={out}"]
    process = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1].endswith(f"continue with: cflag run --resume {out}")
    assert "Traceback" not in errors
    assert main(["run", "--quiet", "--resume", str(out)]) == 0
    same(out, unbroken)


def test_a_kill_after_the_last_checkpoint_leaves_no_state_of_earlier_rounds(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checkpoint comes after it that would drop them."""
    out = tmp_path / "run"
    stop_after(9, monkeypatch)
    with pytest.raises(Crash):
        run("digits", out=out, workers=1, **SETTINGS)
    monkeypatch.undo()
    names = {path.name for path in (out / "checkpoint").iterdir()}
    kept = {name for name in names if ".3-2." not in name}
    assert len(kept) == len(names) - 1  # the server
    assert {place.when for place in places(out)} == {(2, 3), (3, 3)}
    (out / "checkpoint" / f"clients-7.{RunFolder(out).name}.2-3.log").write_bytes(b"old")
    resume(out)
    same(out, unbroken)
    assert {path.name for path in (out / "checkpoint").iterdir()} == kept
    assert [(place.client, place.when) for place in places(out)] == [(k, (3, 3)) for k in range(5)]


def test_resuming_a_finished_run_changes_nothing(unbroken: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in unbroken.rglob("*") if p.is_file() and p.name != ".lock"}
    resume(unbroken)
    assert before == {p: p.stat().st_mtime_ns for p in unbroken.rglob("*") if p.is_file() and p.name != ".lock"}


def test_resume_with_another_number_of_workers(tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    stop_after(4, monkeypatch)
    with pytest.raises(Crash):
        run("digits", out=out, workers=1, **SETTINGS)
    monkeypatch.undo()
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace("workers = 1", "workers = 3"))
    resume(out)
    assert without_times(out) == without_times(unbroken)


@pytest.mark.parametrize(("workers", "name"), [(1, "server"), (1, "client"), (2, "client"), (1, "model")])
def test_a_full_disk_is_one_clear_line_and_loses_nothing(
    workers: int, name: str, tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills while the server's checkpoint, a client's state (also in a worker) or the model is written."""
    out = tmp_path / "run"
    save = cflag.files.save_state

    def full(path: Path, state: Any) -> None:
        if path.name.startswith(name) and state.get("done") in (None, 5):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(path, state)

    def log_full(tail: Tail, records: Any) -> Any:
        if name == "client":
            tail.path.write_bytes(b"half a record")
            raise OSError(errno.ENOSPC, "No space left on device", str(tail.path))
        return append(tail, records)

    with monkeypatch.context() as patch:
        patch.setattr("cflag.states.log.append", log_full)
        patch.setattr("cflag.results.folder.save_state", full)
        patch.setattr("cflag.results.generations.save_state", full)
        with pytest.raises(CflagError, match=r"disk is full .*checkpoint is kept; free some space and continue with"):
            run("digits", out=out, workers=workers, **SETTINGS)
    resume(out)
    same(out, unbroken)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: RunFolder, record: dict[str, Any]) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(self.metrics))

    monkeypatch.setattr(RunFolder, "append", refused)
    with pytest.raises(CflagError, match=r"metrics.jsonl: Permission denied; .* continue with: cflag run --resume"):
        run("digits", out=tmp_path / "run", **SETTINGS)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be made: Not a directory"):
        run("digits", out=tmp_path / "file" / "run", **SETTINGS)


def test_two_processes_cannot_share_a_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path / "run", resolve(QUICK))
    other = get_context("fork").Process(target=lambda: sys.exit(main(["run", "--resume", str(tmp_path / "run")])))
    with folder.locked():
        other.start()
        other.join()
    assert other.exitcode == 2
    assert "in use by another process" in capfd.readouterr().err


@pytest.mark.parametrize(("key", "old", "new"), [("seed", "1234", "1"), ("rounds", "3", "2"), ("width", "8", "9")])
def test_a_checkpoint_is_tied_to_its_config(
    key: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Crash):
            run("digits", out=out, workers=1, **SETTINGS)
    text = (out / "config.toml").read_text()
    assert f"{key} = {old}\n" in text
    (out / "config.toml").write_text(text.replace(f"{key} = {old}\n", f"{key} = {new}\n"))
    with pytest.raises(UserError, match=f"'{key}' was changed since the checkpoint .{old} to {new}."):
        resume(out)


def test_ctrl_c_between_two_runs_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes while the first run's figures are drawn stops the second, with the resume command."""
    finish = RunFolder.finish

    def interrupted(self: RunFolder, *args: Any) -> None:
        finish(self, *args)
        os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "both"
    argv = ["run", "digits", "--quiet", *[f"--set={k}={v}" for k, v in QUICK.items()], "--seeds", "1,2"]
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", interrupted)
        assert main([*argv, "--out", str(out)]) == 130
    assert (out / "01-cflag-1" / "result.json").exists()
    assert not (out / "02-cflag-2" / "result.json").exists()
    assert main(["run", "--quiet", "--resume", str(out)]) == 0
    assert (out / "02-cflag-2" / "result.json").exists()


def test_a_damaged_checkpoint_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    stop_after(1, monkeypatch)
    with pytest.raises(Crash):
        run("digits", out=out, workers=1, **SETTINGS)
    monkeypatch.undo()
    path = newest_checkpoint(out)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        CflagError, match=r"server\..*\.1-1\.safetensors is damaged.*; put back a copy of it, or start a new run"
    ):
        resume(out)


def test_state_of_a_method_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors and JSON values that a method keeps at the server and at clients come back as they were."""
    import torch

    from cflag.methods.finetune import Finetune

    seen: list[dict[str, Any]] = []
    plain = Finetune.round

    def round_(self: Finetune, server: Server) -> Any:
        seen.append(dict(server.state))
        server.state = {"count": seen[-1].get("count", 0) + 1, "vector": server.params.clone()}
        yield from plain(self, server)

    steps = Finetune.local_steps

    def local_steps(self: Finetune, client: Client, **sent: Any) -> Any:
        visits = int(str(client.state.get("visits", 0))) + 1
        client.state["visits"] = visits
        client.log(visits=visits)
        return steps(self, client, **sent)

    monkeypatch.setattr(Finetune, "round", round_)
    monkeypatch.setattr(Finetune, "local_steps", local_steps)
    settings = {**QUICK, "method": "finetune", "workers": 1, "stack": 1}
    with monkeypatch.context() as inner:
        stop_after(2, inner)
        with pytest.raises(Crash):
            run("digits", out=tmp_path / "run", **settings)
    seen.clear()
    result = resume(tmp_path / "run")
    assert seen[0]["count"] == 2
    assert isinstance(seen[0]["vector"], torch.Tensor)
    assert [line["clients"]["visits"][0] for line in result.metrics] == [1, 2, 3, 4]


def test_state_round_trip(tmp_path: Path) -> None:
    import torch

    state = {"a": torch.arange(6).view(2, 3), "b": [1, {"c": "é"}], "d": 1.5, "e": torch.zeros(0)}
    save_state(tmp_path / "s", state)
    back = load_state(tmp_path / "s")
    assert torch.equal(back.pop("a"), state["a"])  # type: ignore[arg-type]
    assert back.pop("e").shape == (0,)
    assert back == {"b": [1, {"c": "é"}], "d": 1.5}


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_is_one_clear_line_and_loses_nothing(
    error: Exception, tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def full(self: Generations, stamp: str, state: dict[str, Any]) -> None:
        if state["done"] == 4:
            raise error
        save(self, stamp, state)

    save = Generations.save
    with monkeypatch.context() as patch:
        patch.setattr(Generations, "save", full)
        with pytest.raises(CflagError, match=r"out of memory; the last checkpoint is kept; .* --resume"):
            run("digits", out=out, workers=1, **SETTINGS)
    resume(out)
    same(out, unbroken)
