"""Where the last checkpoint is damaged, a run goes on from the one before it, and its numbers are the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cflag import run
from cflag.cli import main
from cflag.errors import DamagedError, UserError
from cflag.launch import resume
from cflag.results.folder import RunFolder
from cflag.results.generations import Generations
from tests.support.crashes import Crash, newest_checkpoint, stop_after, stop_in
from tests.support.grid import Fleet, numbers
from tests.support.quick import QUICK, without_times
from tests.support.states import logs

pytestmark = pytest.mark.usefixtures("no_figures")

SETTINGS: dict[str, Any] = {**QUICK, "clients": 3, "workers": 1, "samples_per_class": 40}
RUN = "0123456789abcdef"


def spoil(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def names(folder: Path) -> set[str]:
    return {
        path.name.replace(f".{RUN}", "").replace(".safetensors", "").replace(".log", "") for path in folder.iterdir()
    }


def state(**clients: str) -> dict[str, Any]:
    return {"states": {f"clients-{log}.{RUN}.{stamp}.log": [1, ""] for log, stamp in clients.items()}}


def save(generations: Generations, stamp: str, **clients: str) -> None:
    """Save a round, as a run does: the logs that were begun in it first."""
    for number, when in clients.items():
        if when == stamp:
            (generations.folder / f"clients-{number}.{RUN}.{stamp}.log").write_bytes(b"x")
    generations.save(f"{RUN}.{stamp}", state(**clients))


def test_two_checkpoints_and_the_files_they_name_are_kept(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    save(generations, "1-1", a="1-1")
    save(generations, "1-2", a="1-1", b="1-2")
    assert names(tmp_path) == {"server.1-1", "server.1-2", "clients-a.1-1", "clients-b.1-2"}
    save(generations, "1-10", a="1-10", b="1-2")
    assert names(tmp_path) == {"server.1-2", "server.1-10", "clients-a.1-1", "clients-a.1-10", "clients-b.1-2"}
    save(generations, "2-1", a="1-10", b="1-2")
    assert names(tmp_path) == {"server.1-10", "server.2-1", "clients-a.1-10", "clients-b.1-2"}
    generations.keep_newest()
    assert names(tmp_path) == {"server.2-1", "clients-a.1-10", "clients-b.1-2"}


def test_what_a_killed_run_left_is_dropped_and_the_last_checkpoint_is_the_last_round(tmp_path: Path) -> None:
    """10 is after 9, whatever their letters say."""
    generations = Generations(tmp_path)
    save(generations, "1-9", a="1-9")
    save(generations, "1-10", a="1-9", b="1-10")
    (tmp_path / f"clients-a.{RUN}.1-11.log").write_bytes(b"x")
    seen: list[str] = []
    found, wrong = Generations(tmp_path).load(lambda _, stamp: seen.append(stamp))
    assert found == state(a="1-9", b="1-10")
    assert (wrong, seen) == ("", [f"{RUN}.1-10"])
    assert names(tmp_path) == {"server.1-9", "server.1-10", "clients-a.1-9", "clients-b.1-10"}


def test_a_damaged_checkpoint_and_what_only_it_names_go_and_one_before_is_taken(tmp_path: Path) -> None:
    save(generations := Generations(tmp_path), "1-1", a="1-1")
    save(generations, "1-2", a="1-2")
    spoil(tmp_path / f"server.{RUN}.1-2.safetensors")
    found, wrong = Generations(tmp_path).load(lambda *_: None)
    assert found == state(a="1-1")
    assert "1-2.safetensors is damaged" in wrong
    assert names(tmp_path) == {"server.1-1", "clients-a.1-1"}


def test_nothing_is_dropped_where_no_checkpoint_is_good_or_one_cannot_be_read_yet(tmp_path: Path) -> None:
    """Without the operator's key nobody can tell what is damaged."""
    save(generations := Generations(tmp_path), "1-1", a="1-1")
    save(generations, "1-2", a="1-2")
    before = names(tmp_path)

    def no_key(*_: object) -> None:
        raise UserError("give the key")

    def damaged(found: dict[str, Any], _: str) -> None:
        raise DamagedError(str(found))

    with pytest.raises(UserError, match="give the key"):
        Generations(tmp_path).load(no_key)
    with pytest.raises(DamagedError, match="1-2"):
        Generations(tmp_path).load(damaged)
    assert names(tmp_path) == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that saw no damage."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cflag.results.folder.draw", lambda *_: None)
        run("digits", out=out, **SETTINGS)
    assert len(RunFolder(out).generations.files()) == 1
    return out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died after two rounds, when its clients had just put the first task into their memories."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Crash):
            run("digits", out=out, **SETTINGS)
    assert len(RunFolder(out).generations.files()) == 2
    return out


def the_clients(out: Path) -> Path:
    """The only log: all its records are of the second round."""
    (log,) = logs(out)
    return log


def the_last_test(out: Path) -> Path:
    return max((out / "checkpoint").glob("test-*"))


def metrics(out: Path) -> Path:
    return out / "metrics.jsonl"


@pytest.mark.parametrize("how", [spoil, Path.unlink])
@pytest.mark.parametrize("which", [newest_checkpoint, the_clients, the_last_test])
def test_a_run_goes_on_from_the_checkpoint_before(
    which: Callable[[Path], Path],
    how: Callable[[Path], None],
    stopped: Path,
    whole: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    how(which(out))
    assert main(["run", "--resume", str(out)]) == 0
    assert without_times(out) == without_times(whole)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    if how is spoil:
        assert (
            "is damaged: its checksum does not fit; going on from the checkpoint before it, after 1 rounds"
            in (out / "events.log").read_text()
        )
        assert "going on from the checkpoint before it" in " ".join("".join(capfd.readouterr()).split())


def test_a_damaged_last_line_of_the_metrics_is_played_again(stopped: Path, whole: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    metrics(out).write_bytes(metrics(out).read_bytes()[:-3])
    resume(out)
    assert without_times(out) == without_times(whole)


def test_where_both_are_damaged_the_newest_is_named_and_nothing_is_touched(stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    for path in RunFolder(out).generations.files():
        spoil(path)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name[0] != "."}
    with pytest.raises(DamagedError, match=r"\.1-2\.safetensors is damaged"):
        resume(out)
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_of_a_version_with_one_checkpoint_is_not_begun_again(stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    first, second = RunFolder(out).generations.files()
    first.rename(first.with_name("server.safetensors"))
    second.unlink()
    with pytest.raises(UserError, match="was begun by another version of cflag"):
        resume(out)


@pytest.mark.parametrize("round_", [3, 4, 5])
def test_a_fleets_clients_go_back_with_their_server(round_: int, tmp_path: Path) -> None:
    """Clients change at the end of rounds 2 and 4. In round 5 they must still know what they were before round 4."""
    settings: dict[str, Any] = {"samples_per_class": 40, "tasks": 3, "min_clients": 3, "patience": 0.5}
    Fleet(tmp_path / "whole", **settings).run()
    fleet = Fleet(tmp_path / "fleet", **settings)
    with pytest.MonkeyPatch.context() as patch:
        stop_in(round_, patch)
        with pytest.raises(Crash):
            fleet.run()
    spoil(newest_checkpoint(fleet.path))
    fleet.run()
    assert numbers(fleet.path) == numbers(tmp_path / "whole" / "run")
    assert not [line for line in fleet.said if line.startswith(("client ", "refused "))]
