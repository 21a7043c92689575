"""Logs of clients' states: whole after a kill at any byte, small for any population, and free of what is not needed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cflag import run
from cflag.errors import DamagedError, UserError
from cflag.files import load_state, packed, sync_folder
from cflag.launch import resume
from cflag.memory.erase import Erased, expire
from cflag.memory.homes import stores
from cflag.results.folder import RunFolder
from cflag.states import log
from cflag.states.log import Tail, first_link
from cflag.states.store import Named, StateStore, check
from tests.support.crashes import Crash, newest_checkpoint, stop_after
from tests.support.governed import stopped as people_stopped
from tests.support.people import People, found
from tests.support.quick import QUICK, same
from tests.support.states import HEAD, logs, places

pytestmark = pytest.mark.usefixtures("no_figures")

RUN = "0123456789abcdef"
SETTINGS: dict[str, Any] = {**QUICK, "clients": 3, "workers": 1, "samples_per_class": 20, "tasks": 5, "rounds": 1}
"""All clients change in each of five rounds."""


def state(client: int, round_: int, size: int = 4) -> dict[str, Any]:
    return {"memory.x": torch.full((size,), float(1000 * client + round_))}


def save(store: StateStore, round_: int, *workers: Sequence[int], dies: bool = False) -> Named:
    """Do what an engine and a checkpoint do in a round, each worker with its clients; return what it names.

    One that dies does so right after its checkpoint.
    """
    stamp = f"{RUN}.1-{round_}"
    for tail, clients in zip(store.tails(stamp, len(workers)), workers, strict=True):
        store.take(tail, *tail.write((client, state(client, round_)) for client in clients))
    store.compact(stamp)
    named = store.named()
    if not dies:
        store.checkpointed()
    return named


def held(store: StateStore) -> dict[int, float]:
    """Return the number that each client's state has."""
    return {client: float(place.load()["memory.x"][0]) for client, place in store.index.items()}


def test_each_client_is_what_it_was_saved_as_last_whoever_saved_it(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    save(store, 1, [0, 1], [2])
    save(store, 2, [2], [0])
    assert held(store) == {0: 2, 1: 1001, 2: 2002}
    assert len(list(tmp_path.iterdir())) == 2, "a log for each worker"
    again = StateStore(tmp_path)
    again.restore(store.named(), [])
    assert held(again) == held(store)
    save(again, 3, [1])
    assert held(again) == {0: 2, 1: 1003, 2: 2002}
    assert again.get(7) is None


def test_what_a_checkpoint_says_and_writes_does_not_grow_with_the_population(tmp_path: Path) -> None:
    """The same cohort of a small and of a large population: the same bytes named, written and emptied."""
    spent = []
    for clients in (10, 500):
        folder = tmp_path / str(clients)
        folder.mkdir()
        store = StateStore(folder)
        save(store, 1, range(clients))
        before = sum(path.stat().st_size for path in folder.iterdir())
        named = save(store, 2, range(4))
        grown = sum(path.stat().st_size for path in folder.iterdir()) - before
        spent.append((len(str(named)) - len(str(clients + 4)), grown, len(list(folder.iterdir()))))
    assert spent[0] == spent[1]
    assert spent[0][1] == sum(HEAD + place.size for place in [store.index[k] for k in range(4)])


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Named, Named]:
    """A log with two checkpoints' states, the second of which has one record more; the first client changed."""
    store = StateStore(tmp_path / "log")
    store.folder.mkdir()
    first = save(store, 1, [0, 1])
    return store.folder, first, save(store, 2, [0])


def test_a_log_cut_at_any_byte_of_its_last_record_is_that_of_the_checkpoint_before(
    two: tuple[Path, Named, Named], tmp_path: Path
) -> None:
    folder, first, second = two
    (path,) = folder.iterdir()
    whole, last = path.read_bytes(), log.walk(path).places[-1]
    check(folder, second, f"{RUN}.1-2")
    for length in range(last.at, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedError):
            check(folder, second, f"{RUN}.1-2")
        check(folder, first, f"{RUN}.1-1")
        again = StateStore(folder)
        again.restore(first, [])
        assert path.stat().st_size == last.at, "what no checkpoint counts is cut off"
        assert held(again) == {0: 1, 1: 1001}
    save(again, 2, [0])
    assert path.read_bytes() == whole


def test_no_changed_byte_of_a_log_is_believed(two: tuple[Path, Named, Named]) -> None:
    """Of a head, or of a state that one of two checkpoints needs."""
    folder, first, second = two
    (path,) = folder.iterdir()
    whole = path.read_bytes()

    def read_all() -> None:
        store = StateStore(folder)
        store.restore(second, [first])
        held(store)
        for place in log.latest(log.counted(path, *first[path.name])).values():
            place.load()

    read_all()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DamagedError):
            read_all()


def test_a_log_of_another_run_or_with_another_order_is_refused(two: tuple[Path, Named, Named]) -> None:
    folder, _, second = two
    (path,) = folder.iterdir()
    other = path.with_name(path.name.replace("clients-0", "clients-1"))
    shutil.copy(path, other)
    with pytest.raises(DamagedError, match="0 whole states where there were 3"):
        check(folder, {other.name: second[path.name]}, f"{RUN}.1-2")
    a, b, c = log.walk(path).places
    raw = path.read_bytes()
    path.write_bytes(raw[b.at : c.at] + raw[a.at : b.at] + raw[c.at :])
    with pytest.raises(DamagedError):
        check(folder, second, f"{RUN}.1-2")


def test_what_neither_of_two_checkpoints_needs_is_gone_from_the_disk(tmp_path: Path) -> None:
    """A state stays readable for the checkpoint before the last, and not one round longer."""
    store = StateStore(tmp_path)
    marks = {k: state(0, k)["memory.x"].numpy().tobytes() for k in range(1, 5)}
    there = []
    for k in range(1, 5):
        save(store, k, [0])
        (path,) = tmp_path.iterdir()
        there.append([r for r, mark in marks.items() if mark in path.read_bytes()])
    assert there == [[1], [1, 2], [2, 3], [3, 4]]
    store.finished()
    assert marks[3] not in path.read_bytes()
    assert marks[4] in path.read_bytes()


def test_a_run_that_died_before_it_emptied_states_does_so_when_it_goes_on(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    save(store, 1, [0, 1])
    second = save(store, 2, [0, 1])
    third = save(store, 3, [0], dies=True)
    (path,) = tmp_path.iterdir()
    raw, (old, *_) = path.read_bytes(), log.walk(path).places
    mark = state(1, 1)["memory.x"].numpy().tobytes()
    assert mark in raw
    for emptied in (0, 1, 7):  # it may have begun, at a content's end
        path.write_bytes(raw[: old.end - emptied] + bytes(emptied) + raw[old.end :])
        again = StateStore(tmp_path)
        again.restore(third, [second])
        assert held(again) == {0: 3, 1: 1002}
        assert mark not in path.read_bytes()
        assert [p.when for p in log.full(log.walk(path).places)] == [(1, 2), (1, 2), (1, 3)]
        assert not any(log.content(old))


def test_logs_are_copied_when_most_of_them_is_not_needed_and_the_checkpoint_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cflag.states.store.LEAST", 0)
    store = StateStore(tmp_path)
    save(store, 1, range(4), [])
    named = [save(store, k, [0], [1]) for k in range(2, 4)]
    assert len(list(tmp_path.iterdir())) == 2
    before = named[-1]
    after = save(store, 4, [0], [1])  # 4 states count, and 6 do not
    assert set(after).isdisjoint(before)
    assert held(store) == {0: 4, 1: 1004, 2: 2001, 3: 3001}
    again = StateStore(tmp_path)
    again.restore(before, [])
    assert held(again) == {0: 3, 1: 1003, 2: 2001, 3: 3001}
    check(tmp_path, after, f"{RUN}.1-4")
    again.restore(after, [before])
    save(again, 5, [2], [3])
    assert held(again) == {0: 4, 1: 1004, 2: 2005, 3: 3005}


def test_a_copy_that_is_damaged_is_found_while_there_is_still_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cflag.states.store.LEAST", 0)
    store = StateStore(tmp_path)
    save(store, 1, [0, 1])
    save(store, 2, [0])
    before = save(store, 3, [0])
    after = save(store, 4, [0])  # two states count, and three do not
    assert set(after).isdisjoint(before)
    copied = store.index[1]
    with open(copied.log, "r+b") as file:
        file.seek(copied.end - 1)
        file.write(b"?")
    with pytest.raises(DamagedError, match="its checksum does not fit"):
        check(tmp_path, after, f"{RUN}.1-4")
    check(tmp_path, before, f"{RUN}.1-3")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 5)), st.integers(1, 3), st.booleans()), min_size=1, max_size=12))
def test_any_course_of_rounds_and_restarts_keeps_two_checkpoints(
    tmp_path_factory: pytest.TempPathFactory, course: list[tuple[set[int], int, bool]]
) -> None:
    """Beside a dict: any cohorts, any number of workers, restarts from the last checkpoint or the one before it."""
    folder = tmp_path_factory.mktemp("course")
    store, kept, plain = StateStore(folder), [], [{}]  # type: ignore[var-annotated]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cflag.states.store.LEAST", 0)
        for round_, (cohort, workers, restart) in enumerate(course, 1):
            shares = [sorted(cohort)[k::workers] for k in range(workers)]
            kept = [*kept, save(store, round_, *shares)][-2:]
            plain = [*plain, {**plain[-1], **{c: 1000.0 * c + round_ for c in cohort}}]
            for path in folder.iterdir():
                if not any(path.name in named for named in kept):
                    path.unlink()  # as `Generations` does
            for named, known in zip(kept[::-1], plain[::-1], strict=False):
                there = log.latest(p for name in named for p in log.counted(folder / name, *named[name]))
                assert {c: float(p.load()["memory.x"][0]) for c, p in there.items()} == known
            if restart:
                store = StateStore(folder)
                store.restore(kept[-1], kept[:-1])
    assert held(store) == plain[-1]


def test_a_full_disk_leaves_a_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"clients-0.{RUN}.1-1.log"
    _, link = Tail(path, first_link(path), 1, 1).write([(0, state(0, 1))])
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("cflag.states.log.os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            Tail(path, link, 1, 2).write([(0, state(0, 2)), (1, state(1, 2))])
    assert path.read_bytes() == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cflag.results.figures.write_figures", lambda *_: [])
        run("digits", out=out, **SETTINGS)
    return out


def in_a_fork(job: Any) -> int:
    """Do something in a process of its own; return how that ended."""
    child = os.fork()
    if not child:
        try:
            job()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("fatal", range(1, 32))
def test_a_kill_between_any_two_operations_on_logs_loses_nothing(fatal: int, whole: Path, tmp_path: Path) -> None:
    """SIGKILL before the n-th state, log, sync or emptying of a run that also copies its logs, up to the last one."""
    out = tmp_path / "run"

    def dying() -> None:
        count = 0

        def counted(operation: Any) -> Any:
            def other(*args: Any) -> Any:
                nonlocal count
                count += 1
                if count == fatal:
                    os.kill(os.getpid(), 9)
                return operation(*args)

            return other

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cflag.states.store.LEAST", 0)
            patch.setattr("cflag.states.log.sync_folder", counted(sync_folder))
            patch.setattr("cflag.states.log._overwrite", counted(log._overwrite))
            patch.setattr("cflag.states.log.append", counted(log.append))
            patch.setattr("cflag.states.log.packed", counted(packed))
            run("digits", out=out, **SETTINGS)

    assert in_a_fork(dying) == -9
    resume(out)
    same(out, whole)
    assert [(p.client, p.when) for p in places(out)] == [(p.client, p.when) for p in places(whole)]


def test_a_run_whose_log_is_cut_in_its_last_round_plays_that_round_again(whole: Path, tmp_path: Path) -> None:
    """At a few bytes of the last record, from its first to its last."""
    stopped = tmp_path / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            run("digits", out=stopped, **SETTINGS)
    last = log.walk(logs(stopped)[0]).places[-1]
    assert last.when == (3, 1)
    for length in (last.at, last.at + 1, last.at + HEAD, last.at + HEAD + 1, last.end - 1):
        out = shutil.copytree(stopped, tmp_path / f"cut-{length}")
        os.truncate(logs(out)[0], length)
        resume(out)
        same(out, whole)
        assert "going on from the checkpoint before it, after 2 rounds" in (out / "events.log").read_text()


def test_a_checkpoint_names_logs_and_no_clients(whole: Path) -> None:
    named = load_state(newest_checkpoint(whole))["states"]
    assert {name: count for name, (count, _) in named.items()} == {logs(whole)[0].name: 15}
    assert [place.when for place in places(whole)] == [(5, 1)] * 3, "of earlier tasks only heads are left"


def test_a_run_of_an_earlier_version_is_not_taken_for_one_of_this(whole: Path, tmp_path: Path) -> None:
    out = shutil.copytree(whole, tmp_path / "run")
    (out / "result.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cflag.checkpoint.FORMAT", 10)
        with pytest.raises(UserError, match="was begun by another version of cflag; start a new run"):
            resume(out)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People(tmp_path_factory.mktemp("people") / "data")


def test_what_a_killed_process_wrote_of_a_record_goes_when_samples_are_taken_out(
    people: People, tmp_path: Path
) -> None:
    """Half a record holds samples, too. No checkpoint counts it, so it is no damage and nobody needs it."""
    out = people_stopped(people, tmp_path / "run")
    (path,) = logs(out)
    raw, last = path.read_bytes(), log.walk(path).places[-1]
    path.write_bytes(raw + raw[last.at : -1])
    (store,) = stores(out)
    assert store.torn() == [path]
    expire(out, (1, 0), erased := Erased(), lambda _: None)
    assert erased.removed == [f"the end of checkpoint/{path.name}"] or not store.torn()
    assert not found(out, people.of(3, 0))
    assert RunFolder(out).generations.files()
    resume(out)


def test_a_log_that_lost_what_a_checkpoint_counts_is_refused_before_samples_are_taken_out(
    people: People, tmp_path: Path
) -> None:
    out = people_stopped(people, tmp_path / "run")
    (path,) = logs(out)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DamagedError, match="whole states where there were"):
        expire(out, (1, 0), Erased(), lambda _: None)
