"""Metrics by hand, the documented schema, figures and tables."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from PIL import Image
from rich.console import Console

from cflag import Result, run
from cflag.files import load_state, save_state
from cflag.results.display import Bar, show_results
from cflag.results.history import History, accuracies
from cflag.results.result import (
    Matrix,
    average_accuracy,
    backward_transfer,
    forgetting,
    forgetting_max,
    forward_transfer,
    learning_accuracy,
)
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
def test_relations_between_metrics(a: Matrix) -> None:
    assert backward_transfer(a) == pytest.approx(-forgetting(a))
    assert forgetting_max(a) >= forgetting(a) - 1e-12
    if len(a) > 1:
        earlier = learning_accuracy(a) * len(a) - a[-1][-1]
        later = average_accuracy(a) * len(a) - a[-1][-1]
        assert forgetting(a) == pytest.approx((earlier - later) / (len(a) - 1), abs=1e-9)


def test_accuracy_is_over_all_samples_not_over_clients() -> None:
    counts = torch.tensor([[(1, 0, 1), (0, 0, 0)], [(1, 1, 3), (2, 1, 4)]])
    assert accuracies(counts, by_task=True) == [2 / 4, 2 / 4]
    assert accuracies(counts, by_task=False) == [1 / 4, 1 / 4]


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


def test_evaluation_on_a_schedule(tmp_path: Path) -> None:
    settings = {**QUICK, "rounds": 5, "eval_every": 2}
    lines = run("digits", out=tmp_path / "run", **settings).metrics
    assert [line["accuracy"] is not None for line in lines] == [False, True, False, True, True] * 2


def test_figures_are_drawn(result: Result) -> None:
    assert result.folder is not None
    names = {p.name for p in (result.folder / "figures").iterdir()}
    stems = ("accuracy_after_each_task", "accuracy_matrix", "gamma")
    assert names == {f"{s}.{e}" for s in stems for e in ("png", "svg")}
    for stem in stems:
        with Image.open(result.folder / "figures" / f"{stem}.png") as image:
            colours = image.convert("RGB").getcolors(maxcolors=2**24)
            assert colours is not None
            assert len(colours) > 20  # something is on it
        assert (result.folder / "figures" / f"{stem}.svg").read_text().count("<path") > 5


def test_tables_fit_eighty_columns(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    show_results(Console(width=80), [result])
    text = capsys.readouterr().out
    matrix_and_summary = text.split("cflag (seed")[0]
    assert max(len(line) for line in matrix_and_summary.splitlines()) <= 80
    assert f"{100 * result.average_accuracy:.1f}" in text
    assert f"{100 * result.forgetting:.1f}" in text
    assert "result.json" in text
    assert "…" not in text


def test_progress_bar_shows_task_round_accuracy_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar(Console(width=80, force_terminal=True, color_system=None))
    bar.start("cflag", tasks=2, rounds=3, done=3)
    bar.update({"task": 2, "round": 1, "accuracy": 0.875})
    bar.stop()
    shown = [line for line in capsys.readouterr().out.splitlines() if "round 1/3" in line][-1]
    assert "cflag  task 2/2  round 1/3" in shown
    assert "acc  87.5 %" in shown
    assert "left" in shown


def test_history_survives_a_file(tmp_path: Path) -> None:
    after = [torch.tensor([[(k, 0, 2)]]) for k in range(12)]
    history = History(
        done=3, initial=torch.tensor([[(1, 0, 2)]]), after_task=after, clients={4: "file"}, model_sent=[4]
    )
    save_state(tmp_path / "history", history.to_dict())
    back = History.from_dict(load_state(tmp_path / "history"))
    assert (back.done, back.clients, back.model_sent) == (3, {4: "file"}, [4])
    assert back.initial is not None
    assert accuracies(back.initial, by_task=True) == [0.5]
    assert [int(counts[0, 0, 0]) for counts in back.after_task] == list(range(12))
