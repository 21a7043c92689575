"""Nothing grows while a run goes on; and faults of every kind, one run each, change nothing. `make soak` is longer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.campaign import SHARES, Whole, campaign
from benchmarks.soak import rows, soak_local

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"clients": 20, "tasks": 20, "rounds": 20, "clients_per_round": 3},
        {"clients": 200, "tasks": 20, "rounds": 3, "clients_per_round": 3},
    ],
    ids=["rounds", "clients"],
)
def test_files_bytes_and_descriptors_stay_what_they_were(
    settings: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two tasks against the last two. A tenth is room for numbers that have more digits later.

    Logs of states grow until more of them is dead than alive; of such small ones a mebibyte may be, usually.
    """
    monkeypatch.setattr("cflag.states.store.LEAST", 0)
    meter = soak_local("short", tmp_path / "run", **settings)
    found = {row.what: (row.first, row.last) for row in rows("short", meter)}
    assert len(set(found["open files"])) == 1
    assert len(set(found["files in the run folder, no tests"])) == 1
    for what in ("bytes of the server's checkpoint", "bytes of it, no metrics, no tests", "bytes of a line of metrics"):
        first, last = found[what]
        assert last <= 1.1 * first, what


def test_the_campaign_counts_what_is_lost() -> None:
    """Two rounds and three clients; each thing that can be wrong is one, also beside a client too many."""
    lines = [{"round": 1}, {"round": 2}]
    kept = {n: {"memory.y": torch.tensor([n, n]), "dates": {"0": "today"}} for n in range(3)}
    whole = Whole(lines, b"model", kept)
    assert whole.wrong_rounds(Whole(lines, b"model", kept)) == whole.lost_memories(Whole(lines, b"model", kept)) == 0
    assert whole.wrong_rounds(Whole([{"round": 1}, {"round": 3}], b"model", kept)) == 1
    assert whole.wrong_rounds(Whole(lines[:1], b"model", kept)) == 1
    assert whole.wrong_rounds(Whole(lines, b"other", kept)) == 1
    another_day = {n: {**state, "dates": {"0": "tomorrow"}} for n, state in kept.items()}
    assert whole.lost_memories(Whole(lines, b"model", another_day)) == 0
    changed = {**kept, 1: {**kept[1], "memory.y": torch.tensor([1, 2])}}
    assert whole.lost_memories(Whole(lines, b"model", changed)) == 1
    missing = {n: kept[n] for n in (0, 2)}
    assert whole.lost_memories(Whole(lines, b"model", missing)) == 1
    assert whole.lost_memories(Whole(lines, b"model", {**missing, 7: kept[0]})) == 2
    assert whole.lost_memories(Whole(lines, b"model", {**changed, 7: kept[0]})) == 2


@pytest.mark.slow
def test_faults_of_every_kind_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cflag.results.folder.draw", lambda *_: None)  # the campaign sets it, too
    done = campaign(dict.fromkeys(SHARES, 2), seed=3, out=tmp_path)
    assert {case.kind for case in done} == set(SHARES)
    assert sum(case.injected for case in done) >= 2 * len(SHARES)
    wrong: list[Any] = [case for case in done if case.wrong_rounds or case.lost_memories or case.untidy]
    assert not wrong
    again = campaign(dict.fromkeys(SHARES, 2), seed=3, out=tmp_path)
    assert again == done
