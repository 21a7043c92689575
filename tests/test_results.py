"""Metrics by hand, the documented schema, figures and tables."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from PIL import Image
from rich.console import Console

from cflag import Experiment, Result, run
from cflag.account import Account
from cflag.cli import main
from cflag.config import flatten, load_raw, merge, resolve
from cflag.conversation import Moment
from cflag.diagnostics import Figure, Marks, Series, totals
from cflag.errors import UserError
from cflag.files import load_state, save_state
from cflag.learning.observed import RATES_FIGURE
from cflag.results.display import Bar, show_results
from cflag.results.figures import write_figures
from cflag.results.folder import RunFolder
from cflag.results.history import History, scores
from cflag.results.metrics import ROUND
from cflag.results.result import (
    Matrix,
    average_accuracy,
    backward_transfer,
    forgetting,
    forgetting_max,
    forward_transfer,
    learning_accuracy,
)
from cflag.results.table import as_csv, as_text, rows
from tests.support.quick import QUICK

A: Matrix = [
    [0.8, 0.5, 0.4],
    [0.9, 0.7, 0.6],
    [0.6, 0.5, 1.0],
]


def test_metrics_by_hand() -> None:
    assert average_accuracy(A) == pytest.approx(0.7)
    assert forgetting(A) == pytest.approx(((0.8 - 0.6) + (0.7 - 0.5)) / 2)
    assert forgetting_max(A) == pytest.approx(((0.9 - 0.6) + (0.7 - 0.5)) / 2)
    assert learning_accuracy(A) == pytest.approx((0.8 + 0.7 + 1.0) / 3)
    assert forward_transfer(A, [0.5, 0.4, 0.5]) == pytest.approx(((0.5 - 0.4) + (0.6 - 0.5)) / 2)


def test_a_single_task_forgets_nothing() -> None:
    assert (forgetting([[0.5]]), forgetting_max([[0.5]]), forward_transfer([[0.5]], [0.1])) == (0, 0, 0)


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(st.floats(0, 1), min_size=n, max_size=n),
                                                    min_size=n, max_size=n)))  # fmt: skip
def test_relations_between_metrics(a: list[list[float]]) -> None:
    assert backward_transfer(a) == pytest.approx(-forgetting(a))
    assert forgetting_max(a) >= forgetting(a) - 1e-12
    if len(a) > 1:
        earlier = learning_accuracy(a) * len(a) - a[-1][-1]
        later = average_accuracy(a) * len(a) - a[-1][-1]
        assert forgetting(a) == pytest.approx((earlier - later) / (len(a) - 1), abs=1e-9)


def test_accuracy_is_over_all_samples_not_over_clients() -> None:
    counts = torch.tensor([[(1, 0, 1), (0, 0, 0)], [(1, 1, 3), (2, 1, 4)]])
    assert scores(counts, by_task=True) == [2 / 4, 2 / 4]
    assert scores(counts, by_task=False) == [1 / 4, 1 / 4]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run("digits", out=tmp_path_factory.mktemp("results") / "run", **QUICK)


def test_result_json_follows_its_schema(result: Result) -> None:
    schema = json.loads((files("cflag.results") / "result.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    assert result.folder is not None
    written = json.loads((result.folder / "result.json").read_text(), parse_constant=pytest.fail)  # strictly JSON
    Draft202012Validator(schema).validate(written)
    assert set(written) == set(schema["required"])
    assert Result.load(result.folder) == result


def test_every_line_of_the_metrics_has_what_is_promised(result: Result) -> None:
    lines = result.metrics
    assert [(line["task"], line["round"]) for line in lines] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for line in lines:
        for key in ("loss", "accuracy", "gradients_current", "gradients_memory", "bytes_up", "bytes_down", "seconds"):
            assert line[key] is not None
        assert len(line["accuracies"]) == line["task"]
    for line in lines[2:]:
        assert line["gamma"] is not None
        assert line["memory_loss"] is not None
        for key in ("lambda", "alpha", "beta", "case", "capped", "loss"):
            assert len(line["clients"][key]) == 5
    assert sum(line["bytes_up"] for line in lines) == result.costs["bytes_up"]
    assert lines[-1]["accuracy"] == pytest.approx(result.average_accuracy)


@pytest.mark.usefixtures("no_figures")
def test_evaluation_on_a_schedule(tmp_path: Path) -> None:
    settings = {**QUICK, "rounds": 5, "eval_every": 2}
    lines = run("digits", out=tmp_path / "run", **settings).metrics
    assert [line["accuracy"] is not None for line in lines] == [False, True, False, True, True] * 2


def test_figures_are_drawn(result: Result) -> None:
    assert result.folder is not None
    names = {p.name for p in (result.folder / "figures").iterdir()}
    stems = ("accuracy_after_each_task", "accuracy_matrix", "forgetting", "rates")
    assert names == {f"{s}.{e}" for s in stems for e in ("png", "svg")}
    for stem in stems:
        with Image.open(result.folder / "figures" / f"{stem}.png") as image:
            colours = image.convert("RGB").getcolors(maxcolors=2**24)
            assert colours is not None
            assert len(colours) > 20  # something is on it
        assert (result.folder / "figures" / f"{stem}.svg").read_text().count("<path") > 5


def test_figures_are_drawn_of_the_shortest_run_and_where_a_client_was_away(result: Result, tmp_path: Path) -> None:
    assert result.folder is not None
    names = {p.name for p in (result.folder / "figures").iterdir()}
    run("digits", out=tmp_path / "run", **{**QUICK, "tasks": 1, "rounds": 1})
    assert {p.name for p in (tmp_path / "run" / "figures").iterdir()} <= names
    away = [{**line, "clients": {k: [None, *v[1:]] for k, v in line["clients"].items()}} for line in result.metrics]
    shutil.copytree(result.folder, tmp_path / "away", ignore=shutil.ignore_patterns("figures", "digests.json"))
    (tmp_path / "away" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in away))
    write_figures(Result.load(tmp_path / "away"), tmp_path / "away" / "figures")
    assert {p.name for p in (tmp_path / "away" / "figures").iterdir()} == names


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run("digits", method="finetune", out=tmp_path_factory.mktemp("results") / "plain", **QUICK)


def test_a_method_that_declares_and_logs_nothing_has_nothing_of_anothers(plain: Result) -> None:
    assert plain.folder is not None
    assert {p.stem for p in (plain.folder / "figures").iterdir()} == {"accuracy_after_each_task", "accuracy_matrix"}
    assert (plain.diagnostics, plain.figures) == ({}, ())
    for line in plain.metrics:
        assert set(line) == set(ROUND) - {"cohort", "missing", "prequential", "noticed", "epsilon"}
        assert set(line["clients"]) == {"loss"}


def test_an_older_result_is_read_by_its_scenario(result: Result, tmp_path: Path) -> None:
    new = ("by_task", "diagnostics", "figures", "milestones", "measures")
    raw = {k: v for k, v in result.to_dict().items() if k not in new}
    for scenario in ("task", "class", "rotated"):
        old = {**raw, "schema": 2, "config": {**raw["config"], "scenario": scenario}}
        (tmp_path / "result.json").write_text(json.dumps(old))
        back = Result.load(tmp_path)
        assert back.accuracy_matrix == result.matrices["task" if scenario == "task" else "class"]
        assert back.other_matrix == result.matrices["class" if scenario == "task" else "task"]
    (tmp_path / "result.json").write_text(json.dumps({**raw, "by_task": False, "schema": 3}))
    back = Result.load(tmp_path)
    assert back.accuracy_matrix == result.matrices["class"]
    assert (back.milestones, back.measures, back.together) == (result.milestones, {}, True)
    assert rows([back])[0][3:5] == ["–", "–"], "what an older result does not know"
    assert as_csv([back]).splitlines()[1].split(",")[4:6] == ["", ""]
    (tmp_path / "result.json").write_text(json.dumps({**raw, "schema": 1}))
    with pytest.raises(UserError, match="another version"):
        Result.load(tmp_path)


def test_class_counts_are_those_of_the_clients_samples(tmp_path: Path) -> None:
    settings = {**QUICK, "zeta": 0.5, "clients": 3, "rounds": 1}
    experiment = Experiment(resolve(merge(load_raw("digits"), flatten(settings))))
    folder = experiment.run(tmp_path / "run").folder
    assert folder is not None
    tasks = RunFolder(folder).class_counts()
    assert tasks is not None
    assert [tuple(task) for task in tasks] == [task.classes for task in experiment.benchmark.tasks]
    for k, task in enumerate(tasks):
        for label, counts in task.items():
            mine = [int((experiment.benchmark.train(client, k).y == label).sum()) for client in range(3)]
            assert counts == mine
    written = (folder / "benchmark.json").stat().st_mtime_ns
    RunFolder(folder).describe_data(tasks)
    assert (folder / "benchmark.json").stat().st_mtime_ns == written


class Logging:
    """Just enough of a server to log something."""

    def __init__(self, **logs: float) -> None:
        self.task, self.round, self.rounds, self.sizes, self.logs = 0, 0, 2, {0: 5}, logs
        self.moment = Moment.together(0)


def test_a_method_cannot_hide_what_every_round_has() -> None:
    history, account = History(), Account()
    server: Any = Logging(warmth=0.5)
    line = history.record(server, account, None, 1.0)
    assert line["warmth"] == 0.5
    assert server.logs == {}
    for name in ("loss", "clients", "cohort", "seconds"):
        with pytest.raises(UserError, match=f"logs '{name}'"):
            history.record(cast(Any, Logging(**{name: 1.0})), account, None, 1.0)


COLUMN = st.lists(st.none() | st.integers(0, 9), max_size=4)


@given(st.lists(st.tuples(st.none() | st.integers(0, 9), COLUMN), max_size=8))
def test_declared_values_are_read_back_from_the_metrics(rounds: list[tuple[int | None, list[int | None]]]) -> None:
    """A key that both the server and clients log; null is what JSON has for a number that is none."""
    records = [{"hits": server, "clients": {"hits": clients}} for server, clients in rounds]
    each, own = Series("hits", "h", by_client=True, total=True), Series("hits", "h", drawn=False)
    figure = Figure("hits", "Hits", (each, own))
    numbers = [[v for v in clients if v is not None] for _, clients in rounds]
    logged = [*(v for row in numbers for v in row), *(v for v, _ in rounds if v is not None)]
    assert totals([figure], records) == ({"hits": sum(logged)} if logged else {})
    means = [(t, sum(v) / len(v)) for t, v in enumerate(numbers, 1) if v]
    assert figure.curves(records) == ({each: means} if means else {})
    assert own.points(records) == [(t, v) for t, (v, _) in enumerate(rounds, 1) if v is not None]


def test_marks_count_clients() -> None:
    marks = Marks("case", ("a", "b"), "what happened")
    said = [["a", "a", "b"], ["a", "b"], None, ["b", None, None], ["b"]]
    records = [{"clients": {} if words is None else {"case": words}} for words in said]
    assert marks.shares(records, "a") == [(1, 2 / 3), (2, 0.5), (4, 0), (5, 0)]
    assert (marks.most(records, "a"), marks.most(records, "b")) == ([1], [5])


def test_a_declared_figure_survives_json_and_has_the_name_of_a_file() -> None:
    for figure in (RATES_FIGURE, Figure("x-1_y", "X", (Series("k", "κ"),))):
        assert Figure.from_dict(json.loads(json.dumps(asdict(figure)))) == figure
    for name in ("", "a/b", "../x", "a b"):
        with pytest.raises(UserError, match="cannot be named"):
            Figure(name, "X", ())


def test_tables_fit_eighty_columns(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    show_results(Console(width=80), [result])
    text = capsys.readouterr().out
    matrix_and_summary = text.split("cflag (seed")[0]
    assert max(len(line) for line in matrix_and_summary.splitlines()) <= 80
    assert f"{100 * result.average_accuracy:.1f}" in text
    assert f"{100 * result.forgetting:.1f}" in text
    assert "result.json" in text
    assert "…" not in text


def test_a_table_that_is_too_wide_becomes_two(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    many = {**result.costs, "bytes_down": 123_456_789_000, "gradients_current": 12_345_678_000}
    runs = [replace(result, seed=seed, costs=many) for seed in (1, 2)]
    Console(width=80).print(as_text(runs))
    text = capsys.readouterr().out
    heads = [line.split() for line in text.splitlines() if "Acc" in line or "rounds" in line]
    assert heads == [
        ["Acc", "Forget", "worst", "any", "other", "learn"],
        ["rounds", "grad.", "mem.", "up", "down", "time"],
    ]
    assert "…" not in text
    assert "12,345,678" in text


def test_progress_by_clocks_of_their_own_counts_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight rounds, which the server's clock takes for tasks of three: it ends in the middle of one."""
    lines = [{"task": 1 + k // 3, "round": 1 + k % 3, "accuracy": 0.5 if k > 2 else None} for k in range(8)]
    bar = Bar(Console(width=80, force_terminal=True, color_system=None))
    bar.start("cflag", tasks=2, rounds=3, done=6, own=8)
    for line in lines[6:]:
        bar.update(line)
    assert bar.progress is not None
    assert bar.progress.finished
    bar.stop()
    assert "cflag  round 8/8" in capsys.readouterr().out
    plain = Bar(Console(width=80))
    plain.start("cflag", tasks=2, rounds=3, done=0, own=8)
    for line in lines:
        plain.update(line)
    assert capsys.readouterr().out.splitlines() == [
        "cflag: round 3/8 done",
        "cflag: round 6/8 done, accuracy so far 50.0 %",
        "cflag: round 8/8 done, accuracy so far 50.0 %",
    ]


def test_progress_bar_shows_task_round_accuracy_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar(Console(width=80, force_terminal=True, color_system=None))
    bar.start("cflag", tasks=2, rounds=3, done=3)
    bar.update({"task": 2, "round": 1, "accuracy": 0.875})
    bar.stop()
    shown = [line for line in capsys.readouterr().out.splitlines() if "round 1/3" in line][-1]
    assert "cflag  task 2/2  round 1/3" in shown
    assert "Acc  87.5 %" in shown
    assert "left" in shown


def test_history_survives_a_file(tmp_path: Path) -> None:
    history = History(done=3, tests=2, states={"clients-0.log": [2, "ab"]}, model_sent=[4])
    save_state(tmp_path / "history", history.to_dict())
    back = History.from_dict(load_state(tmp_path / "history"))
    assert (back.done, back.tests, back.states, back.model_sent) == (3, 2, {"clients-0.log": [2, "ab"]}, [4])


def test_tests_survive_files_whatever_their_numbers(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", resolve({}))
    saved = [torch.tensor([[(k, 0, most)]]) for k, most in enumerate((1, 255, 256, 70_000, 2**33))]
    for index, counts in enumerate(saved):
        folder.save_test(index, counts)
    assert [counts.tolist() for counts in folder.tests(5)] == [counts.tolist() for counts in saved]
    assert len(list(folder.tests(2))) == 2


def test_without_a_terminal_a_line_is_due_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """By a clock that goes on four seconds a look: rounds 1 and 2 are too early, the end of a task never is."""
    times = iter(range(0, 1000, 4))
    bar = Bar(Console(width=80), lambda: float(next(times)))
    bar.start("cflag", tasks=1, rounds=5, done=0)  # at 0
    for k in range(1, 6):
        bar.update({"task": 1, "round": k, "accuracy": 0.5})  # at 4, 8, 12 (due: 10 after 0), ...
    assert capsys.readouterr().out.splitlines() == [
        "cflag: task 1/1, round 3/5 done, accuracy so far 50.0 %",
        "cflag: task 1/1 done, accuracy so far 50.0 %",
    ]


@pytest.mark.usefixtures("no_figures")
def test_the_first_line_without_a_terminal_and_none_when_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "digits", "--workers", "1", *(f"--set={k}={v}" for k, v in QUICK.items()), "--out"]
    assert main([*command, str(tmp_path / "a")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "loading torch and the data ..."
    assert lines[1].startswith("cflag: task 1/2 done")
    assert main([*command, str(tmp_path / "b"), "--quiet"]) == 0
    assert not [line for line in capsys.readouterr().out.splitlines() if "loading" in line or " done" in line]
