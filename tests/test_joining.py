"""Clients that come to a fleet while its run goes on, and clients that leave it for good."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.faults import CFLAG

from cflag import run
from cflag.cli import main
from cflag.engines.flower.environment import KEYS
from cflag.engines.flower.messages import unpack
from cflag.engines.flower.processes.fleet import free_port
from cflag.engines.flower.processes.keys import make_client_key, read_public_key, read_public_keys
from cflag.engines.flower.processes.superlink import Registered
from tests.support.grid import Fleet, numbers
from tests.support.processes import background, wait_for

pytestmark = pytest.mark.usefixtures("no_figures")

OWN: dict[str, Any] = {"clients": 3, "tasks": 2, "rounds": 2, "width": 8, "epochs": 1,
                       "schedule": {"kind": "joining", "join": 1, "leave": 1}}  # fmt: skip
"""Clients 0 and 1 begin; with task 2 client 0 has left and client 2 has come."""


def before_round(fleet: Fleet, done: int, act: Callable[[], object]) -> None:
    """Do something before the first question after so many rounds is sent."""
    push, left = fleet.grid.push_messages, [act]

    def watch(messages: Any) -> list[str]:
        messages = list(messages)
        for message in messages:
            head, _ = unpack(message.content)
            if left and head.get("question") and head["position"][0] >= done:
                left.pop()()
        return push(messages)

    fleet.grid.push_messages = watch  # type: ignore[method-assign]


@contextmanager
def signing(fleet: Fleet, keys: Path, names: dict[int, str]) -> Iterator[None]:
    """Let nodes sign with keys, of which the server knows those in a folder."""
    for number, name in names.items():
        make_client_key(keys.parent / "private", name)
        fleet.nodes[number].context.node_config["key"] = str(keys.parent / "private" / f"{name}.key")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEYS, str(keys))
        yield


def put(keys: Path, name: str) -> None:
    """Put a public key where the server looks for it."""
    keys.mkdir(exist_ok=True)
    (keys / f"{name}.pub").write_bytes((keys.parent / "private" / f"{name}.pub").read_bytes())


def asked(fleet: Fleet, number: int) -> set[int]:
    """Return in which rounds, from 0, a client was asked something."""
    heads = [unpack(message.content)[0] for message in fleet.nodes[number].received]
    return {head["position"][0] for head in heads if head.get("question")}


@pytest.mark.parametrize("method", ["cflag", "icarl"])
def test_a_new_machine_with_a_new_key_joins_and_another_leaves(method: str, tmp_path: Path) -> None:
    """The newcomer and its key are there from the second round on; nobody waits for it, nor for the one that left."""
    own = {**OWN, "method": method}
    fleet, keys = Fleet(tmp_path, **own, min_clients=2, patience=20), tmp_path / "keys"
    newcomer, leaver = fleet.nodes[2], fleet.nodes[0]
    newcomer.online = False

    def arrive() -> None:
        put(keys, "new")
        newcomer.online = True

    def leave(message: Any, reply: Any) -> Any:
        head, _ = unpack(message.content)
        leaver.online = not (head.get("tasks") and head["position"][0] == 1)  # its SuperNode is stopped for good
        return reply

    with signing(fleet, keys, {0: "a", 1: "b", 2: "new"}):
        put(keys, "a")
        put(keys, "b")
        before_round(fleet, 1, arrive)
        leaver.spoil = leave
        fleet.run()
    assert not leaver.online
    assert fleet.said == ["client 0 has left for good, as planned"]
    assert [asked(fleet, number) for number in range(3)] == [{0, 1}, {0, 1, 2, 3}, {2, 3}]
    run("digits", out=tmp_path / "local", workers=1, **own)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_a_newcomer_whose_key_nobody_registered_stays_out(tmp_path: Path) -> None:
    fleet, keys = Fleet(tmp_path, **OWN), tmp_path / "keys"
    with signing(fleet, keys, {0: "a", 1: "b", 2: "new"}):
        put(keys, "a")
        put(keys, "b")
        fleet.run()
    assert asked(fleet, 2) == set()
    assert any(line.startswith("refused node 998: client 2: its key SHA256:") for line in fleet.said)
    assert [record.get("missing") for record in fleet.records()][:2] == [None, None]
    assert all(record["missing"]["2"].startswith("refused: its key") for record in fleet.records()[2:])


def test_one_that_never_comes_is_missing_and_the_log_says_so(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, **OWN)
    fleet.nodes[2].online = False
    fleet.run()
    assert [record.get("missing") for record in fleet.records()] == [None, None, {"2": "away"}, {"2": "away"}]
    assert fleet.said == [
        "client 0 has left for good, as planned",
        "client 2 should take part from now on and has not come yet; it may join later",
    ]


def test_what_was_asked_before_a_client_began_is_none_of_its_business(tmp_path: Path) -> None:
    """It comes in the middle of its first task, so all there is to catch up on is that task's own beginning."""
    own = {**OWN, "rounds": 3, "method": "cflag", "cflag": {"smoothness": "auto"}}
    fleet = Fleet(tmp_path, **own)
    fleet.nodes[2].online = False
    before_round(fleet, 4, lambda: setattr(fleet.nodes[2], "online", True))
    fleet.run()
    heads = [unpack(message.content)[0] for message in fleet.nodes[2].received]
    around = [(h["question"], h["position"][0]) for h in heads if h.get("question") in ("probe", "remember")]
    assert around == [("probe", 3), ("remember", 5)]
    assert "client 2 caught up on task 2 ('probe')" in fleet.said


def test_the_server_is_started_again_when_some_have_left(tmp_path: Path) -> None:
    """It waits for those who are in the run now, not for those it began with."""
    fleet = Fleet(tmp_path, **OWN, min_clients=2, patience=20)

    class KilledError(Exception):
        pass

    def die() -> None:
        fleet.nodes[0].online = False
        raise KilledError

    before_round(fleet, 3, die)
    with pytest.raises(KilledError):
        fleet.run()
    fleet.said.clear()
    fleet.run()
    assert fleet.said == ["client 0 has left for good, as planned"]
    run("digits", out=tmp_path / "local", workers=1, **OWN)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_the_gate_lets_in_a_key_that_is_put_there_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is seen while only half of it is there; what is taken away counts until the next start."""
    monkeypatch.setattr("cflag.engines.flower.processes.superlink.LOOK", 0.0)
    make_client_key(tmp_path, "a")
    make_client_key(tmp_path / "private", "b")
    told: list[bytes] = []
    known = Registered(tmp_path, told.extend)
    (a,), b = read_public_keys(tmp_path), read_public_key(tmp_path / "private" / "b.pub")
    assert told == [a]
    assert a in known
    assert b not in known
    whole, there = (tmp_path / "private" / "b.pub").read_bytes(), tmp_path / "b.pub"
    there.write_bytes(whole[:50])
    assert b not in known
    there.write_bytes(whole)
    assert b in known
    assert told == [a, b]
    there.unlink()
    assert b in known


@pytest.mark.fleet
@pytest.mark.slow
def test_real_processes_a_third_machine_joins_and_the_first_is_stopped(tmp_path: Path) -> None:
    """As docs/deploy.md tells: `cflag server`, two clients, then a key and a client more; one is stopped for good."""
    keys, port, out = tmp_path / "keys", free_port(), tmp_path / "run"
    assert main(["keys", "server", str(keys), "--host", "localhost"]) == 0
    for name in ("0", "1"):
        assert main(["keys", "client", str(keys / "clients"), "--name", name]) == 0
    assert main(["keys", "client", str(tmp_path / "new"), "--name", "2"]) == 0

    def client(number: int, key: Path) -> list[str]:
        link = ["--superlink", f"localhost:{port}", "--ca", str(keys / "ca.crt"), "--key", str(key)]
        return [*CFLAG, "client", *link, "--number", str(number), "--state", str(tmp_path / f"state-{number}")]

    def events() -> str:
        return (out / "events.log").read_text() if (out / "events.log").is_file() else ""

    plain = {key: value for key, value in OWN.items() if key != "schedule"} | {"min_clients": 2, "patience": 200}
    words = [f"--set={key}={json.dumps(value)}" for key, value in plain.items()]
    words += ["--set=schedule.kind=joining", "--set=schedule.join=1", "--set=schedule.leave=1"]
    server = [*CFLAG, "server", "digits", "--keys", str(keys), "--port", str(port), "--out", str(out), "--no-database"]
    with ExitStack() as stack:
        first = stack.enter_context(background(client(0, keys / "clients" / "0.key"), tmp_path / "0.log"))
        stack.enter_context(background(client(1, keys / "clients" / "1.key"), tmp_path / "1.log"))
        process = stack.enter_context(background([*server, *words], tmp_path / "server.log"))
        wait_for(lambda: "has left for good" in events(), "the end of client 0's part")
        first.terminate()
        first.wait(20)
        (keys / "clients" / "2.pub").write_bytes((tmp_path / "new" / "2.pub").read_bytes())
        stack.enter_context(background(client(2, tmp_path / "new" / "2.key"), tmp_path / "2.log"))
        try:
            code = process.wait(200)
        except subprocess.TimeoutExpired:
            code = -1
    assert code == 0, (tmp_path / "server.log").read_text() + events()
    run("digits", out=tmp_path / "local", workers=1, **OWN)
    assert numbers(out) == numbers(tmp_path / "local")
