"""Clients' states are encrypted where the operator gives a key: no sample in plain, and nothing believed without it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import faults

from cflag import cipher, run
from cflag.cli import main
from cflag.errors import UserError
from cflag.files import load_client_state, load_state, save_states
from cflag.launch import resume
from cflag.memory.inventory import inventory
from cflag.states.log import content
from tests.support.crashes import Crash, newest_checkpoint, stop_after
from tests.support.grid import Fleet, numbers
from tests.support.people import People, found
from tests.support.quick import same
from tests.support.states import places, put

pytestmark = pytest.mark.usefixtures("no_figures")

EVERYONE = [(person, task) for person in range(8) for task in (0, 1)]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People(tmp_path_factory.mktemp("people") / "data")


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key that is in use; without `monkeypatch.delenv` the test's own process has it, too."""
    path = tmp_path / "state.key"
    assert main(["memory", "key", str(path)]) == 0
    monkeypatch.setenv(cipher.VARIABLE, str(path))
    return path


def die(people: People, out: Path, **settings: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            run(None, out=out, **people.settings(**settings))
    return out


def samples(people: People) -> list[bytes]:
    return [x for person, task in EVERYONE for x in people.of(person, task)]


@pytest.mark.parametrize("workers", [1, 2])
def test_no_sample_is_in_plain_and_no_number_changes(
    workers: int, people: People, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = die(people, tmp_path / "run", workers=workers)
    assert len(places(out)) == 2
    resume(out)
    assert not found(out, samples(people))
    secret = bytes.fromhex(key.read_text())
    assert not found(out, [secret, secret.hex().encode(), str(key).encode()])
    monkeypatch.delenv(cipher.VARIABLE)
    run(None, out=tmp_path / "plain", **people.settings())
    assert found(tmp_path / "plain", samples(people))
    same(out, tmp_path / "plain")


def test_the_command_line_takes_the_key_and_says_what_is_wrong_with_it(
    people: People, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = die(people, tmp_path / "run")

    def refused(*words: str) -> str:
        monkeypatch.delenv(cipher.VARIABLE, raising=False)
        assert main([*words]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    go_on = ("run", "--quiet", "--resume", str(out))
    assert "is encrypted; give the key with --state-key FILE" in refused(*go_on)
    assert "is encrypted; give the key" in refused("memory", "list", str(out))
    assert main(["memory", "key", str(tmp_path / "other.key")]) == 0
    assert "with another key than that in" in refused(*go_on, "--state-key", str(tmp_path / "other.key"))
    assert "cannot be read" in refused(*go_on, "--state-key", str(tmp_path / "none.key"))
    (tmp_path / "short.key").write_text("abcd")
    assert "holds no key" in refused(*go_on, "--state-key", str(tmp_path / "short.key"))
    assert "is there already" in refused("memory", "key", str(key))
    assert main([*go_on, "--state-key", str(key)]) == 0


def test_a_person_is_taken_out_of_encrypted_states(people: People, key: Path, tmp_path: Path) -> None:
    out = die(people, tmp_path / "run")
    assert main(["memory", "forget", str(out), "--subject", "3"]) == 0
    resume(out)
    (held,) = inventory(out)
    subjects = [h.samples.subject for h in held.holdings if h.samples is not None]
    assert 3 not in torch.cat([s for s in subjects if s is not None])
    assert not found(out, samples(people))
    assert main(["memory", "audit", str(out)]) == 0


def test_a_fleets_clients_encrypt_what_they_keep(
    people: People, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFLAG_DATA", str(people.folder))
    fleet = Fleet(tmp_path, **people.settings(min_clients=2))
    fleet.run()
    assert not found(tmp_path, samples(people))
    monkeypatch.delenv(cipher.VARIABLE)
    run(None, out=tmp_path / "plain", **people.settings())
    assert numbers(fleet.path) == numbers(tmp_path / "plain")


def test_a_state_in_plain_is_refused_where_there_is_a_key_until_it_is_encrypted(
    people: People, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or anybody who can write to the folder could put a state of their own there."""
    monkeypatch.delenv(cipher.VARIABLE)
    out = die(people, tmp_path / "run")
    whole = Path(shutil.copytree(out, tmp_path / "whole"))
    resume(whole)
    monkeypatch.setenv(cipher.VARIABLE, str(key))
    with pytest.raises(UserError, match="is not encrypted, though there is a key"):
        resume(out)
    assert main(["memory", "encrypt", str(out)]) == 0
    assert not found(out, samples(people))
    resume(out)
    same(out, whole)


def test_another_clients_encrypted_state_is_refused(people: People, key: Path, tmp_path: Path) -> None:
    out = die(people, tmp_path / "run")
    first, second = places(out)
    put(second, content(first))
    with pytest.raises(UserError, match=f"{second.name} is not what its name says: it was saved as {first.name}"):
        resume(out)


def test_every_byte_of_an_encrypted_state_counts(key: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_states([(path, {"a": torch.zeros(2), "b": 1})])
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UserError, match=r"s\.safetensors"):
            load_client_state(path)
        path.write_bytes(whole[:at])
        with pytest.raises(UserError, match=r"s\.safetensors"):
            load_client_state(path)


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 2 * 2**20, 2**21 + 5])
def test_content_of_any_size_comes_back_and_no_piece_can_be_cut_off_or_moved(size: int, key: Path) -> None:
    content, place = bytes(k % 251 for k in range(1000)) * (size // 1000 + 1), Path("x")
    content = content[:size]
    there = cipher.encrypted(content)
    assert cipher.decrypted(place, there) == content
    assert there != cipher.encrypted(content), "two files under one salt would share a key"
    head, piece = 18 + 8 + 32, 2**20 + 16
    if size > 2**20:
        first = there[head : head + piece]
        for broken in (there[: head + piece], there[:head] + there[head + piece :], there + first):
            with pytest.raises(UserError, match="is damaged"):
                cipher.decrypted(place, broken)


def test_the_server_and_the_model_stay_in_plain(
    people: People, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    run(None, out=out, **people.settings())
    monkeypatch.delenv(cipher.VARIABLE)
    assert load_state(out / "model.safetensors")
    assert load_state(newest_checkpoint(out))["done"] == 4


@pytest.mark.fleet
@pytest.mark.slow
def test_a_deployments_clients_keep_nothing_in_plain_and_survive_a_kill(tmp_path: Path) -> None:
    """Real processes: a client that was killed reads its state with the key that its operator gave the deployment."""
    cipher.make_key(tmp_path / "key")
    settings: dict[str, Any] = {"clients": 2, "min_clients": 2, "tasks": 2, "rounds": 2}
    fleet = faults.Deployment(tmp_path / "fleet", "--no-database", "--state-key", str(tmp_path / "key"), **settings)
    fleet.start()
    fleet.after(2)
    fleet.kill("client 1")
    assert fleet.wait() == 0, fleet.log()
    own = {k: v for k, v in fleet.settings.items() if k not in ("deadline", "patience", "min_clients")}
    run("digits", out=tmp_path / "local", workers=1, **own)
    assert faults.numbers(fleet.path) == faults.numbers(tmp_path / "local")
    states = list((fleet.path / "deployment").rglob("client-*.safetensors"))
    assert len(states) >= 2
    assert all(path.read_bytes().startswith(b"cflag encrypted") for path in states)
