"""Memories are governed: what they hold can be told and taken out, and it does not come back."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cflag import run
from cflag.cli import main
from cflag.launch import resume
from tests.support.crashes import Crash, stop_after
from tests.support.people import People, found
from tests.support.quick import same

pytestmark = pytest.mark.usefixtures("no_figures")

METHODS = {
    "cflag": {"method": "cflag"},
    "derpp": {"method": "derpp"},
    "icarl": {"method": "icarl"},
    "joint": {"method": "joint"},
    "reservoir": {"method": "replay", "memory": {"kind": "reservoir", "per_task": 60, "sample": 30}},
}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People(tmp_path_factory.mktemp("people") / "data")


def stopped(people: People, out: Path, after: int = 3, **settings: Any) -> Path:
    """A run that died after some rounds: two tasks of two rounds, so after three its memories hold the first task."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(after, patch)
        with pytest.raises(Crash):
            run(None, out=out, **people.settings(**settings))
    return out


def cflag(*words: object) -> None:
    assert main(["memory", *map(str, words)]) == 0


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    capsys.readouterr()
    cflag(*words, "--json")
    return json.loads(capsys.readouterr().out)


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
    for path in (out / "checkpoint").glob("client-*"):
        assert path.read_bytes() == (again / "checkpoint" / path.name).read_bytes()


def test_one_sample_is_forgotten_by_its_hash_and_by_its_file(
    people: People, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stopped(people, tmp_path / "run")
    rows = answer(capsys, "show", out)["samples"]
    assert {hashlib.sha256(x).hexdigest() for p in range(8) for x in people.of(p, 0)} >= {r["sample"] for r in rows}
    one, other = rows[0]["sample"], rows[1]["sample"]
    raw = {hashlib.sha256(x.tobytes()).hexdigest(): x for x in people.x}
    (tmp_path / "x.npy").write_bytes(b"")
    import numpy as np

    np.save(tmp_path / "x.npy", raw[other])
    cflag("forget", out, "--sample", one[:16], "--sample-file", tmp_path / "x.npy")
    assert not found(out, [raw[one].tobytes(), raw[other].tobytes()])
    left = answer(capsys, "show", out)["samples"]
    assert [r["sample"] for r in left] == [r["sample"] for r in rows[2:]]
