"""Pictures of schedules: what is in them is what the plan says."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflag.cli import main
from cflag.data.schedules.base import NEVER, Plan
from cflag.report.timetable import SYMBOLS, as_text, drawing, rows_of, standalone

N = NEVER
HOSPITALS = Plan(np.array([[0, 4], [6, 1], [0, N]]), np.array([[2, 5], [7, 4], [1, N]]), np.array([8, 8, 2]))
"""Client 0 is absent in round 3 and at the end, client 1 comes in round 1, client 2 leaves for good after round 1."""


def test_a_line_for_each_client_by_hand() -> None:
    """Eight rounds in 80 columns: each is eight letters wide."""
    head, *lines = as_text(HOSPITALS)
    wide = ["".join(symbol * 8 for symbol in word) for word in ("111.22..", ".2222.11", "11")]
    assert lines[:3] == [f"{k}       {word}" for k, word in enumerate(wide)]
    marks = [k for k, mark in enumerate(lines[3][8:], 1) if mark == "^"]
    assert marks == [16, 24, 40, 48, 64], "after rounds 2, 3, 5, 6 and 8"
    assert (head[8], head[16], head[64]) == ("1", "2", "8")
    assert max(map(len, [head, *lines])) <= 80


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    clients, tasks, seed = draw(st.integers(1, 70)), draw(st.integers(1, 12)), draw(st.integers(0, 2**32))
    rounds, rng = draw(st.integers(2 * tasks, 300)), np.random.default_rng(seed)
    edges = np.stack([np.sort(rng.choice(rounds, 2 * tasks, replace=False)) for _ in range(clients)])
    order = rng.permuted(np.tile(np.arange(tasks), (clients, 1)), axis=1)
    both = np.take_along_axis(edges.reshape(clients, tasks, 2), order[..., None], axis=1)
    both[clients // 2, 1:][rng.random(tasks - 1) < 0.5] = NEVER
    return Plan(both[..., 0], both[..., 1])


@given(plans(), st.integers(50, 120))
def test_text_fits_and_says_what_clients_do(plan: Plan, width: int) -> None:
    _, *lines = as_text(plan, width)
    assert all(len(line) <= width for line in lines)
    rows = {row.label: row for row in rows_of(plan, 40)}
    shown = [line for line in lines if line.split(" ")[0] in rows and not line.startswith(" ")][:40]
    assert len(shown) == min(40, len(rows))
    margin = max(len("client"), *(len(line.split(" ")[0]) for line in shown)) + 2
    for line in shown:
        row, cells = rows[line.split(" ")[0]], line[margin:]
        did = {row.task(r) for r in range(plan.total)}
        assert {SYMBOLS.index(symbol) for symbol in cells if symbol not in ". "} <= did
        assert ("." not in cells) or NEVER in did
    if plan.total <= width - margin:  # every round has a column
        row = rows[shown[0].split(" ")[0]]
        wide = min(8, (width - margin) // plan.total)
        cells = shown[0][margin:].ljust(plan.total * wide)
        assert cells[::wide] == "".join(
            "." if row.task(r) == NEVER else SYMBOLS[row.task(r) or 0] for r in range(plan.total)
        )


@given(plans())
def test_drawings_are_whole_and_blocks_are_where_the_plan_has_them(plan: Plan) -> None:
    root = ElementTree.fromstring(drawing(plan))
    space = "{http://www.w3.org/2000/svg}"
    width = (760 - 14 - 74) / plan.total
    drawn = set()
    for rect in root.iter(f"{space}rect"):
        title = rect.find(f"{space}title")
        found = (
            re.fullmatch(r"client (\d+)\S*: task (\d+), rounds (\d+) to (\d+)", title.text or "")
            if title is not None
            else None
        )
        if found:
            client, task, first, last = map(int, found.groups())
            drawn.add((client, task - 1, first - 1, last - 1))
            assert float(rect.attrib["x"]) == pytest.approx(74 + width * (first - 1), abs=0.06)
            assert float(rect.attrib["width"]) == pytest.approx(width * (last - first + 1), abs=0.06)
    wanted = {(c, int(t), int(plan.first[c, t]), int(plan.last[c, t])) for c, t in np.argwhere(plan.first >= 0)}
    assert drawn <= wanted
    assert drawn == wanted or len(plan.first) > 60, "only equal neighbours of many share a row"


def test_neighbours_that_are_alike_share_a_row_where_there_are_many() -> None:
    first = np.repeat([[0, 5], [0, 6]], 100, axis=0)
    plan = Plan(first, np.hstack([first[:, 1:] - 1, np.full((200, 1), 9)]))
    assert [row.label for row in rows_of(plan, 60)] == ["0–99", "100–199"]
    assert len(rows_of(plan, 200)) == 200
    assert len(as_text(plan)) == 4


def test_absences_are_hatched_and_memories_fill_up() -> None:
    picture = drawing(HOSPITALS)
    hatched = re.findall(
        r'<rect x="([\d.]+)" width="([\d.]+)" y="[\d.]+" height="[\d.]+" fill="url\(#hatch\)"/>', picture
    )
    unit = (760 - 14 - 74) / 8
    assert [(round((float(x) - 74) / unit), round(float(w) / unit)) for x, w in hatched] == [
        (3, 1), (6, 2), (0, 1), (5, 1)]  # fmt: skip
    left = re.findall(r"<title>client (\d): (\d) left</title>", picture)
    assert left == [("0", "1"), ("0", "2"), ("1", "1")], "client 1's second comes with the end, client 2 is gone"
    assert "gone for good" in picture


def test_a_file_of_its_own_has_its_colours_for_light_and_dark() -> None:
    text = standalone(HOSPITALS)
    assert "var(" not in text
    assert text.count("prefers-color-scheme: dark") == 1
    light, dark = text.split("@media")
    assert ".f0 { fill: #0b6e99; }" in light
    assert ".f0 { fill: #5bb4d9; }" in dark
    ElementTree.fromstring(text)


def test_show_draws_what_a_file_says_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.csv").write_text("client,first,last,task\n0,1,3,1\n0,5,6,2\n1,2,5,2\n1,7,8,1\n2,1,2,1\n")
    (tmp_path / "own.toml").write_text(
        'source = "mnist"\nclients = 3\ntasks = 2\n[schedule]\nkind = "table"\nfile = "own.csv"\n'
    )
    given_file = str(tmp_path / "own.toml")
    assert main(["show", given_file, "--picture", "--data-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "table: 3 clients, 2 tasks, 8 rounds" in text
    assert "\n1       " + "." * 8 + "2" * 32 + "." * 8 + "1" * 16 + "\n" in text
    assert "the data decide" in text
    assert main(["show", given_file, "--picture", "--out", str(tmp_path / "own.svg")]) == 0
    assert ElementTree.parse(tmp_path / "own.svg").getroot().tag.endswith("svg")
    assert main(["show", given_file, "--out", str(tmp_path / "own.svg")]) == 2
    assert "add --picture" in capsys.readouterr().err
