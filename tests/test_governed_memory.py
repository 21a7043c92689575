"""Memories are governed: what they hold can be told and taken out, and it does not come back."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cflag import checkpoint, run
from cflag.cli import main
from cflag.data.samples import Samples
from cflag.launch import resume
from cflag.memory.base import MemoryOptions
from cflag.memory.gate import at_work, let_in
from cflag.memory.inventory import inventory
from cflag.memory.ring import Ring
from tests.support.crashes import Crash, stop_after
from tests.support.governed import answer, cflag, stopped
from tests.support.grid import Fleet, numbers
from tests.support.people import People, found
from tests.support.quick import same, without_times
from tests.support.states import logs, places, spoil_state

pytestmark = pytest.mark.usefixtures("no_figures")

METHODS: dict[str, dict[str, Any]] = {
    "cflag": {"method": "cflag"},
    "derpp": {"method": "derpp"},
    "icarl": {"method": "icarl"},
    "joint": {"method": "joint"},
    "reservoir": {"method": "replay", "memory": {"kind": "reservoir", "per_task": 60, "sample": 30}},
}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People(tmp_path_factory.mktemp("people") / "data")


@pytest.mark.parametrize("method", METHODS)
def test_a_person_is_followed_through_every_file_of_a_run(method: str, people: People, tmp_path: Path) -> None:
    """Person 3 is client 1's. Without the request both tasks' samples are found in the end; with it none is."""
    first, second = people.of(3, 0), people.of(3, 1)
    out = stopped(people, tmp_path / "run", **METHODS[method])
    untouched = Path(shutil.copytree(out, tmp_path / "untouched"))
    assert found(out, first)
    cflag("forget", out, "--subject", 3)
    assert not found(out, first)
    assert found(out, people.of(5, 0)), "another person of the same client stays"
    resume(out)
    assert not found(out, first + second)
    resume(untouched)
    assert found(untouched, first)
    assert found(untouched, second)


def test_a_run_after_a_request_repeats_bit_for_bit(people: People, tmp_path: Path) -> None:
    out = stopped(people, tmp_path / "run")
    cflag("forget", out, "--subject", 3)
    again = Path(shutil.copytree(out, tmp_path / "again"))
    resume(out)
    resume(again)
    same(out, again)
    assert logs(out)
    for path in logs(out):
        assert path.read_bytes() == (again / "checkpoint" / path.name).read_bytes()


def test_one_sample_is_forgotten_by_its_hash_and_by_its_file(
    people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stopped(people, tmp_path / "run")
    rows = answer(capsys, "show", out)["samples"]
    assert {hashlib.sha256(x).hexdigest() for p in range(8) for x in people.of(p, 0)} >= {r["sample"] for r in rows}
    one, other = rows[0]["sample"], rows[1]["sample"]
    raw = {hashlib.sha256(x.tobytes()).hexdigest(): x for x in people.x}
    np.save(tmp_path / "x.npy", raw[other])
    cflag("forget", out, "--sample", one[:16], "--sample-file", tmp_path / "x.npy")
    assert not found(out, [raw[one].tobytes(), raw[other].tobytes()])
    left = answer(capsys, "show", out)["samples"]
    assert [r["sample"] for r in left] == [r["sample"] for r in rows[2:]]


def test_the_audit_log_says_what_went_and_what_did_not(
    people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stopped(people, tmp_path / "run")
    held = {row["sample"] for row in answer(capsys, "show", out, "--subject", 3)["samples"]}
    before = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in logs(out)}
    cflag("forget", out, "--subject", 3)
    after = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in logs(out)}
    said = capsys.readouterr().out
    (line,) = answer(capsys, "audit", out)["lines"]
    assert set(line["deleted"]["samples"]) == held != set()
    assert line["deleted"]["clients"] == [1]
    (changed,) = [name for name in before if before[name] != after[name]]
    assert line["deleted"]["files"] == {f"checkpoint/{changed}": [before[changed], after[changed]]}
    assert "not unlearned" in line["model"]
    assert "has not unlearned" in said
    receipt = hashlib.sha256((out / "audit.jsonl").read_bytes().rstrip(b"\n")).hexdigest()
    assert receipt in said
    cflag("audit", out, "--receipt", receipt, "--public-key", line["key"])
    assert main(["memory", "audit", str(out), "--receipt", "0" * 64]) == 2
    assert main(["memory", "audit", str(out), "--public-key", "A" * 44]) == 2


def _drop(which: int) -> Any:
    def spoil(out: Path) -> None:
        lines = (out / "audit.jsonl").read_text().splitlines(keepends=True)
        (out / "audit.jsonl").write_text("".join(line for k, line in enumerate(lines) if k != which))

    return spoil


def _another_date(out: Path) -> None:
    (out / "audit.jsonl").write_text((out / "audit.jsonl").read_text().replace('"when":"2', '"when":"3'))


def _list_lost(out: Path) -> None:
    (out / "forgotten.json").unlink()


def _state_put_back(out: Path) -> None:
    for path in logs(out.parent / "before"):
        shutil.copy(path, out / "checkpoint")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_drop(0), "one was removed"),
        (_drop(1), "one was removed"),
        (_drop(2), "it had 3 lines"),
        (lambda out: (out / "audit.jsonl").unlink(), "cannot be read"),
        (_another_date, "is not what was signed"),
        (_list_lost, "lacks what the audit log says"),
        (_state_put_back, "holds a sample that was forgotten"),
    ],
)
def test_an_audit_notices(
    spoil: Any, why: str, people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stopped(people, tmp_path / "run")
    shutil.copytree(out, tmp_path / "before")
    for person in (3, 5, 7):
        cflag("forget", out, "--subject", person)
    cflag("audit", out)
    spoil(out)
    assert main(["memory", "audit", str(out)]) == 2
    assert why in capsys.readouterr().err


def test_an_operators_key_is_made_once_and_signs_every_log(
    people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stopped(people, tmp_path / "run")
    monkeypatch.setenv("CFLAG_AUDIT_KEY", str(tmp_path / "keys" / "audit.key"))
    cflag("forget", out, "--subject", 3)
    cflag("forget", out, "--subject", 4)
    assert not (out / "audit.key").exists()
    assert (tmp_path / "keys" / "audit.key").stat().st_mode & 0o777 == 0o600
    assert len({line["key"] for line in answer(capsys, "audit", out)["lines"]}) == 1
    (tmp_path / "bad.key").write_text("no key")
    held = (out / "forgotten.json").read_bytes()
    assert main(["memory", "forget", str(out), "--subject", "5", "--audit-key", str(tmp_path / "bad.key")]) == 2
    assert "is not an Ed25519 private key" in capsys.readouterr().err
    assert (out / "forgotten.json").read_bytes() == held


@pytest.mark.parametrize("workers", [1, 2])
def test_forgetting_while_a_run_goes_on_is_forgetting_between_two_of_its_rounds(
    workers: int, people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = stopped(people, tmp_path / "stopped")
    cflag("forget", there, "--subject", 3)
    resume(there)

    out, rounds = tmp_path / "running", 0

    def then_forget(*args: Any) -> None:
        nonlocal rounds
        checkpoint.save_checkpoint(*args)
        rounds += 1
        if rounds == 3:
            assert found(out, people.of(3, 0))
            cflag("forget", out, "--subject", 3)

    monkeypatch.setattr("cflag.experiment.save_checkpoint", then_forget)
    run(None, out=out, **people.settings(workers=workers))
    assert not found(out, people.of(3, 0) + people.of(3, 1))
    same(out, there)


def _work_in_turns(home: Path, rounds: int) -> None:
    for _ in range(rounds):
        with at_work(home):
            (home / "state").write_text("half")
            time.sleep(0.03)
            (home / "state").write_text("whole")


def test_the_gate_lets_others_in_between_two_rounds_and_never_within_one(tmp_path: Path) -> None:
    """Another process works in rounds; whoever gets in finds its state whole for as long as it stays."""
    (tmp_path / "state").write_text("half")
    worker = get_context("fork").Process(target=_work_in_turns, args=(tmp_path, 200))
    worker.start()
    waited: list[Path] = []
    try:
        while (tmp_path / "state").read_text() != "whole":
            time.sleep(0.001)
        for _ in range(5):
            with let_in(tmp_path, waited.append):
                assert worker.is_alive()
                for _ in range(20):
                    assert (tmp_path / "state").read_text() == "whole"
                    time.sleep(0.003)
    finally:
        worker.terminate()
        worker.join()
    assert waited


class FleetOfPeople(Fleet):
    """Two clients whose data are people's, and a server that can die."""

    def __init__(self, folder: Path, people: People, **settings: Any) -> None:
        super().__init__(folder, **people.settings(**{"min_clients": 2, **settings}))

    def die_after(self, rounds: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            stop_after(rounds, patch)
            with pytest.raises(Crash):
                self.run()


@pytest.mark.parametrize("method", ["cflag", "derpp", "icarl"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_person_is_followed_through_every_file_of_a_client(
    method: str, restarted: bool, people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's process stays, or begins anew; the numbers are those of a run on one machine."""
    monkeypatch.setenv("CFLAG_DATA", str(people.folder))
    fleet = FleetOfPeople(tmp_path, people, method=method)
    fleet.die_after(3)
    state = fleet.nodes[1].state
    assert found(state, people.of(3, 0))
    cflag("forget", state, "--subject", 3)
    assert not found(tmp_path, people.of(3, 0))
    if restarted:
        for node in fleet.nodes:
            node.restart()
    fleet.run()
    assert not found(tmp_path, people.of(3, 0) + people.of(3, 1))
    assert found(state, people.of(5, 1)), "another person's samples are taken"
    assert not [record for record in fleet.records() if "missing" in record]

    there = stopped(people, tmp_path / "local", method=method)
    cflag("forget", there, "--subject", 3)
    resume(there)
    assert numbers(fleet.path) == numbers(there)


def test_a_client_of_a_fleet_forgets_for_all_its_experiments(
    people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before it was ever asked: the list is the client's, not the experiment's."""
    monkeypatch.setenv("CFLAG_DATA", str(people.folder))
    first = FleetOfPeople(tmp_path, people)
    first.die_after(1)
    for node in first.nodes:
        cflag("forget", node.state, "--subject", 3)
    shutil.rmtree(first.path)
    FleetOfPeople(tmp_path, people).run()
    assert len([p for p in (tmp_path / "state-1").iterdir() if p.is_dir()]) == 2
    assert found(tmp_path, people.of(5, 0))
    assert not found(tmp_path, people.of(3, 0) + people.of(3, 1))


def test_a_client_of_whom_nothing_is_left_is_left_out(
    people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 1 has people 1, 3, 5 and 7; from round 4 on client 0's answer is the whole mean, here and in a fleet."""
    everyone = [word for person in (1, 3, 5, 7) for word in ("--subject", person)]
    there = stopped(people, tmp_path / "local")
    cflag("forget", there, *everyone)
    resume(there)
    last = without_times(there)[-1]
    assert last["cohort"] == [0]
    assert last["missing"] == {"1": "all its samples of this task are forgotten"}
    assert not found(there, [x for person in (1, 3, 5, 7) for task in (0, 1) for x in people.of(person, task)])

    monkeypatch.setenv("CFLAG_DATA", str(people.folder))
    fleet = FleetOfPeople(tmp_path, people, min_clients=1)
    fleet.die_after(3)
    cflag("forget", fleet.nodes[1].state, *everyone)
    fleet.run()
    assert "forgotten" in fleet.records()[-1]["missing"]["1"]
    assert fleet.records()[-1]["loss"] == last["loss"]


def tasks_held(out: Path) -> list[dict[int, int]]:
    """Return how many samples of each task, from 1, each client holds."""
    (held,) = inventory(out)
    return [row["tasks"] for row in held.to_dict()["clients"]]


def test_samples_expire_after_so_many_rounds(people: People, tmp_path: Path) -> None:
    """Task 1 ends with round 2. Kept for three rounds it is replayed in rounds 3, 4 and 5, and gone before round 6."""
    held: dict[int, list[Any]] = {}

    def look(*args: Any) -> None:
        checkpoint.save_checkpoint(*args)
        held[len(held) + 1] = tasks_held(out)

    out, own = tmp_path / "run", {"memory": {"per_task": 60, "sample": 30, "expire_rounds": 3}, "rounds": 2, "tasks": 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cflag.experiment.save_checkpoint", look)
        run(None, out=out, **people.settings(**own))
    assert [sorted(clients[0]) for clients in held.values() if clients] == [
        [1],
        [1],
        [1, 2],
        [1, 2],
        [2, 3],
        [2, 3],
        [3, 4],
    ]
    replayed = [line["gradients_memory"] > 0 for line in without_times(out)]
    assert replayed == [False, False] + [True] * 6


def test_samples_expire_by_their_own_clients_clock(people: People, tmp_path: Path) -> None:
    """Client 0 leaves task 1 with round 2, client 1 with round 3; each replays it for one round."""
    held: list[list[tuple[int, dict[int, int], int]]] = []

    def look(*args: Any) -> None:
        checkpoint.save_checkpoint(*args)
        (found,) = inventory(out)
        clients = found.to_dict()["clients"]
        held.append([(c["client"], c["tasks"], c["oldest_rounds"]) for c in clients])

    memory = {"per_task": 60, "sample": 30, "expire_rounds": 1}
    out, own = tmp_path / "run", {"memory": memory, "schedule": {"kind": "staggered", "groups": 2}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cflag.experiment.save_checkpoint", look)
        run(None, out=out, **people.settings(**own))
    assert held == [
        [],
        [(0, {1: 60}, 0)],
        [(0, {1: 60}, 1), (1, {1: 60}, 0)],
        [(1, {1: 60}, 1)],
        [(0, {2: 60}, 0), (1, {2: 60}, 0)],
    ]


def test_samples_that_all_expire_leave_an_empty_memory(people: People, tmp_path: Path) -> None:
    """Kept for one round, task 1 is replayed in round 3 alone; the same in one process and resumed in between."""
    own = {"memory": {"per_task": 60, "sample": 30, "expire_rounds": 1}, "rounds": 3}
    out = stopped(people, tmp_path / "run", 4, **own)
    resume(out)
    run(None, out=tmp_path / "whole", **people.settings(**own))
    same(out, tmp_path / "whole")
    assert [line["gradients_memory"] > 0 for line in without_times(out)] == [False] * 3 + [True, False, False]
    assert tasks_held(out) == [{2: 60}, {2: 60}]
    assert not found(out / "checkpoint", people.of(3, 0))


def in_days(days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be so many days later."""
    later = datetime.now(UTC).date() + timedelta(days=days)
    for module in ("keeper", "erase", "inventory"):
        monkeypatch.setattr(f"cflag.memory.{module}.today", lambda: later)


def test_samples_expire_by_the_day_and_on_command(
    people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stopped(people, tmp_path / "run", memory={"per_task": 60, "sample": 30, "expire_days": 30})
    plain = Path(shutil.copytree(out, tmp_path / "plain"))
    in_days(29, monkeypatch)
    cflag("expire", out)
    assert tasks_held(out) == [{1: 60}, {1: 60}]
    assert {row["days"] for row in answer(capsys, "show", out)["samples"]} == {29}
    in_days(30, monkeypatch)
    cflag("expire", out)
    assert tasks_held(out) == []
    assert [line["act"] for line in answer(capsys, "audit", out)["lines"]] == ["expire", "expire"]
    resume(out)
    resume(plain)  # whose samples expire in the last round, before it is played
    same(out, plain)


def test_an_expired_sample_goes_on_command_by_rounds(people: People, tmp_path: Path) -> None:
    """After three rounds, of which task 1 has two, its samples are one round old."""
    out = stopped(people, tmp_path / "run")
    cflag("expire", out, "--rounds", 2)
    assert tasks_held(out) == [{1: 60}, {1: 60}]
    cflag("expire", out, "--rounds", 1)
    assert tasks_held(out) == []


@given(st.lists(st.integers(0, 23), max_size=20, unique=True), st.integers(4, 24))
@settings(max_examples=40)
def test_a_ring_is_balanced_again_by_the_task_after_a_deletion(gone: list[int], limit: int) -> None:
    """Whatever was deleted: rings with enough samples differ by one, and smaller ones keep all they have."""
    memory = Ring(MemoryOptions(per_task=12, sample=1, limit_samples=limit))
    tasks = [
        Samples(torch.arange(24.0).view(24, 1) + 100 * t, torch.arange(24) % 2 + 2 * t, torch.full((24,), t))
        for t in (0, 1)
    ]
    memory.add(tasks[0], np.random.default_rng(1))
    assert memory.samples is not None
    stays = torch.tensor([x not in gone for x in memory.samples.x.flatten().tolist()])
    memory.samples = memory.samples[stays]
    offered = Counter(memory.samples.y.tolist()) + Counter({2: 6, 3: 6})  # per_task takes six of each new class
    memory.add(tasks[1], np.random.default_rng(2))
    kept = Counter(memory.samples.y.tolist())
    assert sum(kept.values()) == min(limit, sum(offered.values()))
    most = max(kept.values())
    assert all(kept[c] == offered[c] or kept[c] >= most - 1 for c in offered)


def test_whose_a_sample_is_survives_memories_that_do_not_know(tmp_path: Path) -> None:
    old = Samples(torch.zeros(2, 3), torch.zeros(2).long(), torch.zeros(2).long())
    new = Samples(torch.ones(1, 3), torch.zeros(1).long(), torch.ones(1).long(), subject=torch.tensor([7]))
    joined = Samples.cat([old, new])
    assert joined.subject is not None
    assert joined.subject.tolist() == [-1, -1, 7]
    assert old.bytes_each() == new.bytes_each() == 3 * 4 + 8 + 8
    assert Samples.cat([old, old]).subject is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["forget", "{run}"], "say what to forget"),
        (["forget", "{run}", "--subject", "-1"], "nobody knows whose"),
        (["forget", "{run}", "--sample", "xyz"], "a hash is up to 64 digits"),
        (["forget", "{run}", "--sample", "abcdef012345"], "no sample"),
        (["forget", "{run}", "--sample-file", "{run}/config.toml"], "neither one sample"),
        (["forget", "{run}", "--sample-file", "{run}/none.npy"], "no such file"),
        (["list", "{run}/none"], "no such folder"),
        (["list", "{run}/checkpoint"], "holds no memory"),
        (["forget", "{run}/../server", "--subject", "3"], "memories are at its clients"),
        (["forget", "{run}/../0123456789abcdef", "--subject", "3"], "give the client's --state folder"),
        (["forget", "{run}/../digits", "--subject", "3"], "do not say whose"),
        (["forget", "{run}/../damaged", "--subject", "3"], "is damaged"),
    ],
)
def test_a_request_that_would_do_nothing_is_refused_in_one_line(
    words: list[str], why: str, requests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", *(word.replace("{run}", str(requests / "run")) for word in words)]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert not list(requests.rglob("forgotten.json"))
    assert not list(requests.rglob("audit.jsonl"))


@pytest.fixture(scope="module")
def requests(people: People, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of people, one of nobody, one with a damaged state; a server's, and a client's experiment."""
    folder = tmp_path_factory.mktemp("requests")
    damaged = Path(shutil.copytree(stopped(people, folder / "run"), folder / "damaged"))
    spoil_state(places(damaged)[-1])
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Crash):
            run("digits", out=folder / "digits", rounds=2, tasks=2, width=8, clients=2, workers=1, samples_per_class=20)
    for name, text in (("server", 'engine = "flower"\nrounds = 2\n'), ("0123456789abcdef", "rounds = 2\n")):
        (folder / name).mkdir()
        (folder / name / "config.toml").write_text(text)
    return folder


def test_tables_fit_a_terminal(people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = stopped(people, tmp_path / "run")
    for command in ("list", "show"):
        capsys.readouterr()
        cflag(command, out)
        lines = capsys.readouterr().out.splitlines()
        assert all(len(line) <= 80 for line in lines if str(tmp_path) not in line)
    assert lines[-1] == "... and 80 more; see them with --all"
    held = answer(capsys, "list", out)["stores"][0]
    assert held["all"]["samples"] == 120
    assert held["all"]["subjects"] == 8
    assert held["all"]["oldest_rounds"] == 1
    assert held["all"]["bytes"] == 120 * (36 + 3 * 8)
    assert [row["classes"] for row in held["clients"]] == [{"0": 30, "1": 30}] * 2


@pytest.mark.slow
def test_a_person_leaves_a_run_of_real_processes_while_it_goes_on(people: People, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(Crash):
            run(None, out=out, **people.settings(rounds=60, workers=2))
    process = subprocess.Popen([sys.executable, "-m", "cflag", "run", "--quiet", "--resume", str(out)])
    try:
        while not found(out / "checkpoint", people.of(3, 0)):
            assert process.poll() is None
            time.sleep(0.05)
        cflag("forget", out, "--subject", 3)
        assert not found(out, people.of(3, 0))
        assert process.poll() is None, "it ended before the request: nothing was tried"
        assert process.wait(240) == 0
    finally:
        process.kill()
        process.wait()
    assert not found(out, people.of(3, 0) + people.of(3, 1))
    assert found(out, people.of(5, 1))
    cflag("audit", out)
