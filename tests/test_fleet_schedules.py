"""Every schedule gives the same numbers on every engine, also where a run is killed after any round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cflag import registry, run
from cflag.config import resolve
from cflag.errors import UserError
from cflag.launch import resume
from tests.support.crashes import Crash, stop_after
from tests.support.grid import Fleet, numbers

pytestmark = pytest.mark.usefixtures("no_figures")

SMALL: dict[str, Any] = {"clients": 4, "tasks": 2, "rounds": 2, "width": 8, "epochs": 1, "zeta": 1.0}
LINES = ["0,1,2,1", "0,3,4,2", "1,1,2,2", "1,4,4,1", "2,3,4,1", "3,1,1,2", "3,3,3,2"]
"""Client 2 comes in round 3, client 3 leaves after it and has a break before, and client 1 is absent in the third."""
SCHEDULES: dict[str, dict[str, Any]] = {
    "together": {},
    "staggered": {"groups": 2},
    "own-order": {},
    "own-classes": {"classes": 3},
    "joining": {"join": 1, "leave": 1, "lacking": 0.5},
    "online": {"least": 20},
    "blurry": {"share": 0.4},
    "table": {"lines": LINES},
}
CELLS = [
    *((kind, "cflag") for kind in SCHEDULES),
    *((kind, "icarl") for kind in ("staggered", "own-classes", "joining", "table")),  # class means, teachers
    *((kind, "ewc") for kind in ("staggered", "joining")),  # what the server keeps of those who leave
    *((kind, "replay") for kind in ("online", "blurry")),
]
"""The kinds and the methods whose own part in them may go wrong; test_schedules has every method under every kind."""


def settings(kind: str, method: str, heads: str = "anyone") -> dict[str, Any]:
    """Return a short run under a schedule."""
    own: dict[str, Any] = {**SMALL, "method": method, "schedule": {"kind": kind, "heads": heads, **SCHEDULES[kind]}}
    if kind == "online":
        own["memory"] = {"kind": "reservoir"}
    return own


def test_every_kind_is_here() -> None:
    assert sorted(SCHEDULES) == sorted(registry.names("schedule"))


@pytest.mark.parametrize(("kind", "method"), CELLS)
def test_a_fleet_and_two_workers_give_the_numbers_of_one_process(kind: str, method: str, tmp_path: Path) -> None:
    own = settings(kind, method)
    run("digits", out=tmp_path / "one", workers=1, **own)
    if method == "cflag":
        run("digits", out=tmp_path / "two", workers=2, **own)
        assert numbers(tmp_path / "two") == numbers(tmp_path / "one")
    fleet = Fleet(tmp_path, **own)
    fleet.run()
    assert numbers(fleet.path) == numbers(tmp_path / "one")
    assert [line for line in fleet.said if "left for good" not in line] == []


@pytest.mark.parametrize("kind", [kind for kind in SCHEDULES if kind != "together"])
def test_killed_after_every_round_it_is_the_same_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locally, and on a fleet whose server is started anew for every round."""
    own = settings(kind, "replay" if kind == "online" else "icarl", heads="own")
    whole, cut, fleet = tmp_path / "whole", tmp_path / "cut", Fleet(tmp_path, **own)
    run("digits", out=whole, workers=1, **own)
    rounds = len(numbers(whole)[0])
    assert kills(lambda: run("digits", out=cut, workers=1, **own), lambda: resume(cut), monkeypatch) == rounds
    assert kills(fleet.run, fleet.run, monkeypatch) == rounds
    assert numbers(cut) == numbers(whole)
    assert numbers(fleet.path) == numbers(whole)


def kills(begin: Callable[[], object], go_on: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a process die after each of its rounds; return how often."""
    for count in range(100):
        with monkeypatch.context() as patch:
            stop_after(1, patch)
            try:
                (go_on if count else begin)()
                return count
            except Crash:
                continue
    raise AssertionError("it does not come to an end")


def test_a_secure_mean_is_of_three_clients_at_least() -> None:
    """Of three groups of two, two clients leave a task at a time; of two groups of three, three."""
    secure: dict[str, Any] = {"clients": 6, "engine": "flower-sim", "secure": True}
    resolve({**secure, "schedule": {"kind": "staggered", "groups": 2}})
    with pytest.raises(UserError, match="a question is for 2 clients alone"):
        resolve({**secure, "schedule": {"kind": "staggered", "groups": 3}})
    # Of five clients that are drawn, three may have no past yet: two are left to be asked for theirs.
    with pytest.raises(UserError, match="a question is for 2 clients alone"):
        resolve({**secure, "schedule": {"kind": "staggered", "groups": 2}, "clients_per_round": 5})
    resolve({**secure, "clients": 12, "schedule": {"kind": "staggered", "groups": 2}, "clients_per_round": 9})


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["staggered", "joining"])
def test_a_simulation_has_the_same_numbers(kind: str, tmp_path: Path) -> None:
    own = settings(kind, "cflag")
    run("digits", out=tmp_path / "local", workers=1, **own)
    run("digits", out=tmp_path / "sim", workers=2, **own, engine="flower-sim")
    assert numbers(tmp_path / "sim") == numbers(tmp_path / "local")
