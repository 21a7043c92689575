"""TARGET: the samples it makes are what they should be, clients learn from them, and they are counted and kept."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cflag import Experiment, Source, resume, run
from cflag.client import Client
from cflag.config import flatten, load_raw, merge, resolve
from cflag.conversation import RoundContext
from cflag.data.samples import Samples
from cflag.engines.host import Host
from cflag.engines.local import LocalEngine
from cflag.errors import UserError
from cflag.learning.learner import Loss
from cflag.learning.synthesis import Workshop, disagreement, fresh, outputs_and_gap
from cflag.methods.target import Target, TargetSettings
from cflag.models.generator import NOISE, Generator
from cflag.server import Server
from tests.support.crashes import Crash, stop_after
from tests.support.quick import QUICK, same, without_times

pytestmark = pytest.mark.usefixtures("no_figures")

TINY: dict[str, Any] = {"samples": 24, "batch": 12, "generator_steps": 3, "student_steps": 2}


class Lab:
    """Digits in class-incremental order, two tasks; the first is learned, the second about to begin."""

    def __init__(self, rounds: int = 6, tasks: int = 2, **settings: Any) -> None:
        raw = {"method": "target", "scenario": "class", "tasks": tasks, "batch": 16, "target": {"lr": 0.1}, **settings}
        self.experiment = Experiment(resolve(merge(load_raw("digits"), flatten(raw))))
        self.host: Host = self.experiment.host()
        self.engine = LocalEngine(self.host, 1)
        self.learner = self.experiment.learner
        self.server: Server = self.experiment.server()
        self.server.sizes = self.experiment.benchmark.sizes(0)
        for self.server.round in range(rounds):
            self.engine.converse(self.method().round(self.server), self.server)
        self.server.task, self.server.round, self.server.sizes = (
            tasks - 1,
            0,
            self.experiment.benchmark.sizes(tasks - 1),
        )

    def method(self, **settings: Any) -> Target:
        config = self.experiment.config
        return Target(replace(config.settings, **settings), config)

    def made(self, **settings: Any) -> tuple[Samples, dict[str, float]]:
        """Return a synthetic set made with these settings, and the server's logs on it."""
        made = self.method(**settings).synthesise(self.server)
        logs, self.server.logs = self.server.logs, {}
        return made, logs

    def client(self, shift: float = 0.0, round: int = 0) -> Client:
        """Return client 0 as it begins on a round of the second task, its model moved by `shift`."""
        client = self.host.client(0, self.server.task)
        self.learner.load(self.server.params + shift, self.server.buffers)
        client.begin_question("local_steps", RoundContext(self.server.task, round, sum(self.server.sizes.values()), 5))
        return client


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab()


@pytest.fixture(scope="module")
def made(lab: Lab) -> Samples:
    return lab.made()[0]


@pytest.fixture(scope="module")
def with_batch_norm() -> Lab:
    return Lab(rounds=3, model="cnn", norm="batch", width=8)


def answers(lab: Lab, x: Tensor) -> Tensor:
    """Which of the first task's classes the global model gives these bytes; written without the learner's own ways."""
    lab.learner.load(lab.server.params, lab.server.buffers)
    lab.learner.model.eval()
    with torch.no_grad():
        outputs = lab.learner.model((x.float() / 255 - 0.3043) / 0.3761)
    first = sorted(lab.experiment.benchmark.tasks[0].classes)
    return torch.tensor(first)[outputs[:, first].argmax(1)]


# --- the samples -----------------------------------------------------------------------------------------


def test_the_teacher_knows_synthetic_samples_and_not_noise(lab: Lab) -> None:
    made, logs = lab.made()
    right = float((answers(lab, made.x) == made.y).float().mean())
    noise = torch.randint(0, 256, made.x.shape, generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    assert right > 0.7  # five classes: chance is 0.2
    assert float((answers(lab, noise) == made.y).float().mean()) < 0.4
    assert logs["synthetic_accuracy"] == pytest.approx(right)
    assert set(logs) == {f"synthetic_{n}" for n in ("accuracy", "classification", "bn", "disagreement")}


def test_training_the_generator_is_what_makes_them(lab: Lab) -> None:
    early, late = (lab.made(generator_steps=steps)[1] for steps in (1, 30))
    assert late["synthetic_classification"] < 0.5 * early["synthetic_classification"]


def test_images_are_bytes_of_every_old_class_with_the_teachers_logits(lab: Lab, made: Samples) -> None:
    old = sorted(lab.experiment.benchmark.tasks[0].classes)
    assert made.x.dtype == torch.uint8
    assert made.x.shape == (256, 1, 8, 8)
    assert int(made.x.max()) > 200  # on the scale of bytes, not of [0, 1]
    counts = torch.bincount(made.y, minlength=10)
    assert sorted(counts[old].tolist()) == [51, 51, 51, 51, 52]
    assert int(counts.sum()) == 256
    assert made.task.tolist() == [0] * 256
    lab.learner.load(lab.server.params, lab.server.buffers)
    expected = lab.learner.model((made.x.float() / 255 - 0.3043) / 0.3761).detach()
    torch.testing.assert_close(made.logits, expected)


def test_a_task_incremental_sample_carries_the_task_of_its_label() -> None:
    lab = Lab(rounds=2, tasks=4, scenario="task")
    made, logs = lab.made(samples=48, batch=24)
    tasks = lab.experiment.benchmark.tasks
    assert set(made.task.tolist()) == {0, 1, 2}
    assert all(y in tasks[task].classes for y, task in zip(made.y.tolist(), made.task.tolist(), strict=True))
    # Each label is looked for among its own task's classes: counted by hand from the logits.
    assert made.logits is not None
    hits = [
        max(tasks[task].classes, key=lambda c: float(row[c])) == y
        for row, y, task in zip(made.logits, made.y.tolist(), made.task.tolist(), strict=True)
    ]
    assert logs["synthetic_accuracy"] == pytest.approx(sum(hits) / 48)


def test_float_samples_stay_float(tmp_path: Path) -> None:
    x, y = torch.randn(80, 3, 10), torch.arange(80) % 4
    source = Source.from_tensors((x, y), (x, y))
    settings = {**QUICK, "scenario": "class", "clients": 2, "workers": 1, "target": TINY}
    experiment = Experiment(resolve({**settings, "method": "target", "model": "cnn1d", "source": "custom"}), source)
    server = experiment.server()
    server.task = 1
    made = experiment.method.synthesise(server)  # type: ignore[attr-defined]
    assert made.x.dtype == torch.float32
    assert made.x.shape == (24, 3, 10)
    assert float(made.x.min()) < 0  # no sigmoid: such samples have no bounds
    run(source=source, out=tmp_path / "run", method="target", model="cnn1d", **settings)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 7), (1, 3, 2), (2, 5), (7,)])
def test_generators_make_any_shape(shape: tuple[int, ...]) -> None:
    noise = 10 * torch.randn(4, NOISE)
    assert Generator(shape, unit=False)(noise).shape == (4, *shape)
    unit = Generator(shape, unit=True)(noise)
    assert 0 <= unit.min().item() < unit.max().item() <= 1


@pytest.mark.parametrize(("samples", "batch", "sizes"), [(7, 3, [4, 3]), (3, 2, [3]), (5, 64, [5]), (6, 2, [2, 2, 2])])
def test_no_batch_is_too_small_for_batch_norm(samples: int, batch: int, sizes: list[int], with_batch_norm: Lab) -> None:
    lab = with_batch_norm
    settings = TargetSettings(samples=samples, batch=batch, generator_steps=1, student_steps=1)
    workshop = Workshop(lab.learner, (0,), settings)
    assert len(workshop.make()) == samples
    assert [len(part) for part in workshop.parts] == sizes


def test_synthesis_is_repeatable_and_leaves_everything_else_alone(lab: Lab) -> None:
    params = lab.server.params.clone()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, again = lab.made(**TINY)[0], lab.made(**TINY)[0]
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one.x, again.x)
    assert torch.equal(lab.server.params, params)
    assert torch.equal(lab.learner.params, params)
    assert all(p.grad is None for p in lab.learner.model.parameters())
    lab.server.seed += 1
    other = lab.made(**TINY)[0]
    lab.server.seed -= 1
    assert not torch.equal(one.x, other.x)


# --- what the generator minds ----------------------------------------------------------------------------


def test_batch_norm_gap_by_hand() -> None:
    """Means (2, 0) against (0, 0), variances (2, 0) against (1, 1): ‖(2, 0)‖ + ‖(1, -1)‖."""
    layer = nn.BatchNorm1d(2)
    model, inputs = nn.Sequential(layer).eval(), torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    assert outputs_and_gap(model, inputs)[1].item() == pytest.approx(2 + math.sqrt(2))
    layer.running_mean = torch.tensor([2.0, 0.0])
    layer.running_var = torch.tensor([2.0, 0.0])
    outputs, gap = outputs_and_gap(model, inputs)
    assert gap.item() == 0
    torch.testing.assert_close(outputs, model(inputs))
    assert not layer._forward_pre_hooks  # nothing is left behind


def test_batch_norm_gap_over_maps_and_layers() -> None:
    """What a layer itself remembered of a batch is no gap, another batch is one; layers add up; none, no gap."""
    torch.manual_seed(0)
    first, second = nn.BatchNorm2d(3, momentum=1.0), nn.BatchNorm2d(3)
    batch, other = torch.randn(6, 3, 5, 5), 2 + torch.randn(6, 3, 5, 5)
    first(batch)
    one, both = nn.Sequential(first).eval(), nn.Sequential(first, second).eval()
    assert outputs_and_gap(one, batch)[1].item() == pytest.approx(0, abs=1e-5)
    assert outputs_and_gap(both, other)[1].item() > outputs_and_gap(one, other)[1].item() + 1 > 2
    assert outputs_and_gap(nn.Conv2d(3, 4, 3), batch)[1].item() == 0


def test_minding_batch_norm_lowers_the_gap(with_batch_norm: Lab) -> None:
    gaps = [with_batch_norm.made(bn=bn)[1]["synthetic_bn"] for bn in (0.0, 3.0)]
    assert 0 < gaps[1] < 0.85 * gaps[0]  # two runs without the term differ by a few percent


def test_disagreement_by_hand() -> None:
    """KL((¾, ¼) ‖ (½, ½)) on the first sample; the second's answers differ and count zero; a closed output is none."""
    closed = -torch.inf
    teacher = torch.tensor([[math.log(3.0), 0.0, closed], [1.0, 0.0, closed]], requires_grad=True)
    student = torch.tensor([[0.0, 0.0, closed], [0.0, 5.0, closed]], requires_grad=True)
    value = disagreement(teacher, student)
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert value.item() == pytest.approx(expected / 2, rel=1e-5)
    for gradient in torch.autograd.grad(value, [teacher, student]):
        assert gradient.isfinite().all()
        assert gradient[0, 0] != 0
        assert gradient[1].tolist() == [0, 0, 0]


def test_the_generator_seeks_disagreement(lab: Lab) -> None:
    workshop = Workshop(lab.learner, (0,), TargetSettings(adversarial=2.0, bn=3.0))
    one, two, five = torch.tensor(1.0), torch.tensor(2.0), torch.tensor(5.0)
    assert workshop.total(one, two, five).item() == pytest.approx(1 + 3 * 2 - 2 * 5)
    apart = [lab.made(adversarial=weight)[1]["synthetic_disagreement"] for weight in (0.0, 1.0)]
    assert apart[1] > 1.2 * apart[0]


def test_the_student_starts_anew_and_learns_from_the_samples(lab: Lab) -> None:
    lab.learner.load(lab.server.params, lab.server.buffers)
    torch.manual_seed(0)
    beginner = fresh(lab.learner.model)
    assert all(
        not torch.equal(a, b) for a, b in zip(beginner.parameters(), lab.learner.model.parameters(), strict=True)
    )
    workshop = Workshop(lab.learner, (0,), TargetSettings())
    made = workshop.make()
    old = sorted(lab.experiment.benchmark.tasks[0].classes)
    assert made.logits is not None
    agreement = []
    for model in (beginner.eval(), workshop.student.eval()):
        outputs = model(lab.learner.inputs(made.x))
        agreement.append(float((outputs[:, old].argmax(1) == made.logits[:, old].argmax(1)).float().mean()))
    assert agreement[0] < 0.5
    assert agreement[1] > 0.7


# --- the clients -----------------------------------------------------------------------------------------


def test_direction_by_hand(lab: Lab, made: Samples) -> None:
    """∇ CE over the task's own outputs + strength · ∇ T² KL(teacher ‖ student) over the old ones."""
    strength, few = 3.0, made[:8]
    client = lab.client(shift=0.02)
    batch = client.data[:8]
    both = lab.method(strength=strength).direction(client, batch, past=few, rng=np.random.default_rng(0))
    assert (client.cost.current, client.cost.memory) == (8, 8)

    old, new = (sorted(task.classes) for task in lab.experiment.benchmark.tasks)
    assert few.logits is not None
    q = (lab.learner.model((few.x.float() / 255 - 0.3043) / 0.3761)[:, old] / 2).log_softmax(1)
    p = (few.logits[:, old] / 2).softmax(1)
    kept = 4 * (p * (p.log() - q)).sum() / 8
    chosen = lab.learner.model((batch.x.float() / 255 - 0.3043) / 0.3761)[:, new].log_softmax(1)
    learned = -sum(chosen[i, new.index(int(batch.y[i]))] for i in range(8)) / 8
    total = learned + strength * kept
    expected = torch.autograd.grad(total, list(lab.learner.model.parameters()))
    torch.testing.assert_close(both, torch.cat([g.reshape(-1) for g in expected]), rtol=1e-3, atol=1e-5)


def test_with_a_head_a_task_the_distillation_is_their_mean() -> None:
    """Three tasks, two old heads: ∇ of ½ Σ_heads T² KL, so that it does not grow with every task."""
    lab = Lab(rounds=1, tasks=3, scenario="task")
    few = lab.made(**TINY)[0][:8]
    directions = []
    for strength in (1e-9, 3.0):
        client = lab.client(shift=0.02)
        rng = np.random.default_rng(0)
        directions.append(lab.method(strength=strength).direction(client, client.data[:8], past=few, rng=rng))
    assert few.logits is not None
    kept = torch.zeros(())
    for task in lab.experiment.benchmark.tasks[:2]:
        old = sorted(task.classes)
        q = (lab.learner.model((few.x.float() / 255 - 0.3043) / 0.3761)[:, old] / 2).log_softmax(1)
        p = (few.logits[:, old] / 2).softmax(1)
        kept = kept + 4 * (p * (p.log() - q)).sum() / 8
    grads = torch.autograd.grad(kept / 2, list(lab.learner.model.parameters()))
    expected = 3.0 * torch.cat([g.reshape(-1) for g in grads])
    torch.testing.assert_close(directions[1] - directions[0], expected, rtol=1e-3, atol=1e-6)


def test_distillation_pulls_only_once_the_model_has_moved(lab: Lab, made: Samples) -> None:
    pulls = {}
    for shift in (0.0, 0.05):
        directions = []
        for strength in (1e-9, 1.0):
            client = lab.client(shift)
            rng = np.random.default_rng(0)
            directions.append(lab.method(strength=strength).direction(client, client.data[:16], past=made, rng=rng))
        pulls[shift] = float((directions[1] - directions[0]).norm() / directions[0].norm())
    assert pulls[0.0] < 1e-4
    assert pulls[0.05] > 0.01


def test_every_step_draws_other_samples(lab: Lab, made: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bytes] = []
    original = Client.value_and_grad

    def spied(self: Client, samples: Samples, loss: Loss | None = None) -> tuple[float, Tensor]:
        if bool((samples.task != self.task).any()):
            drawn.append(samples.x.numpy().tobytes())
        return original(self, samples, loss)

    monkeypatch.setattr(Client, "value_and_grad", spied)
    rounds = []
    for round_ in (0, 0, 1):
        drawn.clear()
        client = lab.client(round=round_)
        lab.method().receive(client, **made.tensors())
        lab.method().local_steps(client, steps=4)
        rounds.append(list(drawn))
    assert len(set(rounds[0])) == 4
    assert rounds[0] == rounds[1]
    assert not set(rounds[0]) & set(rounds[2])


def test_synthetic_samples_travel_once_a_task_and_the_first_task_is_plain(tmp_path: Path) -> None:
    """24 samples of 64 bytes, a label and a task of 8 bytes each and 10 logits of 4, to each of 5 clients."""
    settings: dict[str, Any] = {**QUICK, "tasks": 3, "scenario": "class", "workers": 1}
    tables: dict[str, Any] = {"target": {**TINY, "lr": 0.1}, "finetune": {"lr": 0.1}}
    lines = {
        name: run("digits", method=name, out=tmp_path / name, **settings, **tables).metrics
        for name in ("target", "finetune")
    }
    extra = [a["bytes_down"] - b["bytes_down"] for a, b in zip(lines["target"], lines["finetune"], strict=True)]
    assert extra == [0, 0, 5 * 24 * (64 + 8 + 8 + 40), 0, 5 * 24 * (64 + 8 + 8 + 40), 0]
    assert [a["loss"] == b["loss"] for a, b in zip(*lines.values(), strict=True)] == [True] * 2 + [False] * 4
    assert ["synthetic_accuracy" in line for line in lines["target"]] == [False, False, True, False, True, False]
    # as many synthetic as current samples, but for batches larger than the synthetic set
    assert lines["target"][0]["gradients_memory"] == 0
    assert 0 < lines["target"][2]["gradients_memory"] <= lines["target"][2]["gradients_current"]


# --- whole runs ------------------------------------------------------------------------------------------


def test_the_first_task_is_kept_where_fine_tuning_loses_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"tasks": 2, "rounds": 6, "scenario": "class", "eval_every": 6, "workers": 1}
    tables: dict[str, Any] = {method: {"lr": 0.1} for method in ("finetune", "target")}
    first, second = {}, {}
    for method in ("finetune", "target"):
        result = run("digits", method=method, out=tmp_path / method, **settings, **tables)
        first[method], second[method] = result.matrices["class"][-1]
    assert first["target"] > first["finetune"] + 0.2
    assert second["target"] > 0.5


SHORT: dict[str, Any] = {**QUICK, "method": "target", "scenario": "class", "tasks": 3, "zeta": 1.0, "target": TINY}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    run("digits", out=out, workers=1, **SHORT)
    return out


def test_workers_change_nothing(tmp_path: Path, unbroken: Path) -> None:
    run("digits", out=tmp_path / "run", workers=2, **SHORT)
    same(tmp_path / "run", unbroken)


def test_workers_change_nothing_with_batch_norm(tmp_path: Path) -> None:
    settings = {**SHORT, "tasks": 2, "model": "cnn", "norm": "batch", "width": 4, "zeta": 1e5}
    for workers in (1, 2):
        run("digits", out=tmp_path / str(workers), **settings, workers=workers)
    assert without_times(tmp_path / "1") == without_times(tmp_path / "2")


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_stop_before_or_after_the_synthesis_changes_nothing(
    rounds: int, tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(rounds, patch)
        with pytest.raises(Crash):
            run("digits", out=out, workers=1, **SHORT)
    resume(out)
    same(out, unbroken)


@pytest.mark.parametrize(
    "wrong",
    [{name: 0} for name in ("lr", "strength", "temperature", "generator_steps", "generator_lr", "student_steps")]
    + [{"student_lr": -1.0}, {"samples": 1}, {"batch": 1}, {"bn": -0.1}, {"adversarial": -0.1}],
)
def test_numbers_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"target\.{next(iter(wrong))} = "):
        replace(TargetSettings(), **wrong).check("target")
    TargetSettings(bn=0.0, adversarial=0.0).check("target")
