"""`cflag memory` on folders of many runs and clients, on files that people changed, and on logs that were lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cflag.memory.homes import homes
from cflag.memory.inventory import inventory
from tests.support.crashes import newest_checkpoint
from tests.support.governed import cflag, refused, stopped
from tests.support.people import People, found

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People(tmp_path_factory.mktemp("people") / "data")


@pytest.fixture(scope="module")
def held(people: People, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died with the first task in its memories."""
    return stopped(people, tmp_path_factory.mktemp("held") / "run")


@pytest.fixture
def out(held: Path, tmp_path: Path) -> Path:
    """The same, to be spoiled."""
    return Path(shutil.copytree(held, tmp_path / "run"))


def test_runs_are_found_at_any_depth_and_each_once(out: Path, people: People, tmp_path: Path) -> None:
    deep = Path(shutil.copytree(out, tmp_path / "study" / "cflag" / "seed-1"))
    client = tmp_path / "study" / "fleet" / "state-1"
    (client / "0123456789abcdef").mkdir(parents=True)
    (client / "0123456789abcdef" / "config.toml").write_text("rounds = 2\n")
    own = deep / "deployment" / "client-0"
    shutil.copytree(client, own)
    shutil.copytree(out, tmp_path / "study" / "mlruns" / "1" / "artifacts")
    (tmp_path / "study" / "again").symlink_to(tmp_path / "study")
    (tmp_path / "study" / "newest").symlink_to(deep)
    assert homes(tmp_path / "study") == [deep, own, client]
    assert homes(deep / "deployment") == [own]
    cflag("forget", tmp_path / "study", "--subject", 3)
    assert not found(deep, people.of(3, 0))
    assert found(out, people.of(3, 0))


def test_a_round_that_is_not_finished_is_not_counted(out: Path) -> None:
    """The process died between the line of the third round and its checkpoint: two rounds are done."""
    newest_checkpoint(out).unlink()
    (listed,) = inventory(out)
    assert listed.done == 2
    cflag("expire", out, "--rounds", 1)
    assert inventory(out)[0].holdings


@pytest.mark.parametrize(
    "words", [("--days", "nan"), ("--days", "1e400"), ("--days", "-1"), ("--rounds", "9" * 30), ("--rounds", "-1")]
)
def test_ages_that_are_none_are_refused(words: tuple[str, str], out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give a number from 0" in refused(capsys, "expire", out, *words)
    assert not (out / "audit.key").exists()


@pytest.mark.parametrize(
    ("command", "old", "new", "why"),
    [
        ("list", "rounds = 2", "ruonds = 2", "rounds = None must be a whole number from 1"),
        ("show", "rounds = 2", 'rounds = "a"', "rounds = 'a' must be a whole number from 1"),
        ("expire", "rounds = 2", "rounds = 2.5", "rounds = 2.5 must be a whole number from 1"),
        ("expire", "expire_rounds = 0", 'expire_rounds = "a"', "expire_rounds = 'a' must be a whole number from 0"),
        ("expire", "expire_days = 0.0", "expire_days = nan", "expire_days = nan must be a number from 0"),
        ("expire", "[memory]", "[other]", "memory = 3 must be a table"),
    ],
)
def test_a_config_that_people_spoiled_is_refused_in_one_line(
    command: str, old: str, new: str, why: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (out / "config.toml").read_text()
    assert old in text
    first = "memory = 3\n" if new == "[other]" else ""
    (out / "config.toml").write_text(first + text.replace(old, new, 1))
    assert why in refused(capsys, command, out)


def _cut(path: Path) -> None:
    np.savez(path, x=np.zeros((3, 4)))
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("cut.npz", _cut),
        ("empty.npy", lambda path: path.write_bytes(b"")),
        ("scalar.npz", lambda path: np.savez(path, x=np.float64(3))),
        ("other.npz", lambda path: np.savez(path, z=np.zeros(3))),
    ],
)
def test_a_file_that_holds_no_samples_is_refused_in_one_line(
    name: str, write: Any, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / name)
    assert "neither one sample" in refused(capsys, "forget", out, "--sample-file", tmp_path / name)
