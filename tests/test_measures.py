"""Measures of clients with clocks of their own, by hand; and that they are the paper's where all are together."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cflag import Experiment, Result, UserError, run
from cflag.account import Counts
from cflag.cli import main
from cflag.compare import price
from cflag.config import resolve
from cflag.data.schedules.base import NEVER, Frame, Plan
from cflag.data.schedules.staggered import Staggered, StaggeredOptions
from cflag.data.schedules.together import Together
from cflag.results.history import History, Played, scores
from cflag.results.measures import Outcomes, measure, plan_from_dict, plan_to_dict, total_transfer, worst_tenth
from cflag.results.result import forgetting, forgetting_max, forward_transfer, learning_accuracy
from cflag.transfer import alone
from cflag.transfer import total_transfer as total_transfer_of

STAGGERED = Staggered(StaggeredOptions("staggered", groups=3, every=1), Frame(3, 2, 3, 1)).plan
"""Rounds from 0: client 0 has task 0 in 0–2 and task 1 in 3–7, client 1 in 0–3 and 4–7, client 2 in 0–4 and 5–7."""


def counts(*clients: tuple[int, ...]) -> Counts:
    """Right answers of ten in each task, with the task known; without it always half of them, rounded down."""
    return torch.tensor([[(right, right // 2, 10) for right in row] for row in clients])


TESTS = [
    counts((1, 2), (1, 3), (2, 4)),  # the initial model
    counts((9, 3), (8, 5), (7, 6)),  # after round 2: client 0 leaves task 0
    counts((8, 6), (9, 6), (7, 6)),  # after round 3: client 1 does
    counts((7, 7), (8, 7), (6, 8)),  # after round 4: client 2 does
    counts((5, 9), (9, 8), (8, 10)),  # after round 7: all leave task 1
]
ALL = np.ones((3, 2), np.bool_)


def test_three_clients_two_tasks_staggered_by_hand() -> None:
    assert sorted(STAGGERED.ends) == [2, 3, 4, 7]
    found = measure(Outcomes.of(TESTS, STAGGERED, ALL, by_task=True), [0.5, None, 0.7, 0.9])
    own: dict[str, list[float]] = {
        "accuracy_seen": [(0.5 + 0.9) / 2, (0.9 + 0.8) / 2, (0.8 + 1.0) / 2],
        "accuracy_anyone": [0.7, 0.85, 0.9],
        "learning_accuracy": [(0.9 + 0.9) / 2, (0.9 + 0.8) / 2, (0.6 + 1.0) / 2],
        "forgetting": [0.9 - 0.5, 0.9 - 0.9, 0.6 - 0.8],
        "forgetting_max": [0.9 - 0.5, 0.9 - 0.9, 0.6 - 0.8],
        "backward_transfer": [-0.4, 0.0, 0.2],
        "forward_transfer": [0.3 - 0.2, 0.6 - 0.3, 0.8 - 0.4],
        "net_transfer": [0.1 - 0.4, 0.3 + 0.0, 0.4 + 0.2],
    }
    for name, values in own.items():
        assert found["clients"][name] == pytest.approx(values), name
        assert found["all"][name] == pytest.approx(sum(values) / 3), name
    assert found["all"]["worst_tenth"] == pytest.approx(0.7)
    assert found["all"]["anytime_accuracy"] == pytest.approx(0.7)


def test_the_other_reading_of_the_same_tests() -> None:
    found = measure(Outcomes.of(TESTS, STAGGERED, ALL, by_task=False), [])["clients"]
    assert found["accuracy_seen"] == pytest.approx([(0.2 + 0.4) / 2, (0.4 + 0.4) / 2, (0.4 + 0.5) / 2])
    assert found["forgetting"] == pytest.approx([0.4 - 0.2, 0.4 - 0.4, 0.3 - 0.4])


def test_who_comes_late_leaves_early_or_has_no_samples() -> None:
    """Client 0 leaves for good after task 0, client 1 has all three, client 2 comes with task 1 and lacks task 2."""
    first = np.array([[0, NEVER, NEVER], [0, 2, 4], [NEVER, 2, 4]])
    plan = Plan(first, np.where(first >= 0, first + 1, NEVER), np.array([2, 6, 6]))
    nobody, has = (0, 0, 0), np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0]], np.bool_)
    tests = [
        torch.tensor([[(1, 0, 4)] * 3, [(2, 0, 4)] * 3, [nobody] * 3]),
        torch.tensor([[(3, 0, 4), (2, 0, 4), (1, 0, 4)], [(4, 0, 4), (2, 0, 4), (1, 0, 4)], [nobody] * 3]),
        torch.tensor([[nobody] * 3, [(2, 0, 4), (4, 0, 4), (0, 0, 4)], [(1, 0, 4), (3, 0, 4), nobody]]),
        torch.tensor([[nobody] * 3, [(1, 0, 4), (2, 0, 4), (3, 0, 4)], [(0, 0, 4), (1, 0, 4), nobody]]),
    ]
    tested = Outcomes.of(tests, plan, has, by_task=True)
    found = measure(tested, [])
    each = found["clients"]
    assert each["accuracy_seen"] == [0.75, 0.5, 0.25], "client 0's at its own last test; client 2 never had task 2"
    assert each["accuracy_anyone"] == [0.75, 0.5, 0.125], "task 0 alone was begun; all three; two can be tested"
    assert each["forgetting"] == [None, ((1.0 - 0.25) + (1.0 - 0.5)) / 2, None], "one task is not forgotten"
    assert found["all"]["forgetting"] == 0.625
    assert each["forward_transfer"] == [None, ((0.5 - 0.5) + (0.0 - 0.5)) / 2, None], "client 2 was not tested before"
    assert each["learning_accuracy"] == [0.75, (1.0 + 1.0 + 0.75) / 3, 0.75]
    assert found["all"]["anytime_accuracy"] is None
    assert plan_to_dict(tested.plan)["last"] == [[2, None, None], [2, 4, 6], [None, 4, None]]


def test_where_single_clients_are_not_known_all_are_one() -> None:
    """Task 0 ends when the last client leaves it, after round 4; task 1 begins with the first, in round 3."""
    pooled = [test.sum(0, keepdim=True) for test in TESTS]
    found = measure(Outcomes.of(pooled, STAGGERED, ALL, by_task=True), [], single=False)
    assert found["clients"] == {}
    assert found["all"]["forgetting"] == pytest.approx((7 + 8 + 6) / 30 - (5 + 9 + 8) / 30)
    assert found["all"]["forward_transfer"] == pytest.approx((3 + 5 + 6) / 30 - (2 + 3 + 4) / 30)
    assert found["all"]["worst_tenth"] is None


def test_total_transfer_by_hand() -> None:
    alone = np.array([[0.8, 0.8], [0.8, 0.8], [0.8, 0.9]])
    tested = Outcomes.of(TESTS, STAGGERED, ALL, by_task=True)
    after = [
        0.9 - 0.8,
        (0.9 - 0.8) + (0.8 - 0.9),
        (0.6 - 0.8) + ((0.7 - 0.9) + (0.8 - 0.9)) / 2,
        (0.1 + 0.0 + 0.1) / 3 + ((0.5 - 0.9) + (0.9 - 0.9) + (0.8 - 0.6)) / 3,
    ]
    assert total_transfer(tested, alone) == pytest.approx(sum(after) / 4)


@pytest.mark.parametrize(("clients", "lowest"), [(1, 1), (10, 1), (11, 2), (25, 3)])
def test_the_worst_tenth_is_rounded_up(clients: int, lowest: int) -> None:
    values: list[float | None] = [k / 100 for k in range(clients, 0, -1)]
    assert worst_tenth([None, *values]) == pytest.approx(sum(range(1, lowest + 1)) / lowest / 100)


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))


@given(SIZES, st.integers(1, 9), st.data())
def test_with_equal_counts_and_everybody_together_they_are_the_papers(
    sizes: tuple[int, int, int], held_out: int, data: st.DataObject
) -> None:
    clients, tasks, rounds = sizes
    plan = Together(None, Frame(clients, tasks, rounds, 1)).plan
    right = st.lists(st.integers(0, held_out), min_size=clients * tasks, max_size=clients * tasks)
    tests = []
    for _ in range(tasks + 1):
        known = torch.tensor(data.draw(right)).reshape(clients, tasks)
        tests.append(torch.stack([known, known // 2, torch.full_like(known, held_out)], 2))
    found = measure(Outcomes.of(tests, plan, np.ones((clients, tasks), np.bool_), by_task=True), [])["all"]
    initial, *a = (scores(test, by_task=True) for test in tests)
    papers = {
        "accuracy_seen": sum(a[-1]) / tasks,
        "accuracy_anyone": sum(a[-1]) / tasks,
        "learning_accuracy": learning_accuracy(a),
        "forgetting": forgetting(a) if tasks > 1 else None,
        "forward_transfer": forward_transfer(a, initial) if tasks > 1 else None,
    }
    assert {name: found[name] for name in papers} == pytest.approx(papers)
    if tasks > 1:  # each client's best may be at another time than that of all together
        assert found["forgetting_max"] >= forgetting_max(a) - 1e-9


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_a_plan_survives_a_file(clients: int, tasks: int, rounds: int) -> None:
    first = np.arange(tasks) * rounds + np.zeros((clients, 1), np.int64)
    first[0, 1:] = NEVER
    plan = Plan(first, np.where(first >= 0, first + rounds - 1, NEVER))
    gone = np.array([rounds, *[plan.total] * (clients - 1)]) if clients > 1 else None
    plan = Plan(plan.first, plan.last, gone)
    back = plan_from_dict(json.loads(json.dumps(plan_to_dict(plan))))
    assert (back.latest(plan.total - 1) == plan.latest(plan.total - 1)).all()
    assert (back.first == plan.first).all()
    assert (back.last == plan.last).all()
    assert plan_to_dict(plan)["first"][0][0] == 1, "people count from 1"


QUICK: dict[str, Any] = {"tasks": 2, "rounds": 3, "clients": 3, "batch": 64, "width": 8, "workers": 1}


@pytest.fixture(scope="module")
def staggered(tmp_path_factory: pytest.TempPathFactory) -> Result:
    schedule = {"kind": "staggered", "groups": 3, "every": 1}
    return run("digits", out=tmp_path_factory.mktemp("own") / "run", method="finetune", schedule=schedule, **QUICK)


def test_a_run_with_clocks_of_their_own_has_a_row_for_each_milestone(staggered: Result) -> None:
    assert staggered.milestones == [3, 4, 5, 8]
    assert staggered.rows == ("round", [3, 4, 5, 8])
    assert [len(row) for row in staggered.accuracy_matrix] == [2, 2, 2, 2]
    assert [[staggered.begun(i, j) for j in range(2)] for i in range(4)] == [[True, False], *[[True, True]] * 3]
    assert staggered.accuracy_so_far[0] == staggered.accuracy_matrix[0][0]
    assert staggered.plan is not None
    assert staggered.plan["first"] == [[1, 4], [1, 5], [1, 6]]
    matrices = staggered.client_matrices
    lost = [matrices[k][k][0] - matrices[k][3][0] for k in range(3)]  # type: ignore[operator]
    assert staggered.forgetting == pytest.approx(sum(lost) / 3)
    assert staggered.average_accuracy == pytest.approx(sum(staggered.accuracy_matrix[3]) / 2)


def test_its_files_follow_the_schema_and_come_back(staggered: Result) -> None:
    schema = json.loads((files("cflag.results") / "result.schema.json").read_text())
    assert staggered.folder is not None
    written = json.loads((staggered.folder / "result.json").read_text(), parse_constant=pytest.fail)
    Draft202012Validator(schema).validate(written)
    assert set(written) == {*schema["required"], "plan"}
    assert Result.load(staggered.folder) == staggered
    tasks = [line["clients"]["task"] for line in staggered.metrics]
    assert tasks == [[1, 1, 1]] * 3 + [[2, 1, 1], [2, 2, 1]] + [[2, 2, 2]] * 3
    assert not any("cohort" in line for line in staggered.metrics), "all were there"


@pytest.mark.usefixtures("no_figures")
def test_who_was_there_is_said_where_not_all_were(tmp_path: Path) -> None:
    joining = {"kind": "joining", "join": 1}
    result = run("digits", out=tmp_path / "run", method="finetune", schedule=joining, **{**QUICK, "rounds": 1})
    assert [line.get("cohort") for line in result.metrics] == [[0, 1], None]
    assert [line["clients"]["task"] for line in result.metrics] == [[1, 1], [2, 2, 2]]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("budget", ["gradients", "bytes"])
@pytest.mark.parametrize("kind", ["staggered", "own-order", "joining"])
def test_a_price_is_that_of_a_whole_run(kind: str, budget: Literal["gradients", "bytes"], tmp_path: Path) -> None:
    """Two and four rounds are tried; seven are run: what they cost follows, to the last gradient and byte.

    Steps are on all samples of a client, since mini-batches of a shuffled pass are not all of one size.
    """
    own = {
        "method": "replay",
        "schedule": {"kind": kind},
        **QUICK,
        "steps": 2,
        "batch": 1000,
        "rounds": 7,
        "workers": 1,
    }
    result = run("digits", out=tmp_path / "run", **own)
    costs = result.costs
    spent = {"gradients": costs["gradients_current"] + costs["gradients_memory"],
             "bytes": costs["bytes_up"] + costs["bytes_down"]}  # fmt: skip
    found = price(resolve(result.config), budget)
    assert found.of(7) * QUICK["tasks"] == pytest.approx(spent[budget], rel=1e-9)


def test_a_budget_that_rounds_do_not_decide_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In one pass every sample is seen once, in however many rounds."""
    given = ["compare", "digits", "--methods", "finetune,ewc", "--budget", "gradients", "--out", str(tmp_path / "c")]
    online = ["--set", "schedule=online", "--set", "samples_per_class=20", "--set", "width=4"]
    assert main([*given, *online]) == 2
    assert "with 'online' more rounds cost no more; compare at equal rounds" in capsys.readouterr().err


def test_what_nobody_who_is_left_can_test_is_unknown_and_not_zero() -> None:
    """One client had task 0 and is gone; the other has held-out samples of task 1 alone."""
    plan = Plan(np.array([[0, NEVER], [NEVER, 1]]), np.array([[0, NEVER], [NEVER, 1]]), np.array([1, 2]))
    own = Staggered(StaggeredOptions("staggered"), Frame(2, 2, 1, 1))
    own.__dict__["plan"] = plan
    nobody = (0, 0, 0)
    tests = [
        torch.tensor([[(0, 0, 2), nobody], [nobody, nobody]]),
        torch.tensor([[(2, 1, 2), nobody], [nobody, nobody]]),
        torch.tensor([[nobody, nobody], [nobody, (1, 0, 2)]]),
    ]
    config = resolve({"clients": 2, "tasks": 2, "rounds": 1})
    result = History().result(config, Path("nowhere"), (), Played(own, np.ones((2, 2), np.bool_), tests))
    assert result.matrices == {"task": [[1.0, None], [None, 0.5]], "class": [[0.5, None], [None, 0.0]]}
    assert result.average_accuracy == 0.5
    assert result.accuracy_so_far == [1.0, 0.5]
    assert result.measures["all"]["accuracy_seen"] == 0.75, "the first client's as it left"
    assert result.to_dict()["forgetting"] == 0.0
    assert result.to_dict()["plan"]["gone"] == [2, None]


# What takes runs of its own -------------------------------------------------------------------------------------------

LONE: dict[str, Any] = {
    "method": "cflag", "clients": 2, "tasks": 2, "rounds": 2, "width": 8, "epochs": 1, "partition": "iid", "workers": 1,
    "samples_per_class": 20, "test_per_class": 20,
}  # fmt: skip


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("scenario", ["task", "class"])
def test_alone_is_as_if_nobody_else_had_begun(scenario: str, tmp_path: Path) -> None:
    """A run whose first rounds one client has for itself tests it then: client 0 with task 1, client 1 with task 2.

    Which samples clients have follows from who gets a task, not from when.
    """
    orders = {
        (0, 0): ["0,1,2,1", "0,3,5,2", "1,3,4,1", "1,5,5,2"],
        (1, 1): ["1,1,1,2", "1,3,4,1", "0,3,4,1", "0,5,7,2"],
    }
    for (client, task), lines in orders.items():
        own = {**LONE, "scenario": scenario, "schedule": {"kind": "table", "lines": lines}}
        result = run("digits", out=tmp_path / f"run-{client}", **own)
        experiment = Experiment(resolve(result.config))
        found = alone(experiment, experiment.benchmark.schedule.plan)
        assert not np.isnan(found).any()
        assert found[client, task] == result.client_matrices[client][0][task]
        assert 0 < found[client, task] <= 1


@pytest.mark.usefixtures("no_figures")
def test_total_transfer_of_a_run_that_is_alone_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One client with one task: what it learned alone is what it learned."""
    out = tmp_path / "run"
    run("digits", out=out, **{**LONE, "clients": 1, "tasks": 1})
    assert total_transfer_of(out) == 0.0
    assert main(["transfer", str(out)]) == 0
    assert capsys.readouterr().out == "total transfer 0.00 points\n"
    (out / "result.json").unlink()
    with pytest.raises(UserError, match="is not finished"):
        total_transfer_of(out)
    run("diabetes", out=tmp_path / "other", tasks=2, rounds=1, workers=1)
    with pytest.raises(UserError, match="total transfer is of accuracies, and problem = 'regression' has none"):
        total_transfer_of(tmp_path / "other")
