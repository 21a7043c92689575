"""Files of another run, keys that are gone, and counts that cannot be: whatever is believed belongs to the run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from cflag import cipher, run
from cflag.config import load_config
from cflag.engines.flower.messages import pack, unpack
from cflag.errors import DamagedError, UserError, out_of_memory
from cflag.files import load_client_state, save_states
from cflag.launch import resume
from cflag.privacy.accounting import Spending
from cflag.privacy.noise import KEY_FILE
from cflag.privacy.options import PrivacyOptions
from tests.support.crashes import Crash, stop_after
from tests.support.grid import Fleet
from tests.support.quick import QUICK

pytestmark = pytest.mark.usefixtures("no_figures")

SETTINGS: dict[str, Any] = {**QUICK, "clients": 3, "workers": 1, "samples_per_class": 40}


def stopped(out: Path, **settings: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            run("digits", out=out, **SETTINGS, **settings)
    return out


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with another seed."""
    out = tmp_path_factory.mktemp("other") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cflag.results.folder.draw", lambda *_: None)
        run("digits", out=out, **{**SETTINGS, "seed": 5})
    return out


def test_another_runs_result_does_not_end_a_run(other: Path, tmp_path: Path) -> None:
    out = stopped(tmp_path / "run")
    shutil.copy(other / "result.json", out)
    with pytest.raises(UserError, match=r"result.json has no digests.json beside it: is it another run's"):
        resume(out)
    for name in ("digests.json", "metrics.jsonl", "model.safetensors"):
        shutil.copy(other / name, out)
    with pytest.raises(UserError, match=r"digests.json is of another run"):
        resume(out)


def test_another_runs_model_is_not_taken_for_this_ones(other: Path, tmp_path: Path) -> None:
    out = shutil.copytree(other, tmp_path / "run")
    third = run("digits", out=tmp_path / "third", **SETTINGS).folder
    assert third is not None
    shutil.copy(third / "model.safetensors", out)
    with pytest.raises(UserError, match=r"model.safetensors is not what digests.json says was written"):
        resume(out)
    (out / "model.safetensors").unlink()
    resume(out)  # people may have deleted it


def test_another_runs_benchmark_does_not_stay(other: Path, tmp_path: Path) -> None:
    out = stopped(tmp_path / "run")
    own = (out / "benchmark.json").read_bytes()
    shutil.copy(other / "benchmark.json", out)
    assert (out / "benchmark.json").read_bytes() != own
    resume(out)
    assert (out / "benchmark.json").read_bytes() == own


def test_an_empty_config_is_not_one_of_defaults(tmp_path: Path) -> None:
    out = stopped(tmp_path / "run")
    (out / "config.toml").write_text("")
    with pytest.raises(UserError, match=r"config.toml: it is empty; put back a copy"):
        resume(out)


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_a_private_run_does_not_go_on_with_other_noise(unit: str, tmp_path: Path) -> None:
    """A round that is played again with fresh noise would be a second release that nobody counts."""
    out = stopped(tmp_path / "run", method="finetune", privacy={"unit": unit})
    key = out / KEY_FILE
    content = bytearray(key.read_bytes())
    content[5] ^= 1
    key.write_bytes(content)
    with pytest.raises(UserError, match=r"noise.key is damaged: its checksum does not fit"):
        resume(out)
    key.unlink()
    with pytest.raises(UserError, match=r"noise.key is gone; a private run cannot go on without it"):
        resume(out)


@pytest.mark.parametrize("noise", [1e-160, 1e-320, 1e160, 1e308])
def test_noise_that_cannot_be_counted_is_refused(noise: float) -> None:
    with pytest.raises(UserError, match=r"privacy.noise = .* must lie between 1e-6 and 1e6"):
        load_config("digits", method="replay", privacy={"unit": "client", "noise": noise})


def test_what_is_no_number_is_no_bound() -> None:
    assert Spending(PrivacyOptions()).epsilon(float("nan")) == float("inf")
    assert Spending(PrivacyOptions()).epsilon(float("inf")) == float("inf")


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"cost": [-1, 0]}, "it counts -1 gradients"),
        ({"cost": [0, 10**300]}, "it counts 1000"),
        ({"cost": [float("nan"), 0]}, "it counts nan gradients"),
        ({"uses": 1e308}, "it counts 1e+308 uses of a sample"),
        ({"logs": {f"log {k}": 1.0 for k in range(20_000)}}, "it logs 20000 things; at most 64"),
    ],
)
def test_counts_that_cannot_be_are_refused(lie: dict[str, Any], why: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, method="finetune", rounds=1, samples_per_class=40, min_clients=2)

    def lying(question: Message, reply: Message) -> Message:
        head, tensors = unpack(reply.content)
        return Message(pack({**head, **lie}, tensors), reply_to=question) if "cost" in head else reply

    fleet.nodes[1].spoil = lying
    fleet.run()
    record = fleet.records()[0]
    assert why in record["missing"]["1"]
    assert 0 < record["gradients_current"] < 10**6


@pytest.mark.parametrize("where", [3, 20, 30, 150, -1])
def test_damage_anywhere_in_an_encrypted_state_is_damage(
    where: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a file in plain, and not one of another key: so a run can go back to the checkpoint before it."""
    cipher.make_key(tmp_path / "key")
    monkeypatch.setenv(cipher.VARIABLE, str(tmp_path / "key"))
    path = tmp_path / "client-0.safetensors"
    save_states([(path, {"a": 1})])
    whole = path.read_bytes()
    content = bytearray(whole)
    content[where] ^= 1
    for damaged in (bytes(content), whole[:20], whole[: len(whole) // 2], b""):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError):
            load_client_state(path)
    cipher.make_key(tmp_path / "other")
    path.write_bytes(whole)
    monkeypatch.setenv(cipher.VARIABLE, str(tmp_path / "other"))
    with pytest.raises(UserError, match="with another key") as refused:
        load_client_state(path)
    assert not isinstance(refused.value, DamagedError)


@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, "[" * 3000])
@pytest.mark.parametrize("key", ["mean.outlier", "memory.sample", "rounds"])
def test_numbers_beyond_all_others_are_one_line(
    key: str, text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from cflag.cli import main

    assert main(["run", "digits", "--set", f"{key}={text}", "--out", str(tmp_path / "run")]) == 2
    said = capfd.readouterr().err
    assert said.startswith(f"cflag: {key} = ")
    assert len(said) < 600


def test_an_overflow_is_not_always_a_lack_of_memory() -> None:
    assert out_of_memory(RuntimeError("Storage size calculation overflowed with sizes=[9, 9]"))
    assert not out_of_memory(RuntimeError("value cannot be converted to type float without overflow"))


def test_a_state_folder_that_was_there_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cflag.engines.flower.processes import node

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    os.chmod(state, 0o755)
    monkeypatch.setattr(node.NodeOptions, "check", lambda self: None)
    monkeypatch.setattr(node, "alone", stop)
    options: Any = node.NodeOptions.__new__(node.NodeOptions)
    object.__setattr__(options, "state", state)
    object.__setattr__(options, "poll", 0.0)
    with pytest.raises(KeyboardInterrupt):
        node.run_client(options)
    assert state.stat().st_mode & 0o777 == 0o700
