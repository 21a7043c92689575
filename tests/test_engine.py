"""The engine: the same numbers from any number of processes, honest sums, and errors that name the culprit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from cflag import Answer, Ask, Experiment, run
from cflag.config import load_raw, merge, resolve
from cflag.conversation import nbytes
from cflag.engines.lanes import WorkerLane
from cflag.engines.local import RunningMean
from cflag.errors import CflagError, DivergedError
from cflag.experiment import flatten
from tests.quadratic import Lab, Row

ROWS: list[list[Row]] = [[(1, 0, 0, 1), (0, 1, 0, 2)], [(0, 0, 1, 3)], [(1, 1, 0, 1)]]

QUICK: dict[str, Any] = {"tasks": 2, "rounds": 2, "batch": 64, "width": 8}


def without_times(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "cflag", "cflag": {"estimator": "iag", "rules": "both", "drift": 1.0}},
        {"method": "cflag", "optimizer": "adam", "cflag": {"alpha": 0.001, "beta": 0.001}},
        {"method": "finetune", "zeta": 0.5, "clients": 7},
        {"method": "cflag", "model": "cnn", "norm": "batch", "width": 4, "memory": {"kind": "reservoir"}},
    ],
    ids=["iag", "adam", "finetune", "batch-norm"],
)
def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path, settings: dict[str, Any]) -> None:
    for workers in (1, 2, 3):
        run("digits", out=tmp_path / str(workers), **{**QUICK, **settings, "workers": workers})
    alone, *others = (tmp_path / name for name in ("1", "2", "3"))
    for other in others:
        assert without_times(alone) == without_times(other)
        assert (alone / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_same_seed_same_numbers_other_seed_other_numbers(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run("digits", out=tmp_path / name, **QUICK, seed=seed)
    assert without_times(tmp_path / "a") == without_times(tmp_path / "b")
    assert without_times(tmp_path / "a") != without_times(tmp_path / "c")


def test_a_run_leaves_torch_as_it_found_it(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run("digits", out=tmp_path / "run", **QUICK, workers=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == 2


def test_weighted_mean_by_hand() -> None:
    mean = RunningMean()
    mean.add({"v": torch.tensor([1.0, 2.0]), "n": 3.0}, 0.25, 0)
    mean.add({"v": torch.tensor([5.0, 6.0]), "n": 7.0}, 0.75, 1)
    result = mean.result()
    assert result.v.tolist() == [4.0, 5.0]
    assert result.n == 6.0
    with pytest.raises(AttributeError, match="hold no 'w'; they hold"):
        _ = result.w


def test_answers_that_do_not_match_are_refused() -> None:
    mean = RunningMean()
    mean.add({"v": torch.zeros(2)}, 0.5, 0)
    with pytest.raises(CflagError, match=r"client 3 answered .* where client 0 answered"):
        mean.add({"v": torch.zeros(3)}, 0.5, 3)


def test_sizes_of_what_travels() -> None:
    assert nbytes({"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.float64), "c": 1.5}) == 12 + 16 + 8


@pytest.mark.parametrize("workers", [1, 2])
def test_divergence_names_task_round_and_client(workers: int) -> None:
    rows: list[list[Row]] = [*ROWS[:2], [(float("inf"), 0.0, 0.0, 1.0)]]
    lab = Lab(ROWS, rows, (0.1, 0.1, 0.1), workers=workers)
    lab.server.round = 3
    with pytest.raises(DivergedError, match=r"client 2's .* not finite in task 2, round 4 \(question 'local_steps'\)"):
        lab.round()
    lab.engine.close()


def test_divergence_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"task \d, round \d.*smaller learning rate.*checkpoint is kept"):
        run("digits", out=out, **QUICK, optimizer="momentum", method="finetune", finetune={"lr": 1e15})
    done = len((out / "metrics.jsonl").read_text().splitlines()) if (out / "metrics.jsonl").exists() else 0
    assert (out / "checkpoint" / "server.safetensors").exists() == (done > 0)


def test_a_killed_worker_is_reported() -> None:
    lab = Lab(ROWS, ROWS, (0, 0, 0), workers=2)
    lane = lab.engine.lanes[1]
    assert isinstance(lane, WorkerLane)
    assert lane.process.pid is not None
    os.kill(lane.process.pid, signal.SIGKILL)
    with pytest.raises(CflagError, match=r"worker process 1 ended unexpectedly .killed by signal 9"):
        lab.round()
    lab.engine.close()


def test_a_defect_in_a_worker_shows_where() -> None:
    lab = Lab(ROWS, ROWS, (0, 0, 0), workers=2)
    with pytest.raises(RuntimeError, match="has no attribute 'no_such_question'"):
        lab.engine.ask(_ask("no_such_question"), lab.server)
    lab.engine.close()


def _ask(name: str) -> Ask:
    def question() -> Answer:
        return {}

    question.__name__ = name
    return Ask(question)


def test_batch_norm_statistics_are_averaged_and_kept_out_of_the_parameters(tmp_path: Path) -> None:
    """The global statistics are the clients' weighted mean, not one client's and not the initial ones."""
    config = resolve(merge(load_raw("digits"), flatten({**QUICK, "model": "cnn", "norm": "batch", "width": 4})))
    experiment = Experiment(config)
    learner = experiment.learner
    trained = sum(p.numel() for p in learner.model.parameters())
    statistics = sum(b.numel() for b in learner.model.buffers() if b.is_floating_point())
    assert learner.params.numel() == trained
    assert learner.buffers.numel() == statistics == 2 * (4 + 8 + 8)
    before = learner.buffers.clone()
    experiment.run(tmp_path / "run")
    assert not torch.equal(learner.buffers, before)
    assert torch.isfinite(learner.buffers).all()


def test_evaluation_is_on_each_clients_own_held_out_samples(tmp_path: Path) -> None:
    result = run("digits", out=tmp_path / "run", **QUICK, zeta=0.2, min_samples=2)
    counts = [len(m) for m in result.client_matrices]
    assert counts == [2] * 5
    experiment = Experiment(resolve(result.config))
    for task in range(2):
        sizes = [len(experiment.benchmark.test(c, task)) for c in range(5)]
        values = [m[-1][task] for m in result.client_matrices]
        assert [v is None for v in values] == [n == 0 for n in sizes]
        together = sum((v or 0) * n for v, n in zip(values, sizes, strict=True)) / sum(sizes)
        assert together == pytest.approx(result.accuracy_matrix[-1][task])


def test_an_experiment_can_be_run_twice(tmp_path: Path) -> None:
    experiment = Experiment(resolve(merge(load_raw("digits"), flatten({**QUICK, "workers": 1}))))
    first, second = (experiment.run(tmp_path / name) for name in ("a", "b"))
    assert first.accuracy_matrix == second.accuracy_matrix
    assert without_times(tmp_path / "a") == without_times(tmp_path / "b")
