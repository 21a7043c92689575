"""The engine: the same numbers from any number of processes, honest sums, and errors that name the culprit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from cflag import Answer, Ask, Client, Experiment, Result, Source, process, register, resume, run
from cflag.build import build_model
from cflag.cli import main
from cflag.config import flatten, load_config, load_raw, merge, resolve
from cflag.conversation import loggable, nbytes
from cflag.data.samples import Samples
from cflag.data.source import Split
from cflag.engines.lanes import HereLane, WorkerLane
from cflag.engines.local import LocalEngine
from cflag.errors import CflagError, DivergedError, UserError
from cflag.files import load_state
from cflag.means.mean import RunningMean
from cflag.methods.finetune import Finetune
from cflag.results.history import History
from cflag.server import Server
from tests.support.crashes import newest_checkpoint
from tests.support.quadratic import Lab, Row, lose_scratch
from tests.support.quick import QUICK, same_with_any_workers, without_times

pytestmark = pytest.mark.usefixtures("no_figures")

ROWS: list[list[Row]] = [[(1, 0, 0, 1), (0, 1, 0, 2)], [(0, 0, 1, 3)], [(1, 1, 0, 1)]]


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "cflag", "cflag": {"estimator": "iag", "rules": "both", "drift": 1.0}},
        {"method": "cflag", "optimizer": "adam", "cflag": {"alpha": 0.001, "beta": 0.001}},
        {"method": "finetune", "zeta": 0.5, "clients": 7},
        {"method": "cflag", "model": "cnn", "norm": "batch", "width": 4, "memory": {"kind": "reservoir"}},
        {"method": "cflag", "cflag": {"estimator": "iag", "smoothness": "auto"}},
    ],
    ids=["iag", "adam", "finetune", "batch-norm", "auto"],
)
def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path, settings: dict[str, Any]) -> None:
    same_with_any_workers(tmp_path, **settings)


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
    rows: list[list[Row]] = [*ROWS[:2], [(1e200, 0.0, 0.0, 1.0)]]
    lab = Lab(ROWS, rows, (0.1, 0.1, 0.1), workers=workers)
    lab.server.round = 3
    with pytest.raises(DivergedError, match=r"client 2's g is not finite in task 2, round 4 \(question 'gradients'\)"):
        lab.round()
    lab.engine.close()


def test_divergence_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third round diverges: two lines of metrics and a checkpoint of two rounds stay, and can be resumed."""
    out, direction = tmp_path / "run", Finetune.direction

    def diverging(self: Finetune, client: Client, batch: Samples, **sent: Any) -> torch.Tensor:
        factor = float("nan") if (client.task, client.context.round) == (1, 0) and client.number == 2 else 1.0
        return factor * direction(self, client, batch, **sent)

    with monkeypatch.context() as patch:
        patch.setattr(Finetune, "direction", diverging)
        with pytest.raises(DivergedError, match=r"client 2's delta .* task 2, round 1 .*learning rate; the last good"):
            run("digits", out=out, **QUICK, method="finetune", stack=1)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2
    assert load_state(newest_checkpoint(out))["done"] == 2
    run("digits", out=tmp_path / "other", **QUICK, method="finetune", stack=1)
    resume(out)
    assert without_times(out) == without_times(tmp_path / "other")


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
    lane = lab.engine.lanes[1]
    lane.send("no_such_command")
    with pytest.raises(RuntimeError, match=r"in a worker process:\nTraceback[^$]*has no attribute 'no_such_command'"):
        lane.receive()
    lab.engine.close()


def test_two_at_work_are_this_process_and_one_more() -> None:
    """A process that only waits costs small rounds its wake-ups, and large ones memory."""
    lab = Lab(ROWS, ROWS, (0, 0, 0), workers=2)
    here, there = lab.engine.lanes
    lab.round()
    assert isinstance(here, HereLane)
    assert isinstance(there, WorkerLane)
    assert 0 < len(here.host.clients) < len(ROWS)  # the others live over there
    assert lab.engine.peak_mb() > process.peak_mb()
    lab.engine.close()


@pytest.mark.skipif(len(process.allowed_cores()) < 2, reason="one core, or a system that does not say which")
@pytest.mark.parametrize("workers", [2, 3 * process.cores()])
def test_workers_keep_off_the_core_that_asks_them_where_there_are_enough(workers: int) -> None:
    rows = ROWS * process.cores()
    lab = Lab(rows, rows, (0, 0, 0), workers=workers)
    lab.round()
    allowed = process.allowed_cores()
    for lane in lab.engine.lanes[1:]:
        assert isinstance(lane, WorkerLane)
        assert lane.process.pid
        left = allowed - os.sched_getaffinity(lane.process.pid)
        assert len(left) == (1 if workers == 2 else 0)
    assert process.allowed_cores() == allowed
    lab.engine.close()


def _ask(name: str) -> Ask:
    def question() -> Answer:
        return {}

    question.__name__ = name
    return Ask(question)


def test_batch_norm_statistics_are_the_clients_weighted_mean() -> None:
    """After one full-batch step each: 0.9 · (0, 1) + 0.1 · (mean, variance) of each client's data, weighted by p_i."""
    torch.manual_seed(0)
    sizes, x = (30, 10), torch.randn(40, 3) + torch.arange(40)[:, None] / 10
    split = Split(x, torch.arange(40) % 2, torch.repeat_interleave(torch.arange(2), torch.tensor(sizes)))
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    config = resolve({"source": "custom", "model": "custom", "method": "finetune", "tasks": 1, "clients": 2,
                      "partition": "subject", "batch": 64, "steps": 1, "workers": 1})  # fmt: skip
    experiment = Experiment(config, Source("two", split, split, 2), model)
    engine, server = LocalEngine(experiment.host(), 1), experiment.server()
    assert experiment.learner.params.numel() == 3 + 3 + 3 * 2 + 2  # no statistics among the parameters
    server.sizes = experiment.benchmark.sizes(0)
    engine.converse(experiment.method.round(server), server)
    parts = x.split(list(sizes))
    means = sum(p * part.mean(0) for p, part in zip((0.75, 0.25), parts, strict=True))
    variances = sum(p * part.var(0) for p, part in zip((0.75, 0.25), parts, strict=True))
    expected = torch.cat([0.1 * means, 0.9 + 0.1 * variances])
    torch.testing.assert_close(server.buffers, expected)


def test_batch_norm_learns_statistics_even_in_a_single_delayed_step(tmp_path: Path) -> None:
    settings = {**QUICK, "model": "cnn", "norm": "batch", "width": 4, "steps": 1}
    result = run("digits", out=tmp_path / "run", **settings, cflag={"estimator": "iag"})
    assert result.folder is not None
    model = load_file(result.folder / "model.safetensors")
    assert not torch.allclose(model["1.running_mean"], torch.zeros(4))


@pytest.mark.parametrize("estimator", ["iag", "minibatch"])
def test_lost_scratch_changes_nothing_with_dropout_and_batch_norm(estimator: str) -> None:
    ends = []
    for lost in (False, True):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8),
                                    torch.nn.Dropout(0.5), torch.nn.Linear(8, 10))  # fmt: skip
        own = {"estimator": estimator, "drift": 1.0}
        raw = merge(load_raw("digits"), flatten({**QUICK, "model": "custom", "workers": 1, "cflag": own}))
        experiment = Experiment(resolve(raw), model=model)
        host, server = experiment.host(), experiment.server()
        if lost:
            lose_scratch(host)
        engine = LocalEngine(host, 1)
        server.sizes = experiment.benchmark.sizes(0)
        for server.round in range(3):
            engine.converse(experiment.method.round(server), server)
        ends.append(torch.cat([server.params, server.buffers]))
    assert torch.equal(*ends)


def test_class_incremental_heads_open_as_tasks_come(tmp_path: Path) -> None:
    """Fine-tuning then answers only with the newest classes; replay learns to tell old from new."""
    settings = {**QUICK, "scenario": "class", "rounds": 6, "batch": 16, "width": 32, "eval_every": 6}
    forgets = run("digits", method="finetune", out=tmp_path / "a", **settings, finetune={"lr": 0.1})
    keeps = run("digits", method="replay", out=tmp_path / "b", **settings, replay={"lr": 0.1})
    assert forgets.accuracy_matrix[0][0] > 0.8
    assert forgets.accuracy_matrix[1][0] < 0.1
    assert forgets.accuracy_matrix[1][1] > 0.8
    assert keeps.accuracy_matrix[1][0] > 0.6


def test_one_run_gives_both_accuracies(tmp_path: Path) -> None:
    """From the saved model and the test images alone: knowing the task never hurts, and one task is both."""
    settings = {**QUICK, "scenario": "class", "rounds": 4, "batch": 16, "width": 32}
    result = run("digits", method="replay", out=tmp_path / "run", **settings, replay={"lr": 0.1})
    experiment = Experiment(resolve(result.config))
    model, source = build_model(experiment.config, experiment.spec), experiment.benchmark.source
    model.load_state_dict(load_state(tmp_path / "run" / "model.safetensors"))
    for task, classes in enumerate(t.classes for t in experiment.benchmark.tasks):
        mine = torch.isin(source.test.y, torch.tensor(classes))
        logits, y = model(experiment.benchmark.normalise(source.test.x[mine])), source.test.y[mine]
        unknown = (logits.argmax(1) == y).float().mean().item()
        known = (torch.tensor(classes)[logits[:, list(classes)].argmax(1)] == y).float().mean().item()
        assert result.matrices["class"][-1][task] == pytest.approx(unknown, abs=1e-6)
        assert result.matrices["task"][-1][task] == pytest.approx(known, abs=1e-6)
        assert known > unknown
    assert result.matrices["class"][0][0] == result.matrices["task"][0][0]
    assert result.accuracy_matrix == result.matrices["class"]
    assert result.other_matrix == result.matrices["task"]


def test_initial_accuracy_is_the_initial_models(tmp_path: Path) -> None:
    config = resolve(merge(load_raw("digits"), flatten(QUICK)))
    experiment = Experiment(config)
    model, source = build_model(config, experiment.spec), experiment.benchmark.source
    result = experiment.run(tmp_path / "run")
    for task, classes in enumerate(t.classes for t in experiment.benchmark.tasks):
        mine = torch.isin(source.test.y, torch.tensor(classes))
        logits = model(experiment.benchmark.normalise(source.test.x[mine]))[:, list(classes)]
        right = torch.tensor(classes)[logits.argmax(1)] == source.test.y[mine]
        assert result.initial_accuracy[task] == pytest.approx(right.float().mean().item(), abs=1e-6)


def test_caps_are_counted(tmp_path: Path) -> None:
    own = {"alpha": 0.1, "alpha_cap": 0.1001, "beta_cap": 1e-6, "rules": "both"}  # one of them always acts
    result = run("digits", out=tmp_path / "run", **QUICK, cflag=own)
    acted = sum(sum(line["clients"].get("capped", [])) for line in result.metrics)
    assert result.diagnostics == {"capped": acted}
    assert acted > 0


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


# Cohorts --------------------------------------------------------------------------------------------------------------


class Counting(Finetune):
    """Fine-tuning whose clients count their rounds: state that changes with every question."""

    def local_steps(self, client: Client, steps: int, **sent: Any) -> Answer:
        client.state["rounds"] = client.state.get("rounds", 0) + 1
        client.log(rounds=float(client.state["rounds"]))
        return super().local_steps(client, steps, **sent)


@pytest.mark.parametrize("method", ["cflag", "icarl", "counting"])
def test_a_cohort_gives_the_same_bytes_from_any_number_of_workers(method: str, tmp_path: Path) -> None:
    """Clients move from worker to worker with their memory, as their place in the cohort changes."""
    if method == "counting":
        register("method", "counting")(Counting)
    lines = same_with_any_workers(tmp_path, rounds=4, clients=9, clients_per_round=4, method=method)
    assert all(len(line["cohort"]) == 4 == len(line["clients"]["loss"]) for line in lines)
    assert len({tuple(line["cohort"]) for line in lines}) > 4
    if method == "counting":  # whoever serves a client knows how often it was asked before
        seen: dict[int, int] = dict.fromkeys(range(9), 0)
        for line in lines:
            for client, rounds in zip(line["cohort"], line["clients"]["rounds"], strict=True):
                seen[client] += 1
                assert rounds == seen[client]


@pytest.mark.parametrize("smoothness", [5.0, "auto"])
def test_a_stopped_run_goes_on_with_the_same_cohorts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smoothness: float | str
) -> None:
    method = {"estimator": "iag", "smoothness": smoothness}  # what is learned of L must survive, too
    settings = {**QUICK, "rounds": 3, "clients": 6, "clients_per_round": 0.5, "cflag": method}
    run("digits", out=tmp_path / "whole", **settings)
    record = History.record

    def dying(self: History, server: Server, *args: Any) -> dict[str, Any]:
        if (server.task, server.round) == (1, 1):
            raise KeyboardInterrupt
        return record(self, server, *args)

    monkeypatch.setattr(History, "record", dying)
    with pytest.raises(KeyboardInterrupt):
        run("digits", out=tmp_path / "parts", **settings)
    monkeypatch.undo()
    resume(tmp_path / "parts")
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "parts")


def test_a_cohort_is_asked_and_weighed_by_itself() -> None:
    """Sizes 2, 1 and 1; of clients 0 and 2 the weights are 2/3 and 1/3, and the model travels to these two alone."""
    lab = Lab(ROWS, ROWS, (0, 0, 0), method="finetune", steps=1, batch=9, finetune={"lr": 0.1})
    lab.engine.converse(lab.method.round(lab.server), lab.server, [0, 2])
    # Gradients at 0: client 0 ½ [(-1,0,0) + (0,-2,0)], client 2 (-1,-1,0)
    expected = [0.1 * (2 / 3 * 0.5 + 1 / 3), 0.1 * (2 / 3 + 1 / 3), 0.0]
    assert lab.server.params.tolist() == pytest.approx(expected)
    account = lab.engine.settle()
    assert account.participants() == [0, 2]
    assert account.bytes_down == 2 * (3 * 8 + 8)  # three doubles of x, and E
    assert account.cost.current == 3


def test_the_model_is_sent_again_only_to_those_who_lack_it() -> None:
    lab = Lab(ROWS, ROWS, (0, 0, 0), method="finetune")
    ask = _ask("ask_nothing")
    lab.method.ask_nothing = lambda client: {}
    lab.server.params += 1
    sent = []
    for cohort in ([0], [0, 1], None, [2]):
        lab.engine.ask(ask, lab.server, cohort)
        sent.append(lab.engine.settle().bytes_down // (3 * 8))
    assert sent == [1, 1, 1, 0]
    assert lab.engine.model_sent(lab.server) == [0, 1, 2]
    lab.server.params += 1
    assert lab.engine.model_sent(lab.server) == []


def test_clients_with_few_held_out_samples_are_tested_together_and_counted_apart(tmp_path: Path) -> None:
    """As each client's own accuracy, computed client by client from the saved model."""
    settings = {**QUICK, "clients": 40, "partition": "iid", "workers": 2}
    result = run("digits", out=tmp_path / "run", **settings)
    experiment = Experiment(resolve(result.config))
    learner = experiment.learner
    learner.model.load_state_dict(load_state(tmp_path / "run" / "model.safetensors"))
    learner.seen = (0, 1)
    for client in (0, 17, 39):
        for task in range(2):
            held_out = experiment.benchmark.test(client, task)
            right = learner.tested(learner.outputs(held_out), held_out)[:, 0].float().mean().item()
            assert result.client_matrices[client][-1][task] == pytest.approx(right, abs=1e-6)


def test_what_clients_hold_is_bounded() -> None:
    """A host gives clients their data, takes back the oldest beyond its limit, and cuts them out again."""
    settings = {**QUICK, "clients": 8, "partition": "iid", "workers": 1}
    experiment = Experiment(resolve(merge(load_raw("digits"), flatten(settings))))
    host = experiment.host()
    one = sum(t.nbytes for t in experiment.benchmark.train(0, 0).tensors().values())
    host.data.limit = int(2.5 * one)
    for number in (0, 1, 2, 0, 3):
        data = host.client(number, 0).data
        assert torch.equal(data.x, experiment.benchmark.train(number, 0).x)
        assert host.data.total <= host.data.limit
    assert list(host.data.sizes) == [0, 3]
    assert [hasattr(host.clients[number], "data") for number in range(4)] == [True, False, False, True]


def test_a_log_is_a_plain_number_or_a_short_word() -> None:
    logged = loggable({"a": True, "b": torch.tensor(2.5), "c": "x" * 50, "d": 3})
    assert logged == {"a": 1, "b": 2.5, "c": "x" * 40, "d": 3}
    assert type(logged["a"]) is int
    with pytest.raises(UserError, match=r"log\(e=...\) takes a number or a word, not list"):
        loggable({"e": [1]})


@pytest.mark.parametrize(
    ("engine", "why"), [("flower", "cflag deploy"), ("flower-sim", "registered sources and models")]
)
def test_an_engine_that_cannot_carry_the_run_is_refused_before_anything_is_written(
    engine: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=why):
        run("digits", model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), engine=engine, out=tmp_path / "run")
    with pytest.raises(UserError, match="runs on this machine"):
        Experiment(load_config("digits", engine=engine)).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_task_can_end_with_the_average_of_its_last_models() -> None:
    """Half of four rounds: the mean of the models after the third and the fourth."""
    config = load_config("digits", **{**QUICK, "rounds": 4, "average_tail": 0.5})
    session, plain = Experiment(config).session(), Experiment(replace(config, average_tail=0.0)).session()
    models = []
    for done in range(4):
        session.play(done)
        plain.play(done)
        models.append(plain.server.params.clone())
    torch.testing.assert_close(session.server.params, (models[2] + models[3]) / 2)
    assert session.server.tail == {}
    session.play(4)
    assert not torch.equal(session.server.params, (models[2] + models[3]) / 2)  # the next task goes on from there


def test_a_tail_is_a_part_of_the_rounds() -> None:
    for wrong in (-0.1, 1.5):
        with pytest.raises(UserError, match="average_tail"):
            load_config("digits", average_tail=wrong)


def test_where_forks_could_not_learn_one_process_does_with_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with some builds, where torch lets no fork of a process that computed gradients compute some."""
    several = run("digits", method="ewc", workers=2, out=tmp_path / "several", **QUICK)

    def refuse(*_: object) -> None:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing")

    alone = "from cflag.process import forks_can_learn; raise SystemExit(not forks_can_learn())"
    assert subprocess.run([sys.executable, "-c", alone]).returncode == 0  # nothing was computed there before
    with monkeypatch.context() as patched:
        patched.setattr(torch.autograd, "grad", refuse)
        assert not process.forks_can_learn()
    monkeypatch.setattr("cflag.experiment.forks_can_learn", lambda: False)
    monkeypatch.setattr("cflag.engines.local.WorkerLane", refuse)
    settings = [f"--set={key}={value}" for key, value in QUICK.items()]
    assert main(["run", "digits", "--set=method=ewc", "--workers=2", "--out", str(tmp_path / "one"), *settings]) == 0
    assert "one process instead of several" in capsys.readouterr().out
    assert Result.load(tmp_path / "one").accuracy_matrix == several.accuracy_matrix
    kept = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "several")]
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[1])
