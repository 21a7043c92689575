"""The list of what was forgotten: a run does not go on where it was lost, nor where it cannot be followed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cflag import run
from cflag.data.options import BenchmarkOptions
from cflag.data.schedules.base import make_schedule
from cflag.errors import UserError
from cflag.launch import resume
from cflag.memory.base import MemoryOptions
from cflag.memory.keeper import Keeper
from tests.support.crashes import Crash, stop_after
from tests.support.governed import answer, cflag, refused, stopped
from tests.support.people import People, found

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People(tmp_path_factory.mktemp("people") / "data")


def test_a_run_does_not_go_on_without_its_list(
    people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stopped(people, tmp_path / "run")
    cflag("forget", out, "--subject", 3)
    sample = answer(capsys, "show", out)["samples"][0]["sample"]
    older = (out / "forgotten.json").read_bytes()
    cflag("forget", out, "--sample", sample)
    whole = (out / "forgotten.json").read_bytes()
    (out / "forgotten.json").write_bytes(older)
    with pytest.raises(UserError, match=r"lacks what .*audit\.jsonl says was forgotten; .* --again$"):
        resume(out)
    (out / "forgotten.json").unlink()
    with pytest.raises(UserError, match="lacks what"):
        resume(out)
    assert "--again" in refused(capsys, "audit", out)
    cflag("forget", out, "--again")
    assert whole.partition(b'"samples"')[2] == (out / "forgotten.json").read_bytes().partition(b'"samples"')[2]
    cflag("audit", out)
    resume(out)
    assert not found(out, people.of(3, 0) + people.of(3, 1))


def test_what_came_back_with_a_backup_is_forgotten_again(people: People, tmp_path: Path) -> None:
    out = stopped(people, tmp_path / "run")
    shutil.copytree(out / "checkpoint", tmp_path / "backup")
    cflag("forget", out, "--subject", 3)
    shutil.copytree(tmp_path / "backup", out / "checkpoint", dirs_exist_ok=True)
    assert found(out, people.of(3, 0))
    cflag("forget", out, "--again")
    assert not found(out, people.of(3, 0))


def test_without_a_log_there_is_nothing_to_repeat(
    people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "say what to forget" in refused(capsys, "forget", stopped(people, tmp_path / "run"), "--again")


@pytest.mark.parametrize("kind", ["deployment", "simulation"])
def test_a_client_that_a_run_started_looks_into_the_log_of_the_run(kind: str, people: People, tmp_path: Path) -> None:
    out = stopped(people, tmp_path / "run")
    client = out / kind / "client-0"
    client.mkdir(parents=True)
    cflag("forget", out, "--subject", 3)
    Keeper(MemoryOptions(), make_schedule(BenchmarkOptions())).watch(client, 0)
    (client / "forgotten.json").unlink()
    with pytest.raises(UserError, match="lacks what"):
        Keeper(MemoryOptions(), make_schedule(BenchmarkOptions())).watch(client, 0)


def test_a_log_that_nobody_can_read_stops_a_run(people: People, tmp_path: Path) -> None:
    out = stopped(people, tmp_path / "run")
    (out / "audit.jsonl").write_text("[]\n")
    with pytest.raises(UserError, match="cannot be trusted"):
        resume(out)


@pytest.mark.parametrize("workers", [1, 2])
def test_data_that_name_nobody_are_not_learned_from_where_people_are_to_be_forgotten(
    workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the first of two rounds memories are empty, so nobody can tell that digits are nobody's."""
    out = tmp_path / "digits"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(Crash):
            run("digits", out=out, rounds=2, tasks=2, width=8, clients=2, workers=workers, samples_per_class=20)
    cflag("forget", out, "--subject", 3)
    assert "held no sample yet, so nobody can tell" in capsys.readouterr().out
    (line,) = answer(capsys, "audit", out)["lines"]
    assert line["deleted"]["untold"] == ["."]
    with pytest.raises(UserError, match="these data do not say whose each sample is") as error:
        resume(out)
    assert "\n" not in str(error.value)


def test_an_empty_memory_of_people_takes_a_request(
    people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stopped(people, tmp_path / "run", after=1)
    cflag("forget", out, "--subject", 3)
    assert "held no sample yet" in capsys.readouterr().out
    resume(out)
    assert not found(out, people.of(3, 0) + people.of(3, 1))
    cflag("forget", out, "--subject", 5)
    assert "held no sample yet" not in capsys.readouterr().out
