"""`cflag memory` on folders of many runs and clients, on files that people changed, and on logs that were lost."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cflag.cli import main
from cflag.memory.audit import AuditLog
from cflag.memory.forgotten import Forgotten
from cflag.memory.homes import Holding, homes, write
from cflag.memory.inventory import inventory
from tests.support.crashes import newest_checkpoint
from tests.support.governed import cflag, refused, stopped
from tests.support.people import People, found
from tests.support.states import places, spoil_state

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
    other = tmp_path / "study" / "website" / "config.toml"
    other.parent.mkdir()
    other.write_text("rounds = 2\n")
    (tmp_path / "study" / "again").symlink_to(tmp_path / "study")
    (tmp_path / "study" / "newest").symlink_to(deep)
    assert homes(tmp_path / "study") == [deep, own, client]
    assert homes(deep / "deployment") == [own]
    cflag("forget", tmp_path / "study", "--subject", 3)
    assert not found(deep, people.of(3, 0))
    assert found(out, people.of(3, 0))
    assert list(other.parent.iterdir()) == [other], "a config.toml of another program is nothing of ours"


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


@pytest.mark.parametrize("words", [("--receipt", "0" * 64), ("--public-key", "A" * 44)])
def test_an_audit_without_a_log_proves_nothing(
    words: tuple[str, str], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cflag("audit", out)
    assert "audit.jsonl does not exist, so" in refused(capsys, "audit", out, *words)


def test_a_list_without_a_log_is_noticed(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cflag("expire", out, "--rounds", 1)
    for name in ("audit.jsonl", "audit.head"):
        (out / name).unlink()
    cflag("audit", out)  # its list is empty
    (out / "audit.key").unlink()
    cflag("forget", out, "--subject", 3)
    for name in ("audit.jsonl", "audit.head"):
        (out / name).unlink()
    assert "and there is no audit log of it" in refused(capsys, "audit", out)


def _other_key(out: Path) -> None:
    (out / "audit.key").rename(out.parent / "moved.key")
    shutil.copy(out.parent / "other.key", out / "audit.key")


def _a_folder_in_its_place(out: Path) -> None:
    (out / "audit.jsonl").unlink()
    (out / "audit.jsonl").mkdir()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda out: (out / "audit.key").rename(out.parent / "moved.key"), "was signed before; give the key"),
        (_other_key, "with another key than this one; give the key"),
        (lambda out: (out / "audit.head").unlink(), "cannot be read"),
        (lambda out: (out / "audit.jsonl").write_text("{}\n"), "cannot be trusted"),
        (_a_folder_in_its_place, "cannot be read: Is a directory"),
    ],
)
def test_what_cannot_be_signed_is_not_done(
    spoil: Any, why: str, out: Path, people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cflag("forget", shutil.copytree(out, tmp_path / "else"), "--subject", 3, "--audit-key", tmp_path / "other.key")
    cflag("forget", out, "--subject", 3)
    spoil(out)
    held, keys = (out / "forgotten.json").read_bytes(), list(out.glob("audit.key"))
    for words in (("forget", out, "--subject", 5), ("expire", out, "--rounds", 1)):
        assert why in refused(capsys, *words)
    assert found(out, people.of(5, 0))
    assert (out / "forgotten.json").read_bytes() == held
    assert list(out.glob("audit.key")) == keys


def test_a_log_goes_on_with_the_key_that_was_moved_away(out: Path, tmp_path: Path) -> None:
    cflag("forget", out, "--subject", 3)
    (out / "audit.key").rename(tmp_path / "moved.key")
    cflag("forget", out, "--subject", 5, "--audit-key", tmp_path / "moved.key")
    cflag("audit", out)
    assert not (out / "audit.key").exists()


def test_no_key_is_made_where_no_memory_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such folder" in refused(capsys, "forget", tmp_path / "none", "--subject", 3)
    assert not (tmp_path / "none").exists()


def two_runs(out: Path) -> tuple[Path, Path]:
    """Two equal runs in one folder."""
    both = out.parent / "both"
    return Path(shutil.copytree(out, both / "1")), Path(shutil.copytree(out, both / "2"))


@pytest.mark.parametrize("words", [("forget", "--subject", 3), ("expire", "--rounds", 1)])
@pytest.mark.parametrize("damaged", ["client", "list"])
def test_one_damaged_file_is_found_before_any_run_is_changed(
    damaged: str, words: tuple[Any, ...], out: Path, people: People, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = two_runs(out)
    if damaged == "list":
        (second / "forgotten.json").write_bytes(b"?")
    else:
        spoil_state(places(second)[-1])
    assert "is damaged" in refused(capsys, words[0], out.parent / "both", *words[1:])
    assert found(first, people.of(3, 0))
    assert not (first / "forgotten.json").exists()
    assert not (out.parent / "both" / "audit.jsonl").exists()


def test_a_running_process_is_told_of_what_expired_before_a_failure(
    people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two workers has a log of its own; the second one cannot be rewritten."""
    out = stopped(people, tmp_path / "run", workers=2)

    def full(holdings: Sequence[Holding]) -> None:
        if holdings[0].client == 1:
            raise OSError(28, "No space left on device", str(holdings[0].path))
        write(holdings)

    monkeypatch.setattr("cflag.memory.erase.write", full)
    assert main(["memory", "expire", str(out), "--rounds", "1"]) == 1
    assert Forgotten(out).revision == 1
    (line,) = AuditLog(out).verify()
    assert line["unfinished"]
    assert line["deleted"]["clients"] == [0]


def test_what_was_erased_before_a_failure_is_signed(
    out: Path, people: People, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = two_runs(out)

    def full(holdings: Sequence[Holding]) -> None:
        if second in holdings[0].path.parents:
            raise OSError(28, "No space left on device", str(holdings[0].path))
        write(holdings)

    with monkeypatch.context() as patch:
        patch.setattr("cflag.memory.erase.write", full)
        assert main(["memory", "forget", str(out.parent / "both"), "--subject", "3"]) == 1
    said = capsys.readouterr()
    assert "unfinished, repeat the command; so far: " in said.out
    assert "No space left" in said.err
    (line,) = AuditLog(out.parent / "both").verify()
    assert line["unfinished"]
    assert {name.partition("/")[0] for name in line["deleted"]["files"]} == {"1"}
    assert set(line["deleted"]["samples"])
    assert not found(first, people.of(3, 0))
    assert "holds a sample that was forgotten" in refused(capsys, "audit", out.parent / "both")
    cflag("forget", out.parent / "both", "--subject", 3)
    assert not found(second, people.of(3, 0))
    cflag("audit", out.parent / "both")
