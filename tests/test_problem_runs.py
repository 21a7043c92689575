"""Runs of other problems than classes: all methods, all engines, after a crash, by hand and from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from cflag import Result, Source, registry, resume, run
from cflag.cli import main
from cflag.config import load_raw, merge, resolve
from cflag.data.benchmark import Benchmark
from cflag.data.load import load_source
from cflag.errors import DivergedError, UserError
from cflag.loggers.base import scalars, summary
from cflag.problems.regression import MAE
from cflag.problems.sequence import PADDING
from cflag.results.table import heads
from tests.support.crashes import Crash, stop_after
from tests.support.grid import Fleet, local, numbers
from tests.support.quick import same

pytestmark = pytest.mark.usefixtures("no_figures")

SHORT: dict[str, Any] = {"tasks": 2, "rounds": 2, "clients": 2, "batch": 8, "epochs": 1, "workers": 1,
                         "scenario": "domain", "memory": {"per_task": 8, "sample": 4}}  # fmt: skip
DIABETES: dict[str, Any] = {"source": "diabetes", "problem": "regression", "scenario": "domain", "batch": 16}
FOR_ALL = ("cflag", "cflag-sgd", "cflag-server", "cflag-shared", "cflag-balanced", "finetune", "replay", "ewc", "nccl",
           "fedtrack", "agem", "derpp", "joint")  # fmt: skip
FOR_CLASSES = ("icarl", "target", "lwf", "er-ace", "ncm", "slda")


class Steps(nn.Module):
    """A class for every step, from what is there at that step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x)
        return scores


def made(problem: str) -> tuple[Source, nn.Module | str]:
    """Forty samples of two tasks, and a model for them."""
    torch.manual_seed(5)
    task = torch.arange(40) % 2
    if problem == "sequence":
        x = torch.randn(40, 6, 3)
        y = x.argmax(2)
        y[:, 4:][torch.arange(40) % 3 == 0] = PADDING
        y[0, 0] = 3
    else:
        x = torch.randn(40, 3)
        z = x @ torch.randn(3, 2)
        y = z if problem == "regression" else (z > 0).long()
    halves = ((x[:24], y[:24]), (x[24:], y[24:]))
    source = Source.from_tensors(*halves, tasks=(task[:24], task[24:]), problem=problem)
    return source, Steps() if problem == "sequence" else "mlp"


@pytest.mark.parametrize("problem", ["regression", "multilabel", "sequence"])
@pytest.mark.parametrize("method", FOR_ALL)
def test_methods_that_need_no_classes_learn_all_problems(method: str, problem: str, tmp_path: Path) -> None:
    source, model = made(problem)
    result = run(source=source, model=model, method=method, out=tmp_path / "run", **SHORT)
    assert result.config["problem"] == problem
    losses = [record["loss"] for record in result.metrics]
    assert np.isfinite(losses).all()
    assert losses[1] < losses[0]  # of the first task, round after round
    assert all(len(row) == 2 and None not in row for row in result.score_matrix)


def test_every_method_is_for_all_problems_or_says_which() -> None:
    known = {name: registry.get("method", name).problems for name in registry.names("method")}
    for name in FOR_ALL:
        assert known[name] == ()
    for name in FOR_CLASSES:
        assert known[name] == ("classes",)
    assert known["ridge"] == ("classes", "regression")


# By hand --------------------------------------------------------------------------------------------------------------


def slope(x: Any, y: Any, w: Any) -> Any:
    """The gradient of the mean squared error of a linear model (w, b)."""
    ones = np.concatenate([x, np.ones((len(x), 1))], 1)
    return 2 * ones.T @ (ones @ w - y) / len(x)


def test_a_cflag_round_of_a_linear_regression_is_algorithm_1_on_paper(tmp_path: Path) -> None:
    """Two uneven clients, two tasks, E = 2, one component each, drift correction, plain rates: in numpy."""
    rng = np.random.default_rng(3)
    owner, task = np.array([0] * 3 + [1] * 5 + [0] * 4 + [1] * 2), np.array([0] * 8 + [1] * 6)
    x = rng.normal(size=(14, 2))
    y = x @ [1.0, -2.0] + 0.5 + task + 0.1 * rng.normal(size=14)

    alpha, beta, w, seen = 0.05, 0.1, np.zeros(3), []
    for t in range(2):
        mine = [np.flatnonzero((owner == i) & (task == t)) for i in range(2)]
        p = [len(part) / sum(map(len, mine)) for part in mine]
        g_i = [slope(x[part], y[part], w) for part in mine]
        g = sum(share * own for share, own in zip(p, g_i, strict=True))
        moved = np.zeros(3)
        for i in range(2):
            local, a = w.copy(), np.zeros(3)
            for _ in range(2):
                v = slope(x[mine[i]], y[mine[i]], local)
                local -= beta * (g - g_i[i] + v)
                a += v
            moved += p[i] * beta * (2 * (g - g_i[i]) + a)
        if t:
            past = [np.flatnonzero((owner == i) & (task == 0)) for i in range(2)]
            moved += alpha * sum(share * slope(x[part], y[part], w) for share, part in zip(p, past, strict=True))
        w = w - moved
        seen.append(w)

    everything = (torch.tensor(x), torch.tensor(y))
    tasks, people = torch.tensor(task), torch.tensor(owner)
    source = Source.from_tensors(everything, everything, tasks=(tasks, tasks), problem="regression")
    for half in (source.train, source.test):
        object.__setattr__(half, "subject", people)
    model = nn.Linear(2, 1).double()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    own = {"alpha": alpha, "beta": beta, "adapt": "off", "estimator": "iag", "drift": 1.0, "order": "cyclic"}
    result = run(source=source, model=model, scenario="domain", tasks=2, clients=2, partition="subject", rounds=1,
                 batch=100, steps=2, workers=1, cflag=own, memory={"per_task": 100, "sample": 100},
                 out=tmp_path / "run")  # fmt: skip
    for t in range(2):  # the test after task t + 1, of task 1, from the weights on paper
        error = np.concatenate([x, np.ones((14, 1))], 1)[task == 0] @ seen[t] - y[task == 0]
        spread = ((y[task == 0] - y[task == 0].mean()) ** 2).sum()
        assert result.score_matrix[t][0] == pytest.approx(1 - (error**2).sum() / spread, rel=1e-6)
        assert result.beside[0].matrix[t][0] == pytest.approx(np.abs(error).mean(), rel=1e-6)


def test_ridge_is_least_squares_on_all_samples_after_every_task(tmp_path: Path) -> None:
    source, _ = made("regression")
    result = run(
        source=source, method="ridge", model="linear", ridge={"strength": 1e-12}, out=tmp_path / "run", **SHORT
    )
    x = torch.cat([torch.ones(24, 1), source.train.x], 1).double().numpy()
    w = np.linalg.lstsq(x, source.train.y.double().numpy(), rcond=None)[0]
    for task in range(2):
        held_out = (source.test.task == task).numpy()  # type: ignore[union-attr]
        answers = torch.cat([torch.ones(16, 1), source.test.x], 1).double().numpy()[held_out] @ w
        y = source.test.y.double().numpy()[held_out]
        r2 = (1 - ((answers - y) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)).mean()
        assert result.score_matrix[-1][task] == pytest.approx(r2, abs=1e-4)


@pytest.mark.parametrize("method", ["cflag", "derpp", "ridge"])
def test_scaled_labels_are_those_that_were_scaled_by_hand(method: str, tmp_path: Path) -> None:
    """The same weights to the last bit, the same R²; MAE and answers are in the labels' own unit.

    Mean and deviation are powers of two, so that scaling by hand rounds nothing.
    """
    source, _ = made("regression")
    small = ((source.train.y, source.test.y), (source.train.x, source.test.x))
    y = [(half * 16).round() / 16 for half in small[0]]
    known: dict[str, Any] = {"tasks": (source.train.task, source.test.task), "problem": "regression"}
    mean, std = (2.0**19, -(2.0**9)), (2.0**17, 2.0**3)
    prices = [half * torch.tensor(std) + torch.tensor(mean) for half in y]
    by_hand = Source.from_tensors((small[1][0], y[0]), (small[1][1], y[1]), **known)
    scaled = Source.from_tensors((small[1][0], prices[0]), (small[1][1], prices[1]), label_scale=(mean, std), **known)
    results = [run(source=s, method=method, model="linear", out=tmp_path / s.name, **SHORT)
               for s in (replace(by_hand, name="hand"), replace(scaled, name="own"))]  # fmt: skip
    hand, own = results
    states = [load_file(tmp_path / name / "model.safetensors") for name in ("hand", "own")]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    for t in range(2):
        assert own.score_matrix[t] == pytest.approx(hand.score_matrix[t], rel=1e-9)
    expected = hand.model().predict(small[1][1]).double() * torch.tensor(std) + torch.tensor(mean)
    answers = own.model().predict(small[1][1])
    torch.testing.assert_close(answers.double(), expected, rtol=1e-6, atol=0)
    last = source.test.task == 1
    mae = (expected[last] - prices[1][last].double()).abs().mean()
    assert own.beside[0].matrix[-1][1] == pytest.approx(float(mae), rel=1e-6)


def test_house_prices_are_learned(tmp_path: Path) -> None:
    """Labels from 100,000 to 900,000 with the default rates: as they are, training diverges."""
    torch.manual_seed(2)
    x = torch.randn(80, 3)
    y = 500_000 + 200_000 * (x @ torch.tensor([0.5, 0.3, 0.2]))
    halves = (x[:60], y[:60]), (x[60:], y[60:])
    quick = {**SHORT, "scenario": "permuted", "tasks": 1, "rounds": 30, "model": "mlp"}
    scaled, plain = (Source.from_tensors(*halves, problem="regression", label_scale=s) for s in ("train", "own"))
    assert (run(source=scaled, out=tmp_path / "scaled", **quick).average_score or 0) > 0.9
    with pytest.raises(DivergedError):
        run(source=plain, out=tmp_path / "plain", **quick)


def test_tasks_may_have_labels_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(1)
    y = torch.randint(0, 2, (60, 4))
    source = Source.from_tensors((torch.randn(60, 3), y), (torch.randn(60, 3), y), problem="multilabel")
    short = {**SHORT, "class_order": "natural", "partition": "iid"}
    result = run(source=source, out=tmp_path / "run", **{**short, "scenario": "task"})
    assert result.by_task
    config = resolve({**{k: v for k, v in short.items() if k != "memory"}, "scenario": "task", "problem": "multilabel",
                      "source": "custom"})  # fmt: skip
    benchmark = Benchmark(source, config)
    assert sum(benchmark.sizes(0).values()) == int((y[:, :2].sum(1) > 0).sum())  # those with a label of the task
    assert sum(benchmark.sizes(1).values()) == int((y[:, 2:].sum(1) > 0).sum())


# Engines, crashes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["cflag", "replay", "ewc", "cflag-shared"])
def test_a_fleet_gives_the_numbers_of_the_local_engine(method: str, tmp_path: Path) -> None:
    own = {**DIABETES, "method": method, "score": "mae", "memory": {"per_task": 8, "sample": 4}}
    Fleet(tmp_path, **own).run()
    local(tmp_path, **own)
    assert numbers(tmp_path / "run") == numbers(tmp_path / "local")


def test_prices_in_folders_of_three_clients_are_learned_as_on_one_machine(tmp_path: Path) -> None:
    """Large labels, scaled by what the file says: the fleet's server sees none of them, and has the same numbers."""
    generator = np.random.default_rng(1)
    for client in range(3):
        (tmp_path / f"client-{client}").mkdir()
        x = generator.normal(size=(30, 2)).round(3)
        price = (500_000 + 150_000 * x @ [1.0, 0.5]).round()
        lines = [f"{a},{b},{'AB'[k % 2]},{y}" for k, ((a, b), y) in enumerate(zip(x, price, strict=True))]
        (tmp_path / f"client-{client}" / "t.csv").write_text("\n".join(["rooms,area,task,label", *lines]))
    own: dict[str, Any] = {"source": "table:t.csv", "partition": "own", "problem": "regression", "score": "mae",
                           "scenario": "domain",
                           "data": {"tasks": ["A", "B"], "label_mean": [5e5], "label_std": [1.5e5]}}  # fmt: skip
    fleet = Fleet(tmp_path, **own)
    for node in fleet.nodes:
        node.context.node_config["data-dir"] = str(tmp_path / f"client-{node.number}")
    fleet.run()
    local(tmp_path, data_dir=str(tmp_path), **own)
    assert numbers(tmp_path / "run") == numbers(tmp_path / "local")
    about = [json.loads((tmp_path / name / "model.json").read_text()) for name in ("run", "local")]
    assert about[0]["spec"] == about[1]["spec"]
    assert about[0]["spec"]["columns"] == ["rooms", "area"]
    mae = Result.load(tmp_path / "run").average_score
    assert mae is not None
    assert 1_000 < mae < 300_000  # in the labels' own unit


def test_killed_and_resumed_it_is_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, model = made("sequence")
    assert isinstance(model, nn.Module)
    run(source=source, model=model, out=tmp_path / "whole", **SHORT)
    stop_after(3, monkeypatch)
    with pytest.raises(Crash):
        run(source=source, model=model, out=tmp_path / "broken", **SHORT)
    monkeypatch.undo()
    resume(tmp_path / "broken", source=source, model=model)
    same(tmp_path / "broken", tmp_path / "whole")


def test_numbers_do_not_depend_on_workers(tmp_path: Path) -> None:
    own = {**{k: v for k, v in SHORT.items() if k != "workers"}, **DIABETES}
    for workers in (1, 2):
        run("diabetes", out=tmp_path / str(workers), workers=workers, **own)
    same(tmp_path / "1", tmp_path / "2")


# From the command line ------------------------------------------------------------------------------------------------


def test_the_demo_says_r2_everywhere_and_accuracy_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--set=rounds=2", "--set=workers=1", "--methods=cflag,finetune"]
    assert main(["run", "diabetes", *quick, f"--out={tmp_path}/r"]) == 0
    shown = capsys.readouterr().out
    assert "R² so far" in shown
    assert "cflag: R² on each task" in shown
    assert "MAE" in shown
    assert "Acc" not in shown
    assert main(["report", f"{tmp_path}/r", f"--out={tmp_path}/page.html"]) == 0
    page = (tmp_path / "page.html").read_text()
    visible = page.partition("<details><summary>cflag</summary><pre>")[0]  # without the config
    assert "R² after each task" in visible
    assert "best R²" in visible
    assert "ccuracy" not in visible.partition("<main>")[2]
    raw = json.loads((next((tmp_path / "r").glob("*cflag*")) / "result.json").read_text())
    assert (raw["score"]["name"], raw["score"]["higher"], raw["beside"][0]["score"]["name"]) == ("r2", True, "mae")
    assert raw["average_score"] == pytest.approx(np.mean(raw["accuracy_matrix"][-1]))


def test_the_score_that_counts_can_be_chosen(tmp_path: Path) -> None:
    one, other = (run("diabetes", rounds=1, workers=1, score=s, out=tmp_path / (s or "r2")) for s in ("", "mae"))
    assert other.score_matrix == one.beside[0].matrix
    assert one.score_matrix == other.beside[0].matrix
    a = other.score_matrix
    assert other.forgetting == pytest.approx(np.mean([a[2][0] - a[0][0], a[2][1] - a[1][1]]))
    assert heads([other])[1:3] == ["MAE", "Forget"]
    assert heads([one, other])[1] == "score"
    assert (tmp_path / "mae" / "model.safetensors").read_bytes() == (tmp_path / "r2" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "icarl"}, "method 'icarl' is for problem = 'classes', not for 'regression'"),
        ({"method": "ncm"}, "method 'ncm' is for problem = 'classes'"),
        ({"problem": "regresion"}, "regression"),
        ({"score": "f1"}, "score = 'f1': problem 'regression' has r2, mae"),
        ({"scenario": "task"}, "scenario 'task' gives tasks classes of their own"),
        ({"problem": "classes"}, "diabetes has labels for problem = 'regression', not for 'classes'"),
        ({"schedule.heads": "own"}, "schedule.heads = 'own' opens outputs by class"),
        ({"schedule": "own-classes"}, "schedule 'own-classes' deals by class"),
        ({"method": "ewc", "ewc.labels": "sampled"}, "ewc.labels = 'sampled' draws classes"),
        ({"secure": True, "engine": "flower-sim"}, "secure = true sums right answers"),
        ({"method": "finetune", "privacy.unit": "client", "privacy.held_out": "noised"}, "privacy.held_out = 'public'"),
    ],
)
def test_what_does_not_go_with_a_regression_is_refused_in_one_line(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=why) as caught:
        run_with(changes)
    assert "\n" not in str(caught.value)


def run_with(changes: dict[str, Any]) -> None:
    config = resolve(merge(load_raw("diabetes"), list(changes.items())))
    Benchmark(load_source(config.source), config)


def test_loggers_use_the_scores_own_name(tmp_path: Path) -> None:
    record = {"accuracy": 0.5, "accuracies": [0.4, 0.6], "loss": 1.0, "clients": {}}
    assert scalars(record, (), MAE) == {"loss/current": 1.0, "mae/mean": 0.5, "mae/task_01": 0.4, "mae/task_02": 0.6}
    result = run("diabetes", rounds=1, workers=1, out=tmp_path / "run")
    named = summary(json.loads((tmp_path / "run" / "result.json").read_text()))
    assert named["result/average_r2"] == result.average_score
    assert not [name for name in named if "accuracy" in name]
