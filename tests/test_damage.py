"""A file that was changed since it was written is refused in one line, or changes nothing; it is never believed."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from cflag import run
from cflag.cli import main
from cflag.engines.flower.client.states import StateFolder
from cflag.errors import CflagError, UserError
from cflag.files import check_seal, packed, read_json, save_state, write_sealed_json
from cflag.launch import resume
from cflag.report.page import find_results, make_page
from cflag.results.folder import RunFolder
from cflag.results.result import Result
from cflag.states.log import content
from tests.support.crashes import Crash, stop_after
from tests.support.grid import Fleet, numbers
from tests.support.quick import QUICK, without_times
from tests.support.states import logs, places, put

pytestmark = pytest.mark.usefixtures("no_figures")

SETTINGS: dict[str, Any] = {**QUICK, "clients": 3, "workers": 1, "samples_per_class": 40}
FLEET: dict[str, Any] = {"samples_per_class": 40, "min_clients": 3, "patience": 0.3}


def die_in_the_last_round(out: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            run("digits", out=out, **SETTINGS)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died with one round to go."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    die_in_the_last_round(out)
    return out


@pytest.fixture(scope="module")
def finished(stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run at its end."""
    out = shutil.copytree(stopped, tmp_path_factory.mktemp("finished") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cflag.results.folder.draw", lambda *_: None)
        resume(out)
    return out


def flip(path: Path, bit: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def flips(folder: Path, count: int, seed: int) -> list[tuple[str, int]]:
    """Draw bits of all files of a folder, each file in turn."""
    drawn = random.Random(seed)
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.stat().st_size]
    chosen = [files[k % len(files)] for k in range(count)]
    return [(str(p.relative_to(folder)), drawn.randrange(8 * p.stat().st_size)) for p in chosen]


def found(folder: Path) -> Any:
    """Return what a run found out; of its config, keys that change no number may differ."""
    result = json.loads((folder / "result.json").read_text())
    costs = {k: v for k, v in result["costs"].items() if k not in ("seconds", "peak_mb")}
    return without_times(folder), (folder / "model.safetensors").read_bytes(), {**result, "costs": costs, "config": 0}


def believed(folder: Path, errors: Callable[[], str], command: list[str]) -> bool:
    """Return whether a command goes well; if not, it must say so in one line."""
    code, said = main(command), errors()
    assert code in (0, 1, 2), f"exit code {code}"
    assert code == 0 or (said.startswith("cflag: ") and said.count("\n") == 1), said
    return code == 0


def check_resumed(stopped: Path, whole: Any, tmp_path: Path, errors: Callable[[], str], cases: int) -> int:
    """Resume copies with one bit changed; return how many were refused."""
    refused = 0
    for name, bit in flips(stopped, cases, seed=7):
        out = shutil.copytree(stopped, tmp_path / "damaged")
        flip(out / name, bit)
        if believed(out, errors, ["run", "--quiet", "--resume", str(out)]):
            assert found(out) == whole, f"bit {bit} of {name} changed the result"
        else:
            refused += 1
        shutil.rmtree(out)
    return refused


def check_read(finished: Path, tmp_path: Path, errors: Callable[[], str], cases: int) -> int:
    """Read copies of a finished run with one bit changed; return how many were refused."""
    refused, page = 0, make_page(find_results([finished]), "x")
    for name, bit in flips(finished, cases, seed=8):
        out = shutil.copytree(finished, tmp_path / "damaged" / "run")
        flip(out / name, bit)
        if believed(out, errors, ["report", str(out), "--title", "x", "--out", str(tmp_path / "page.html")]):
            assert (tmp_path / "page.html").read_text() == page, f"bit {bit} of {name} changed the report"
        else:
            refused += 1
        if believed(out, errors, ["run", "--quiet", "--resume", str(out)]) and name != "config.toml":
            assert Path(name).parts[0] in ("checkpoint", "digests.json", "events.log", "benchmark.json", "experiment")
        shutil.rmtree(out)
    return refused


def test_a_flipped_bit_is_not_believed(
    stopped: Path, finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    errors = lambda: capfd.readouterr().err  # noqa: E731
    assert check_resumed(stopped, found(finished), tmp_path, errors, 24) >= 15
    assert check_read(finished, tmp_path, errors, 27) >= 6


@pytest.mark.slow
def test_a_thousand_flipped_bits_are_not_believed(
    stopped: Path, finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    errors = lambda: capfd.readouterr().err  # noqa: E731
    check_resumed(stopped, found(finished), tmp_path, errors, 700)
    check_read(finished, tmp_path, errors, 300)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_is_not_given_anothers_state(workers: int, stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace("workers = 1", f"workers = {workers}"))
    first, second, *_ = places(out)
    put(second, content(first))
    with pytest.raises(UserError, match=f"{second.name} is not what its name says: it was saved as {first.name}"):
        resume(out)


def test_state_of_an_earlier_round_is_not_taken_for_the_last(stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    last = places(out)[0]
    put(last, packed(last.name.replace(".1-2.", ".1-1."), last.load()))
    with pytest.raises(UserError, match=r"it was saved as .*\.1-1\.safetensors"):
        resume(out)


def test_state_of_another_run_is_refused(stopped: Path, tmp_path: Path) -> None:
    """Another run of the same config, whose files have the same shapes: one file, and a whole checkpoint."""
    other = tmp_path / "other"
    die_in_the_last_round(other)
    out = shutil.copytree(stopped, tmp_path / "run")
    put(places(out)[0], content(places(other)[0]))
    with pytest.raises(UserError, match="it was saved as"):
        resume(out)
    (log,), (others,) = logs(out), logs(other)
    shutil.copy(others, log)
    with pytest.raises(UserError, match="is damaged: 0 whole states where there were 3"):
        resume(out)
    shutil.copytree(other / "checkpoint", out / "checkpoint", dirs_exist_ok=True)
    with pytest.raises(UserError, match=r"is of the run .*experiment says"):
        resume(out)


def test_changed_metrics_are_refused(stopped: Path, tmp_path: Path) -> None:
    """A line that reads well, with another number in it; lines too few; no file at all."""
    for spoil in (_another_round, lambda p: p.write_bytes(p.read_bytes().partition(b"\n")[0]), Path.unlink):
        out = shutil.copytree(stopped, tmp_path / "run")
        spoil(out / "metrics.jsonl")
        with pytest.raises(UserError, match=r"metrics.jsonl is damaged"):
            resume(out)
        shutil.rmtree(out)


def _another_round(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["round"] = 3  # as long as it was
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_damaged_result_is_refused_and_an_old_one_without_checksums_is_read(finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "run")
    _another_round(out / "metrics.jsonl")
    with pytest.raises(UserError, match=r"metrics.jsonl is damaged: not what digests.json says"):
        Result.load(out)
    (out / "digests.json").unlink()
    assert Result.load(out) == Result.load(finished)


def test_only_a_resumed_run_of_the_same_folder_keeps_its_name(stopped: Path, finished: Path) -> None:
    assert RunFolder(stopped).name == RunFolder(finished).name
    assert all(f".{RunFolder(stopped).name}." in path.name for path in logs(stopped))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet whose server died with one round to go: the run folder, and the clients' state folders."""
    folder = tmp_path_factory.mktemp("fleet")
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            Fleet(folder, **FLEET).run()
    return folder


def no_traceback(question: Message, reply: Message) -> Message:
    """A client that cannot answer says so itself; what Flower says for it is a defect of ours."""
    assert not reply.has_error(), reply.error.reason
    return reply


def check_fleet(fleet: Path, tmp_path: Path, cases: int) -> int:
    """Go on with copies of a fleet with one bit changed, of the server's files or a client's; return the refused."""
    refused, whole = 0, shutil.copytree(fleet, tmp_path / "whole")
    Fleet(whole, **FLEET).run()
    for name, bit in flips(fleet, cases, seed=9):
        there = shutil.copytree(fleet, tmp_path / "damaged")
        flip(there / name, bit)
        again = Fleet(there, **FLEET)
        for node in again.nodes:
            node.spoil = no_traceback
        try:
            again.run()
            assert numbers(again.path) == numbers(whole / "run"), f"bit {bit} of {name} changed the result"
        except CflagError:
            refused += 1
        shutil.rmtree(there)
    return refused


def test_a_flipped_bit_in_a_fleet_is_not_believed(fleet: Path, tmp_path: Path) -> None:
    assert check_fleet(fleet, tmp_path, 14) >= 5


@pytest.mark.slow
def test_many_flipped_bits_in_a_fleet_are_not_believed(fleet: Path, tmp_path: Path) -> None:
    check_fleet(fleet, tmp_path, 200)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: flip(path, 5000), "is damaged: its checksum does not fit"),
        (lambda path: path.rename(path.with_name(path.name.replace("-00001", "-00000", 1))), "is not client 1's state"),
        (lambda path: path.rename(path.with_name(f"client-00001.{'a' * 16}.9-9.safetensors")), "not of this exper"),
    ],
)
def test_a_client_with_damaged_state_is_left_out_and_says_why(
    spoil: Callable[[Path], Any], why: str, fleet: Path, tmp_path: Path
) -> None:
    there = shutil.copytree(fleet, tmp_path / "fleet")
    (saved,) = (there / "state-1").glob("*/client-*")
    spoil(saved)
    again = Fleet(there, **{**FLEET, "min_clients": 1})
    (there / "run" / "config.toml").write_text(again.config.to_toml())
    again.run()
    assert why in again.records()[-1]["missing"]["1"]


def test_a_damaged_config_at_a_client_is_sent_again(fleet: Path, tmp_path: Path) -> None:
    there = shutil.copytree(fleet, tmp_path / "fleet")
    (config,) = (there / "state-1").glob("*/config.toml")
    flip(config, 2000)
    states = StateFolder(config.parent)
    with pytest.raises(UserError, match=r"config.toml is damaged"):
        _ = states.config
    Fleet(there, **FLEET).run()
    assert states.config == (there / "run" / "config.toml").read_text()


def test_every_bit_of_a_small_state_counts(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_state(path, {"a": torch.zeros(2), "b": 1})
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(UserError, match=r"s\.safetensors is damaged"):
            check_seal(path, bytes(damaged))


def test_any_bit_of_a_small_json_file_counts(tmp_path: Path) -> None:
    path, value = tmp_path / "s.json", {"a": [1, 2], "b": "c"}
    write_sealed_json(path, value)
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 5):
        path.write_bytes(whole)
        flip(path, bit)
        try:
            read = read_json(path)
        except CflagError:
            continue
        assert value.items() <= read.items()
