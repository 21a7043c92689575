"""Nothing grows while a run goes on; and faults of every kind, one run each, change nothing. `make soak` is longer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.campaign import SHARES, campaign
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
def test_files_bytes_and_descriptors_stay_what_they_were(settings: dict[str, int], tmp_path: Path) -> None:
    """The first two tasks against the last two. A twentieth is room for numbers that have more digits later."""
    meter = soak_local("short", tmp_path / "run", **settings)
    found = {row.what: (row.first, row.last) for row in rows("short", meter)}
    assert len(set(found["open files"])) == 1
    assert len(set(found["files in the run folder, no tests"])) == 1
    for what in ("bytes of the server's checkpoint", "bytes of it, no metrics, no tests", "bytes of a line of metrics"):
        first, last = found[what]
        assert last <= 1.05 * first, what


@pytest.mark.slow
def test_faults_of_every_kind_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cflag.results.figures.write_figures", lambda *_: [])  # the campaign sets it, too
    done = campaign(dict.fromkeys(SHARES, 2), seed=3, out=tmp_path)
    assert {case.kind for case in done} == set(SHARES)
    assert sum(case.injected for case in done) >= 2 * len(SHARES)
    wrong: list[Any] = [case for case in done if case.wrong_rounds or case.lost_memories or case.untidy]
    assert not wrong
    again = campaign(dict.fromkeys(SHARES, 2), seed=3, out=tmp_path)
    assert again == done
