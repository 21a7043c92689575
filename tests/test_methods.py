"""Each method does what its name says: numbers by hand, and tests that fail if it silently did nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cflag import Experiment, registry, run
from cflag.config import flatten, load_raw, merge, resolve
from cflag.conversation import RoundContext
from cflag.data.heads import Heads
from cflag.data.samples import Samples
from cflag.engines.host import Host
from cflag.engines.local import LocalEngine
from cflag.files import load_state, save_state
from cflag.learning.distillation import distillation
from cflag.memory.base import MemoryOptions
from cflag.memory.ring import Ring
from cflag.methods.agem import project
from cflag.methods.base import FedAvg
from cflag.methods.sums import Sums
from tests.support.quadratic import Lab, Row
from tests.support.quick import QUICK

PAST: list[list[Row]] = [[(1, 0, 0, -1)], [(0, 0, 1, 1)]]
CURRENT: list[list[Row]] = [[(1, 0, 0, 1), (0, 1, 0, 2)], [(0, 0, 1, 3)]]
ALL = [name for name in registry.names("method") if name != "cflag"]


def rate(method: str, value: float) -> dict[str, Any]:
    if method in (
        "cflag-shared",
        "cflag-balanced",
    ):  # Adam, whatever the run's optimizer: a step has the size of its rate
        value = value / 10
    return {method: {"beta" if method.startswith(("cflag", "fedtrack")) else "lr": value}}


@pytest.mark.parametrize("method", registry.names("method"))
def test_every_method_learns_digits_end_to_end(method: str, tmp_path: Path) -> None:
    untrained = issubclass(registry.get("method", method), Sums)
    settings: dict[str, Any] = {"tasks": 2, "rounds": 6, "batch": 16, "epochs": 2, "eval_every": 6}
    settings |= {"model": "linear"} if untrained else rate(method, 0.1)
    result = run("digits", method=method, out=tmp_path / "run", **settings)
    assert result.accuracy_matrix[0][0] > 0.8
    assert result.average_accuracy > 0.75
    assert (result.costs["gradients_current"] == 0) == untrained


@pytest.mark.parametrize("method", registry.names("method"))
def test_every_method_states_its_idea_and_settings(method: str) -> None:
    cls = registry.get("method", method)
    settings = cls.Settings()
    if hasattr(settings, "check"):
        settings.check(method)
    import importlib

    text = importlib.import_module(cls.__module__).__doc__ or ""
    assert len(text.split()) > 15


def test_fine_tuning_by_hand() -> None:
    """One step, full batches: x - lr Σ p_i g_i = 0 + 0.1 (1/3, 2/3, 1)."""
    lab = Lab(PAST, CURRENT, (0, 0, 0), method="finetune", steps=1, batch=9, finetune={"lr": 0.1})
    assert lab.round().tolist() == pytest.approx([0.1 / 3, 0.2 / 3, 0.1])


def test_fedtrack_is_cflag_without_memory() -> None:
    own = {"estimator": "iag", "adapt": "off", "drift": 1.0, "beta": 0.1}
    cflag = Lab(PAST, CURRENT, (0, 0, 0), steps=4, cflag=own, memory={"kind": "none"})
    fedtrack = Lab(PAST, CURRENT, (0, 0, 0), steps=4, method="fedtrack", fedtrack={"beta": 0.1})
    assert torch.equal(cflag.round(), fedtrack.round())
    assert fedtrack.engine.settle().cost.memory == 0


def test_replay_by_hand() -> None:
    """Client 0 joins two current samples with its one memory sample: ⅓ [(-1,0,0) + (0,-2,0) + (1,0,0)];
    client 1 one with one: ½ [(0,0,-3) + (0,0,-1)]."""
    lab = Lab(PAST, CURRENT, (0, 0, 0), method="replay", steps=1, batch=9, replay={"lr": 0.1})
    expected = [0.0, 0.1 * 2 / 3 * 2 / 3, 0.1 * 1 / 3 * 2]
    assert lab.round().tolist() == pytest.approx(expected)
    cost = lab.engine.settle().cost
    assert (cost.current, cost.memory) == (3, 2)


def test_replay_draws_anew_at_every_step() -> None:
    past: list[Row] = [(1, 0, 0, k) for k in range(50)]
    lab = Lab([past], [[(0, 0, 1, 1)]], (0, 0, 0), method="replay", steps=1)
    client = lab.engine.lanes[0].host.clients[0]  # type: ignore[attr-defined]
    client.begin_question("local_steps", client.context)
    draws = [client.replay(5).x[:, -1].tolist() for _ in range(4)]
    client.begin_question("local_steps", client.context)
    again = [client.replay(5).x[:, -1].tolist() for _ in range(4)]
    assert len({tuple(d) for d in draws}) > 1
    assert draws == again


vectors = st.lists(st.integers(-8, 8).map(float), min_size=4, max_size=4).map(torch.tensor)


@given(vectors, vectors)
def test_projection_removes_the_conflict_exactly(gradient: torch.Tensor, memory: torch.Tensor) -> None:
    projected = project(gradient.double(), memory.double())
    inner = float(gradient @ memory)
    if inner >= 0:
        assert torch.equal(projected, gradient.double())
    else:
        assert float(projected @ memory.double()) == pytest.approx(0, abs=1e-9)
        # nothing but the memory's direction was touched
        across = gradient.double() - (gradient @ memory / (memory @ memory)).double() * memory.double()
        torch.testing.assert_close(projected, across, rtol=1e-5, atol=1e-6)


def test_agem_by_hand() -> None:
    """Client 0: v = (-½, -1, 0), memory (1, 0, 0): conflict, so (0, -1, 0). Client 1 agrees: (0, 0, -3)."""
    lab = Lab(PAST, CURRENT, (0, 0, 0), method="agem", steps=1, batch=9, agem={"lr": 0.1})
    assert lab.round().tolist() == pytest.approx([0, 0.1 * 2 / 3, 0.1])


def test_nccl_by_hand() -> None:
    """Client 0 interferes: Λ = -½, α = lr (1 + ½), β = lr. Client 1 agrees: Λ = 3, β = (1 - Lα) 3 / (L 9) = 1/30."""
    lab = Lab(PAST, CURRENT, (0, 0, 0), method="nccl", steps=1, batch=9, nccl={"lr": 0.1, "smoothness": 5.0})
    step0 = torch.tensor([0.15 * 1 - 0.1 / 2, -0.1, 0.0])
    step1 = torch.tensor([0.0, 0.0, -0.1 * 1 - 3 / 30])
    expected = -(2 / 3 * step0 + 1 / 3 * step1)
    assert lab.round().tolist() == pytest.approx(expected.tolist())


def ewc_lab(**own: Any) -> Lab:
    return Lab(PAST, CURRENT, (0, 0, 0), method="ewc", steps=1, batch=9, ewc={"lr": 0.1, "strength": 2.0, **own})


def test_fisher_by_hand() -> None:
    """Task 1 at x = 0: squared gradients (1,0,0) and (0,0,1), one sample a client, equal weights."""
    lab = ewc_lab()
    assert lab.server.state["fisher"].tolist() == pytest.approx([0.5, 0, 0.5])
    assert lab.server.state["pull"].tolist() == pytest.approx([0, 0, 0])


def test_ewc_penalty_pulls_the_parameters_that_are_trained() -> None:
    """Away from the anchor x* = 0 the step gains λ F x; a penalty on another model would leave it unchanged."""
    lab = ewc_lab()
    away = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    lab.server.params.copy_(away)
    # gradients at (1, 1, 1): client 0 ½ [(0,0,0) + (0,-1,0)], client 1 (0,0,-2); penalty 2 · (½, 0, ½) x = (1, 0, 1);
    # implicit: over 1 + lr λ F = (1.1, 1, 1.1)
    expected = away - 0.1 * torch.tensor([1.0 / 1.1, -1 / 3, (-2 / 3 + 1.0) / 1.1])
    assert lab.round().tolist() == pytest.approx(expected.tolist())


def test_ewc_holds_on_however_strong_it_is() -> None:
    """A plain step along λ F x would overshoot by a factor of 10⁵; the implicit one stays at the anchor."""
    lab = Lab(PAST, CURRENT, (0, 0, 0), method="ewc", steps=5, batch=9, ewc={"lr": 0.1, "strength": 1e7})
    end = lab.round()
    assert end[[0, 2]].abs().max() < 1e-5  # F > 0
    assert float(end[1]) > 0.1  # F = 0: free


def test_ewc_penalty_acts_along_the_local_path() -> None:
    """At the anchor itself the penalty is zero, but from the second local step on it must act."""
    runs = {}
    for strength in (1e-9, 2.0):
        lab = Lab(PAST, CURRENT, (0, 0, 0), method="ewc", steps=5, batch=9, ewc={"lr": 0.1, "strength": strength})
        runs[strength] = lab.round().clone()
    free, held = runs[1e-9], runs[2.0]
    assert float(held[2]) < float(free[2]) - 1e-3  # component 2 matters to the past and is held back
    assert float(held[1]) == pytest.approx(float(free[1]))  # component 1 does not


@pytest.mark.parametrize("tasks", ["summed", "online"])
def test_ewc_over_tasks(tasks: str) -> None:
    lab = ewc_lab(tasks=tasks, decay=0.5)
    lab.server.params.copy_(torch.tensor([2.0, 0.0, 0.0]))
    lab.engine.converse(lab.method.end_task(lab.server), lab.server)
    # Task 2 at (2, 0, 0): client 0 ½ [(1,0,0) + (0,4,0)], client 1 (0,0,9): F = (1/3, 4/3, 3)
    fresh, old = torch.tensor([1 / 3, 4 / 3, 3.0]), torch.tensor([0.5, 0, 0.5])
    fisher = fresh + (0.5 if tasks == "online" else 1.0) * old
    pull = fisher[0] * 2 if tasks == "online" else fresh[0] * 2  # summed: task 1's anchor stays at 0
    assert lab.server.state["fisher"].tolist() == pytest.approx(fisher.tolist())
    assert lab.server.state["pull"].tolist() == pytest.approx([float(pull), 0, 0])


@pytest.mark.usefixtures("no_figures")
def test_sampled_labels_give_another_fisher_and_both_run(tmp_path: Path) -> None:
    results = [
        run("digits", method="ewc", out=tmp_path / labels, **QUICK, ewc={"labels": labels, "strength": 1000.0})
        for labels in ("empirical", "sampled")
    ]
    assert results[0].metrics[-1]["loss"] != results[1].metrics[-1]["loss"]


def test_joint_trains_on_everything() -> None:
    """Full-batch steps: client 0 has three samples in all, client 1 two; weights are still p_i of the task.

    `steps` is one task's number; with two tasks of data a round takes two.
    """
    lab = Lab(PAST, CURRENT, (0, 0, 0), method="joint", steps=1, batch=9, joint={"lr": 0.1})
    # Gradients: client 0 has ⅓ [(x − 1) + (x + 1), y − 2, 0], client 1 has ½ [0, 0, (z − 1) + (z − 3)].
    y, z = 0.1 * 2 / 3, 0.1 * 2
    y, z = y + 0.1 * (2 - y) / 3, z + 0.1 * (2 - z)
    assert lab.round().tolist() == pytest.approx([0, 2 / 3 * y, 1 / 3 * z])


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("method", ALL)
def test_every_method_gives_the_same_numbers_from_workers(method: str, tmp_path: Path) -> None:
    paths = [tmp_path / str(workers) for workers in (1, 2)]
    for workers, path in zip((1, 2), paths, strict=True):
        run("digits", method=method, out=path, **{**QUICK, "rounds": 1}, workers=workers)
    models = [(path / "model.safetensors").read_bytes() for path in paths]
    assert models[0] == models[1]


def test_distillation_by_hand() -> None:
    """Teacher (ln 3, 0) against student (0, 0) at T = 1: KL((¾, ¼) ‖ (½, ½)); a head that agrees adds nothing."""
    outputs, targets = torch.zeros(1, 4), torch.tensor([[3.0, 1.0, 5.0, 5.0]]).log()
    heads = [torch.tensor([0, 1]), torch.tensor([2, 3])]
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert distillation(outputs, targets, heads, 1.0).item() == pytest.approx(expected, rel=1e-5)
    # a high temperature flattens both and is compensated by T²: the limit is half the variance of the difference
    limit = 0.5 * (math.log(3) / 2) ** 2
    assert distillation(outputs.double(), targets.double(), heads[:1], 1e3).item() == pytest.approx(limit, rel=1e-2)


def test_heads_before_a_task() -> None:
    own = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]], dtype=torch.bool)
    by_task, appended = Heads(own, by_task=True), Heads(own, by_task=False)
    assert [h.tolist() for h in by_task.before((0, 1))] == [[0, 1], [2, 3]]
    assert [h.tolist() for h in appended.before((0, 1))] == [[0, 1, 2, 3]]
    assert by_task.before(()) == appended.before(()) == []


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("scenario", ["task", "class"])
def test_lwf_keeps_what_was_learned_first(scenario: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"tasks": 2, "rounds": 6, "batch": 16, "eval_every": 6, "scenario": scenario}
    first_task = {
        strength: run("digits", method="lwf", out=tmp_path / str(strength), **settings,
                      lwf={"lr": 0.1, "strength": strength}).accuracy_matrix[-1][0]
        for strength in (1e-9, 1.0)
    }  # fmt: skip
    assert first_task[1.0] > first_task[1e-9] + 0.01
    assert first_task[1.0] > 0.85


@pytest.mark.parametrize("labels", ["own", "open"])
def test_cflag_sgd_can_leave_old_heads_to_the_memory(labels: str) -> None:
    """The last ten parameters are the outputs' biases: old ones get no gradient from the current task's own labels."""
    settings = {**QUICK, "method": "cflag-sgd", "scenario": "class", "workers": 1, "cflag-sgd": {"labels": labels}}
    experiment = Experiment(resolve(merge(load_raw("digits"), flatten(settings))))
    host, server = experiment.host(), experiment.server()
    engine = LocalEngine(host, 1)
    server.sizes = experiment.benchmark.sizes(0)
    engine.converse(experiment.method.end_task(server), server)
    client = host.client(0, 1)
    client.begin_question("local_steps", RoundContext(1, 0, 1, 5))
    gradient = experiment.method.estimator(client).components.full()[-10:]  # type: ignore[attr-defined]
    old, own = experiment.benchmark.heads.own
    assert (gradient[own] != 0).all()
    assert (gradient[old] != 0).all() if labels == "open" else (gradient[old] == 0).all()
    assert client.memory.samples is not None
    assert (client.value_and_grad(client.memory.samples)[1][-10:] != 0).all()


def test_a_teacher_answers_with_its_own_statistics_and_leaves_no_trace() -> None:
    settings = {**QUICK, "method": "lwf", "model": "cnn", "norm": "batch", "width": 4, "workers": 1}
    experiment = Experiment(resolve(merge(load_raw("digits"), flatten(settings))))
    client = experiment.host().client(0, 0)
    learner, samples = experiment.learner, client.data[:20]
    teacher = learner.params + 0.1, learner.buffers + 0.5
    expected = {}
    for name, (params, buffers) in {"own": (learner.params, learner.buffers), "teacher": teacher}.items():
        other = Experiment(experiment.config).learner
        other.load(params, buffers)
        expected[name] = other.outputs(samples)
    assert torch.equal(client.outputs(samples, *teacher), expected["teacher"])
    assert torch.equal(client.outputs(samples), expected["own"])
    assert not torch.equal(client.outputs(samples, teacher[0]), expected["teacher"])


def test_derpp_stores_the_global_models_logits_and_pulls_towards_them(tmp_path: Path) -> None:
    config = resolve(merge(load_raw("digits"), flatten({**QUICK, "method": "derpp", "workers": 1})))
    experiment = Experiment(config)
    host = Host(experiment.benchmark, experiment.method, experiment.learner, config.memory, config.seed)
    engine = LocalEngine(host, 1)
    server = experiment.server()
    server.sizes = {c: experiment.benchmark.size(c, 0) for c in range(5)}
    engine.converse(experiment.method.end_task(server), server)
    client = host.clients[0]
    stored = client.memory.samples
    assert stored is not None
    assert stored.logits is not None
    expected = experiment.learner.model(experiment.learner.normalise(stored.x)).detach()
    own = experiment.benchmark.heads.own[0]
    torch.testing.assert_close(stored.logits[:, own], expected[:, own])
    assert stored.logits[:, ~own].isnan().all()  # outputs that were closed have nothing to say

    # Where the model still is, the logits' replay adds nothing; elsewhere it points back.
    server.task, server.sizes = 1, {c: experiment.benchmark.size(c, 1) for c in range(5)}
    directions = {}
    for alpha in (1e-9, 1.0):
        method = registry.get("method", "derpp")(replace(config.settings, alpha=alpha), config)
        for shift in (0.0, 0.1):
            client = host.client(0, 1)
            client.begin_question("local_steps", RoundContext(1, 0, sum(server.sizes.values()), 5))
            host.learner.load(server.params + shift, server.buffers)
            directions[alpha, shift] = method.direction(client, client.data[:8])
    torch.testing.assert_close(directions[1e-9, 0.0], directions[1.0, 0.0], rtol=1e-4, atol=1e-6)
    back = directions[1.0, 0.1] - directions[1e-9, 0.1]
    assert float(back.sum()) > 0  # all parameters were moved up; the pull is down, so the direction is up


@pytest.mark.parametrize("scenario", ["class", "task"])
def test_er_ace_learns_current_labels_over_their_own_outputs_only(scenario: str) -> None:
    """The mean of the samples' gradients, each over its open outputs: the current task's own, or all there are."""
    quick = {**QUICK, "method": "er-ace", "workers": 1, "scenario": scenario, "memory": {"per_task": 20, "sample": 5}}
    config = resolve(merge(load_raw("digits"), flatten(quick)))
    experiment = Experiment(config)
    host, learner = experiment.host(), experiment.learner
    engine, server = LocalEngine(host, 1), experiment.server()
    server.sizes = {c: experiment.benchmark.size(c, 0) for c in range(5)}
    engine.converse(experiment.method.end_task(server), server)
    client = host.client(0, 1)
    client.begin_question("local_steps", RoundContext(1, 0, 1, 5))
    batch, now, old = client.data[:8], experiment.spec.tasks[1], experiment.spec.tasks[0]
    past = client.memory.draw(client.rng("replay"), 8)
    assert past is not None
    assert isinstance(experiment.method, FedAvg)
    direction = experiment.method.direction(client, batch)
    total = torch.zeros(())
    for samples, open_ in ((batch, now), (past, old if scenario == "task" else (*old, *now))):
        outputs = learner.model(learner.normalise(samples.x))[:, list(open_)]
        labels = torch.tensor([open_.index(int(y)) for y in samples.y])
        total += torch.nn.functional.cross_entropy(outputs, labels, reduction="sum")
    expected = torch.autograd.grad(total / (len(batch) + len(past)), list(learner.model.parameters()))
    torch.testing.assert_close(direction, torch.cat([g.flatten() for g in expected]), rtol=1e-5, atol=1e-7)


def test_logits_survive_a_restart(tmp_path: Path) -> None:
    samples = Samples(torch.zeros(2, 3), torch.tensor([0, 1]), torch.zeros(2, dtype=torch.long), torch.ones(2, 4))
    memory = Ring(MemoryOptions())
    memory.samples = samples
    save_state(tmp_path / "s", memory.state())
    other = Ring(MemoryOptions())
    other.restore(load_state(tmp_path / "s"))
    assert other.samples is not None
    assert other.samples.logits is not None
    assert torch.equal(other.samples.logits, torch.ones(2, 4))
