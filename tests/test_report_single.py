"""One client at a time: a part of the report for each client, readable without a script and small for two hundred."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cflag import Result, run
from cflag.data.sources.digits import digits
from cflag.problems.score import ACCURACY, Score
from cflag.report.page import find_results, make_page
from cflag.report.single import MOST_TESTS, single_clients

pytestmark = pytest.mark.usefixtures("no_figures")
Rows = list[list[float | None]]


def made(method: str, clients: list[Rows], score: Score = ACCURACY, **more: Any) -> Result:
    """A run of so many tasks as its matrices have columns."""
    whole: Rows = [[0.5] * len(clients[0][0]) for _ in clients[0]]
    costs: dict[str, float] = {"gradients_current": 0, "gradients_memory": 0, "bytes_up": 0, "bytes_down": 0}
    matrices: dict[str, Any] = {"task": whole, "class": whole}
    return Result(method, 7, matrices, [0.0], clients, costs, {"tasks": len(whole)}, {}, score=score, **more)


def part(html: str, number: int) -> str:
    """What is folded under a client's name."""
    return html[html.index(f'<details id="client-{number}">') :].partition("</details>")[0]


def test_a_client_has_its_matrix_with_means_over_the_tasks_begun() -> None:
    """50 % after task 1; 40 and 80 after task 2, on average 60. Tasks not begun are left out, unknown ones a dash."""
    own: Rows = [[0.5, 0.9], [0.4, 0.8]]
    html = single_clients({"a": [made("a", [own, [[None, None], [None, 0.25]], [[None, None]] * 2])]}, "", {"a": 14})
    assert "<summary>client 0: a 60.0 %</summary>" in html
    assert [line.split() for line in re.findall(r"<pre>([^<]*)", part(html, 0))[0].splitlines()] == [
        ["task", "mean", "t1", "t2"],
        ["1", "50.0", "50.0"],
        ["2", "60.0", "40.0", "80.0"],
    ]
    assert [line.split() for line in re.findall(r"<pre>([^<]*)", part(html, 1))[0].splitlines()[1:]] == [
        ["2", "25.0", "–", "25.0"]
    ]
    assert "it never tested" in part(html, 2)
    assert 'data-colour="2"' in part(html, 0), "the fifteenth method has the third colour"
    assert 'data-worst="0" data-best="100"' in html


def test_colours_are_turned_where_less_is_better() -> None:
    error = Score("mae", "MAE", "error", "mm", higher=False)
    html = single_clients({"a": [made("a", [[[4.0, 3.0], [2.0, 9.0]]], error)]}, "", {"a": 0})
    assert 'data-worst="9" data-best="2" data-score="error (mm)"' in html


def test_what_a_client_took_part_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of 3 MB up and 6 down: all three in the first, clients 0 and 2 in the second."""
    rounds: list[dict[str, Any]] = [{"clients": {"loss": [1.0]}, "bytes_up": 3e6, "bytes_down": 6e6} for _ in range(2)]
    rounds[1]["cohort"] = [0, 2]
    monkeypatch.setattr(Result, "metrics", rounds)
    groups = {"a": [made("a", [[[0.5]]] * 3)]}
    html = single_clients(groups, "", {"a": 0})
    assert "2 of 2 rounds; 2.5 MB up, 5 MB down" in part(html, 0)
    assert "1 of 2 rounds; 1 MB up, 2 MB down" in part(html, 1)
    rounds[0]["clients"] = {}  # as in a private run: nobody says who was there
    assert "rounds;" not in single_clients(groups, "", {"a": 0})


def test_of_hundreds_of_tests_a_few_are_shown_the_last_among_them() -> None:
    long: Rows = [[k / 100] for k in range(100)]
    plan = {"first": [[1]], "last": [[100]], "gone": [None]}
    html = single_clients({"a": [made("a", [long], milestones=list(range(1, 101)), plan=plan)]}, "", {"a": 0})
    lines = [line.split() for line in re.findall(r"<pre>([^<]*)", html)[0].splitlines()]
    assert lines[0] == ["round", "mean", "t1"]
    assert lines[1] == ["1", "0.0", "0.0"]
    assert lines[-1] == ["100", "99.0", "99.0"]
    assert len(lines) == 1 + MOST_TESTS


def test_two_hundred_clients_are_small_and_more_have_none() -> None:
    """Ten tasks: 55 numbers for each of 200 clients, in at most 600 bytes."""
    rows: Rows = [[0.512] * 10 for _ in range(10)]
    html = single_clients({"a": [made("a", [rows] * 200)]}, "", {"a": 0})
    assert html.count("<details") == 200
    assert len(html.encode()) < 200 * 850
    assert "201 clients are too many for a part each" in single_clients({"a": [made("a", [rows] * 201)]}, "", {"a": 0})
    assert single_clients({"a": [made("a", [rows])], "b": [made("b", [rows])]}, "", {"a": 0, "b": 1}).count("<h4>") == 2


def test_a_run_has_them_with_its_samples(tmp_path: Path) -> None:
    """As many training samples as benchmark.json says, and a link from the table of clients."""
    run("digits", out=tmp_path / "run", method="finetune", tasks=2, rounds=1, clients=3, width=8, workers=1)
    results = find_results([tmp_path / "run"])
    page = make_page(results, "x")
    for number in range(3):
        assert page.count(f'id="client-{number}"') == 1
        assert f'<a href="#client-{number}">{number}</a>' in page
    samples = [int(n) for n in re.findall(r"task \d: (\d+)", page)]
    each = [int(n) for n in re.findall(r"\d: (\d+)", " ".join(re.findall(r"task \d: \d+ \(([^)]*)\)", page)))]
    assert sum(samples) == sum(each) == len(digits(Path()).train)
