"""A fair comparison: equal budgets, one table in four formats, resumable."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from cflag import Result, resume
from cflag.cli import main
from cflag.comparison import plan
from cflag.config import flatten, load_raw, merge, resolve
from cflag.errors import CflagError, UserError
from cflag.experiment import Experiment
from cflag.jobs import held, prepare, run_all
from cflag.pricing import Price, price
from cflag.results.display import PatientConsole
from cflag.results.table import as_csv, as_latex, as_markdown, as_text, columns
from tests.support.processes import start_here
from tests.support.quick import QUICK

pytestmark = pytest.mark.usefixtures("no_figures")

RAW: dict[str, Any] = merge(load_raw("digits"), flatten({**QUICK, "eval_every": 9}))


def result(method: str, seed: int, last: list[float], **costs: float) -> Result:
    spent = dict.fromkeys(("gradients_current", "gradients_memory", "bytes_up", "bytes_down", "seconds"), 0.0)
    matrices = {"task": [[0.9, 0.5], last], "class": [[0.8, 0.1], [0.2, 0.4]]}
    config = {"scenario": "task", "rounds": 7}
    return Result(method, seed, matrices, [0.5, 0.5], [], {**spent, **costs}, config, {})


RESULTS = [
    result("one", 1, [0.7, 0.9], bytes_up=2e6),
    result("one", 2, [0.8, 1.0], bytes_up=4e6),
    result("two", 1, [0.9, 0.9], gradients_memory=1234567.0),
]


def test_table_by_hand() -> None:
    """Acc 80 and 90, forgetting 20 and 10: means 85 and 15, standard deviation 5√2; learned (90+90)/2, (90+100)/2."""
    lines = as_markdown(RESULTS).splitlines()
    assert lines[0].startswith("| method | Acc % | Forget % | worst % | any % | other % | learn % | rounds |")
    assert lines[2].startswith("| one | 85.0 ± 7.1 | 15.0 ± 7.1 | – | – | 30.0 | 92.5 | 7 | 0 | 0 | 3 |")
    assert lines[3].startswith("| two | 90.0 | 0.0 | – | – | 30.0 | 90.0 | 7 | 0 | 1,235 |")


def test_no_number_is_cut_short_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = [result("one", seed, last, gradients_memory=1234567890.0, bytes_up=3.21e12)
             for seed, last in ((1, [0.7, 0.9]), (2, [0.1, 0.2]))]  # fmt: skip
    PatientConsole().print(as_text(seeds))
    text = capsys.readouterr().out
    assert "1,234,568" in text
    assert "3,210,000" in text
    assert "…" not in text


def test_csv_has_a_line_a_run_with_plain_numbers() -> None:
    lines = list(csv.DictReader(as_csv(RESULTS).splitlines()))
    assert [(line["method"], line["seed"]) for line in lines] == [("one", "1"), ("one", "2"), ("two", "1")]
    assert float(lines[1]["Acc %"]) == pytest.approx(90)
    assert float(lines[2]["mem. k"]) == pytest.approx(1234.567)


def test_latex_is_well_formed() -> None:
    text = as_latex(RESULTS)
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 3
    assert all(line.count("&") == len(columns(RESULTS)) for line in body)
    assert "%" not in text.replace(r"\%", "")
    assert "±" not in text


def test_a_folder_of_one_run_is_not_mixed_with_others(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(UserError, match="is the folder of one run"), held(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_rounds_budget_is_the_presets_own(tmp_path: Path) -> None:
    jobs = plan(RAW, ["cflag", "finetune"], [1, 2], "rounds", tmp_path)
    assert [(j.config.method, j.config.seed, j.config.rounds) for j in jobs] == [
        ("cflag", 1, 2), ("cflag", 2, 2), ("finetune", 1, 2), ("finetune", 2, 2),
    ]  # fmt: skip


def test_cost_of_a_round_by_hand() -> None:
    """Fine-tuning: E steps of `batch` samples for each of five clients (some batches are smaller)."""
    config = resolve(merge(RAW, [("method", "finetune"), ("steps", 3), ("batch", 8)]))
    assert price(config, "gradients").round == pytest.approx(5 * 3 * 8, rel=0.05)
    # bytes: the model down and the displacement up, 4 bytes a parameter; the number E down
    size = 4 * (64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10)
    assert price(config, "bytes").round == 5 * (2 * size + 8)


@pytest.mark.parametrize("budget", ["gradients", "bytes"])
def test_equal_budget_within_half_a_round(budget: Any, tmp_path: Path) -> None:
    raw = merge(RAW, [("rounds", 12)])
    jobs = plan(raw, ["cflag", "finetune", "replay"], [resolve(raw).seed], budget, tmp_path)
    spent = {j.config.method: price(j.config, budget).of(j.config.rounds) for j in jobs}
    assert jobs[0].config.rounds == 12
    for job in jobs:
        slack = price(job.config, budget).round / 2
        assert abs(spent[job.config.method] - spent["cflag"]) <= slack + 1
    assert len({job.config.rounds for job in jobs}) > 1


def test_a_round_that_gets_dearer_with_every_task_has_its_mean_price() -> None:
    """Joint training takes E, 2E, ..., 5E steps a round in five tasks: 3E on the mean."""
    config = resolve(merge(RAW, [("method", "joint"), ("tasks", 5), ("steps", 2), ("batch", 8)]))
    assert price(config, "gradients").round == pytest.approx(5 * 3 * 2 * 8, rel=0.05)


def test_what_a_task_costs_beside_its_rounds_is_part_of_the_budget() -> None:
    """EWC takes each client's Fisher once a task: `fisher_samples` gradients, and a vector up."""
    config = resolve(merge(RAW, [("method", "ewc"), ("steps", 3), ("batch", 8), ("ewc.fisher_samples", 4)]))
    assert price(config, "gradients").task == 5 * 4
    size = 4 * (64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10)
    # The model had changed, so it went down again; the next task's first round then finds it there, but for the last.
    assert price(config, "bytes").task == pytest.approx(5 * (size + size / config.tasks))
    assert Price(task=20, round=10).of(3) == 50
    assert Price(task=20, round=10).rounds_for(54) == 3
    assert Price(task=20, round=10).rounds_for(5) == 1


@pytest.mark.parametrize("method", ["finetune", "replay", "cflag", "ewc", "icarl", "joint"])
@pytest.mark.parametrize("budget", ["gradients", "bytes"])
def test_prices_are_what_a_run_really_costs(method: str, budget: Any, tmp_path: Path) -> None:
    config = resolve(merge(RAW, [("method", method), ("tasks", 3), ("rounds", 3), ("steps", 2), ("workers", 1)]))
    costs = Experiment(config).run(tmp_path / "run").costs
    kinds = ("bytes_up", "bytes_down") if budget == "bytes" else ("gradients_current", "gradients_memory")
    real = sum(costs[kind] for kind in kinds)
    assert 3 * price(config, budget).of(3) == pytest.approx(real, rel=0.001 if budget == "bytes" else 0.05)


def test_curves_cost_nothing(tmp_path: Path) -> None:
    """Testing more often changes no cost, also of a method that asks before it is tested."""
    raw = merge(RAW, [("method", "icarl"), ("workers", 1)])
    often, seldom = (
        Experiment(resolve(merge(raw, [("eval_every", every)]))).run(tmp_path / str(every)).costs for every in (1, 9)
    )
    assert often["bytes_up"] == seldom["bytes_up"]
    assert often["bytes_down"] == seldom["bytes_down"]


def test_budgets_share_the_runs_they_have_in_common(tmp_path: Path) -> None:
    raw = merge(RAW, [("rounds", 12)])
    rounds = {job.folder for job in plan(raw, ["cflag", "replay"], [1], "rounds", tmp_path)}
    gradients = {job.folder for job in plan(raw, ["cflag", "replay"], [1], "gradients", tmp_path)}
    assert {folder.name for folder in rounds & gradients} == {"cflag-12-1"}
    assert len(rounds | gradients) == 3


def test_compare_from_the_command_line_and_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [f"--set={k}={v}" for k, v in QUICK.items()]
    out = tmp_path / "out"
    done = plan(merge(RAW, [("eval_every", 1)]), ["cflag"], [1, 2], "rounds", out)
    prepare(done)
    for job in done:  # so that it need not start as many processes
        resume(job.folder)
    argv = ["compare", "digits", *flags, "--methods", "cflag,finetune", "--seeds", "1,2", "--out", str(out)]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "equal rounds" in text
    assert max(len(line) for line in text.split("/")[0].splitlines()) <= 80
    assert {p.name for p in out.iterdir() if p.is_file()} >= {"table-rounds.md", "table-rounds.csv", "table-rounds.tex"}

    stamps = {p: p.stat().st_mtime_ns for p in out.glob("*/result.json")}
    gone = out / "finetune-2-2" / "result.json"
    before = json.loads(gone.read_text())
    gone.unlink()
    monkeypatch.setattr("subprocess.Popen", start_here)
    assert main(argv) == 0  # only what is missing is done again
    for path, stamp in stamps.items():
        assert (path.stat().st_mtime_ns == stamp) == (path != gone)
    assert json.loads(gone.read_text())["accuracy_matrix"] == before["accuracy_matrix"]


def test_another_comparison_does_not_mix_in(tmp_path: Path) -> None:
    prepare(plan(RAW, ["finetune"], [1], "rounds", tmp_path))
    other = plan(merge(RAW, [("finetune.lr", 0.3)]), ["finetune"], [1], "rounds", tmp_path)
    with pytest.raises(UserError, match="holds a run with other settings"):
        prepare(other)


def test_a_failing_run_is_named(tmp_path: Path) -> None:
    jobs = plan(merge(RAW, [("finetune.lr", 1e15), ("optimizer", "momentum")]), ["finetune"], [7], "rounds", tmp_path)
    prepare(jobs)
    with pytest.raises(CflagError, match=r"finetune with seed 7 failed: client \d's .* is not finite"):
        run_all(jobs, 1, lambda _: None)
