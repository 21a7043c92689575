"""iCaRL: herding, the sigmoid loss and the nearest mean by hand, and what they do together on digits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from cflag import Experiment, run
from cflag.client import Client
from cflag.config import flatten, load_raw, merge, resolve
from cflag.conversation import RoundContext
from cflag.data.heads import Heads
from cflag.data.samples import Samples
from cflag.engines.local import LocalEngine
from cflag.errors import UserError
from cflag.launch import resume
from cflag.learning.learner import Learner
from cflag.memory.base import MemoryOptions
from cflag.memory.ring import Ring
from cflag.methods.base import LocalOptions
from cflag.methods.icarl import Icarl, IcarlSettings, herd, nearness, sigmoid_loss
from tests.support.crashes import Crash, stop_after
from tests.support.quick import QUICK, same

pytestmark = pytest.mark.usefixtures("no_figures")

CLASS: dict[str, Any] = {**QUICK, "method": "icarl", "scenario": "class", "zeta": 1.0, "icarl": {"lr": 0.1}}


def test_herding_by_hand() -> None:
    """The mean is (2, ¾): (3, 1) is nearest. Two should then sum to (4, 1½): (1, ½) is missing, next to (0, 0), though
    (1, 2) is nearer to the mean. Three should sum to (6, 2¼): (3, 1¼) is missing, next to (4, 0)."""
    features = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 2.0], [3.0, 1.0]])
    assert herd(features, 4).tolist() == [3, 0, 1, 2]
    assert herd(features, 2).tolist() == [3, 0]
    assert herd(features, 9).tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize("together", [1, 7, 25, 26, 60])
def test_the_nearest_mean_does_not_depend_on_who_else_is_asked(together: int) -> None:
    """To the last bit: engines test the same samples in groups of different sizes."""
    generator = torch.Generator().manual_seed(3)
    features, means = (F.normalize(torch.randn(n, 32, generator=generator)) for n in (60, 30))
    whole = nearness(features, means)
    assert torch.equal(torch.cat([nearness(part, means) for part in features.split(together)]), whole)
    by_hand = -(features.double()[:, None] - means.double()).square().sum(2)
    torch.testing.assert_close(whole.double(), by_hand, rtol=1e-5, atol=1e-6)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 15), st.integers(0, 2**32))
@settings(max_examples=50)
def test_every_pick_is_the_best_of_those_left(supply: int, width: int, count: int, seed: int) -> None:
    features = torch.randn(supply, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    picks = herd(features, count).tolist()
    assert len(set(picks)) == len(picks) == min(count, supply)
    for k in range(len(picks)):
        left = [j for j in range(supply) if j not in picks[:k]]
        means = torch.stack([features[[*picks[:k], j]].mean(0) for j in left])
        distances = (means - features.mean(0)).norm(dim=1)
        assert float(distances[left.index(picks[k])]) == pytest.approx(float(distances.min()), abs=1e-9)


def test_herded_samples_stand_for_their_class_better_than_random_ones() -> None:
    """A random mean of 10 out of 60 is off by √(5/10 · 50/59) = 0.65 (root mean square); herding by far less."""
    generator = torch.Generator().manual_seed(0)
    errors = []
    for _ in range(20):
        features = torch.randn(60, 5, generator=generator)
        chosen = features[herd(features, 10)]
        errors.append(float((chosen.mean(0) - features.mean(0)).norm()))
    assert sum(errors) / 20 < 0.65 / 3


def test_sigmoid_loss_by_hand() -> None:
    """Output 0 is old, 1 not yet seen, 2 and 3 current. σ(ln 3) = ¾, and the derivative is (σ − target) / n."""
    three = math.log(3)
    outputs = torch.tensor([[three, 7.0, 0.0, three], [0.0, 7.0, three, 0.0]], requires_grad=True)
    teacher = torch.tensor([[0.0, 1.0, 2.0, 3.0], [three, 1.0, 2.0, 3.0]])
    samples = Samples(torch.zeros(2, 1), torch.tensor([2, 0]), torch.tensor([1, 0]), teacher)
    own, old = torch.tensor([[0, 0, 1, 1], [1, 0, 0, 0]]).bool()
    loss = sigmoid_loss(outputs, samples, own, old, 2.0)
    # softplus(z) − t z, with softplus(ln 3) = ln 4 and softplus(0) = ln 2
    kept = (math.log(4) - 0.5 * three) + math.log(2)
    learned = (math.log(2) + math.log(4)) + (math.log(4) + math.log(2))
    assert loss.item() == pytest.approx((2 * kept + learned) / 2, rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, outputs)
    expected = [[2 * 0.25, 0, -0.5, 0.75], [2 * -0.25, 0, 0.75, 0.5]]
    torch.testing.assert_close(gradient, torch.tensor(expected) / 2)


ICARL = Icarl(IcarlSettings(), LocalOptions())


def small_client(tasks: int, classes: int, **memory: Any) -> Client:
    """Return a client whose features are its samples: the model is one dense layer, which likes class 2 best."""
    model = nn.Linear(2, classes)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, 0.0, 9.0, 3.0])[:classes])
    own = torch.eye(tasks).repeat_interleave(classes // tasks, 1).bool()
    return Client(0, 0, Learner(model, Heads(own, by_task=False)), Ring(MemoryOptions(**memory)))


def test_the_nearest_mean_by_hand() -> None:
    """(3, 0) is (1, 0): distances² 0 and 0.4² + 0.8². (0, 5) is (0, 1): 2 and 0.6² + 0.2²."""
    client = small_client(2, 4)
    samples = Samples(torch.tensor([[3.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 1]), torch.tensor([0, 0]))
    means = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 0.0], [0.0, 0.0]])
    scores = ICARL.predict(client._learner, samples, means=means)
    torch.testing.assert_close(scores[:, :2], torch.tensor([[0.0, -0.8], [-2.0, -0.4]]))
    # Classes without a mean are behind the farthest possible one, in the order of the model's outputs.
    assert bool((scores[:, 2:] < -4).all())
    assert bool(scores.isfinite().all())
    assert scores.argsort(1, descending=True).tolist() == [[0, 1, 2, 3], [1, 0, 2, 3]]
    assert torch.equal(ICARL.predict(client._learner, samples), client.outputs(samples))


def finished_task(client: Client, task: int) -> list[list[float]]:
    """Give a client two classes of three samples each at 0°, 40° and 70°, turned for each class; return them by class.

    Of length one they have the mean (0.70, 0.53), so 40° is herded first; (0.64, 0.41) is missing then, next to 0°.
    As they are, the sample at 40° is ten times as long as the others and far from their mean.
    """
    degrees, lengths = torch.tensor([70.0, 40.0, 0.0]), torch.tensor([1.0, 10.0, 1.0])
    labels = [2 * task, 2 * task + 1]
    turned = [(degrees + 90 * label).deg2rad() for label in labels]
    by_class = [torch.stack([a.cos(), a.sin()], 1) * lengths[:, None] for a in turned]
    x, y = torch.cat(by_class), torch.tensor(labels).repeat_interleave(3)
    mixed = torch.tensor([3, 0, 4, 1, 5, 2])
    client.data = Samples(x[mixed], y[mixed], torch.full((6,), task))
    client.begin_question("remember", RoundContext(task, 0, 6, 1))
    ICARL.remember(client)
    return [rows[[1, 2, 0]].tolist() for rows in by_class]


def test_exemplars_are_herded_and_the_first_survive_a_limit() -> None:
    client = small_client(2, 4, per_task=4)
    first, second = finished_task(client, 0)
    assert client.memory.samples is not None
    assert client.memory.samples.x.tolist() == first[:2] + second[:2]
    assert client.memory.samples.y.tolist() == [0, 0, 1, 1]

    third, fourth = finished_task(client, 1)
    assert client.memory.samples.x.tolist() == first[:2] + second[:2] + third[:2] + fourth[:2]
    assert client.memory.samples.task.tolist() == [0] * 4 + [1] * 4

    limited = small_client(2, 4, per_task=5, limit_samples=4)
    finished_task(limited, 0)
    assert limited.memory.samples is not None
    assert limited.memory.samples.x.tolist() == first[:2] + second[:2]
    finished_task(limited, 1)
    assert limited.memory.samples.x.tolist() == first[:1] + second[:1] + third[:1] + fourth[:1]


class Stage:
    """Digits, class-incremental, on clients of unequal size; the model is as it was made."""

    def __init__(self, **changes: Any) -> None:
        memory = {"per_task": 10, "sample": 5}
        self.config = resolve(merge(load_raw("digits"), flatten({**CLASS, "memory": memory, **changes})))
        self.experiment = Experiment(self.config)
        self.method = self.experiment.method
        self.host = self.experiment.host()
        self.engine = LocalEngine(self.host, 1)
        self.server = self.experiment.server()
        self.enter(0)

    def enter(self, task: int) -> None:
        self.server.task, self.server.sizes = task, self.experiment.benchmark.sizes(task)

    def end_task(self) -> None:
        self.engine.converse(self.method.end_task(self.server), self.server)

    def means(self) -> Tensor:
        self.engine.converse(self.method.before_eval(self.server), self.server)
        means: Tensor = self.server.state["means"]
        return means

    def exemplars(self) -> Samples:
        return Samples.cat([c.memory.samples for c in self.host.clients.values() if c.memory.samples is not None])

    def data(self) -> Samples:
        return Samples.cat([client.data for client in self.host.clients.values()])

    def direct_means(self, samples: Samples) -> Tensor:
        """Return the classes' means over samples in one heap, whoever has them."""
        self.host.learner.load(self.server.params, self.server.buffers)
        features = F.normalize(self.host.learner.features(samples))
        rows = torch.zeros(10, features.shape[1])
        for label in samples.y.unique():
            rows[label] = F.normalize(features[samples.y == label].mean(0), dim=0)
        return rows


def test_means_are_those_of_all_exemplars_in_one_heap() -> None:
    stage = Stage()
    assert len(set(stage.server.sizes.values())) > 1
    stage.end_task()
    assert len(stage.exemplars()) == 50  # 10 a client, whatever its size
    means = stage.means()
    torch.testing.assert_close(means, stage.direct_means(stage.exemplars()))
    assert means.any(1).tolist() == stage.experiment.benchmark.heads.own[0].tolist()

    # In the middle of a task its data stand for the exemplars that will be chosen.
    stage.enter(1)
    means = stage.means()
    torch.testing.assert_close(means, stage.direct_means(Samples.cat([stage.exemplars(), stage.data()])))
    assert bool(means.any(1).all())
    stage.end_task()
    assert not torch.allclose(stage.means(), means, atol=1e-3)
    torch.testing.assert_close(stage.means(), stage.direct_means(stage.exemplars()))


def test_the_nearest_mean_classifies_with_features_nobody_trained() -> None:
    """The model's own outputs are a guess among five classes; the means are tested with once they are formed."""
    stage = Stage(width=64)  # eight random features would be too few to tell five digits apart
    right = []
    for _ in range(2):
        counts = stage.engine.evaluate(stage.server, [0], stage.method.eval_payload(stage.server))
        right.append(sum(row[0][1] for row in counts) / sum(row[0][2] for row in counts))
        stage.end_task()
        stage.means()
    assert right[0] < 0.5
    assert right[1] > 0.7


def step(stage: Stage, strength: float, shift: float, batch: int = 10_000) -> Tensor:
    """Return client 0's displacement in one step of task 2, from a model so far from the teacher in every parameter."""
    method = Icarl(replace(stage.config.settings, lr=1.0, strength=strength), LocalOptions(batch=batch))
    client = stage.host.client(0, 1)
    stage.host.learner.load(stage.server.params + shift, stage.server.buffers)
    client.begin_question("local_steps", RoundContext(1, 0, sum(stage.server.sizes.values()), 5))
    sent = {"teacher": stage.server.params, "teacher_buffers": stage.server.buffers}
    delta = method.local_steps(client, 1, **sent)["delta"]
    assert isinstance(delta, Tensor)
    return delta


@pytest.mark.parametrize("scenario", ["class", "task"])
def test_distillation_pulls_back_to_the_teacher(scenario: str) -> None:
    stage = Stage(tasks=5, scenario=scenario)
    stage.end_task()
    stage.enter(1)
    here = [step(stage, strength, 0.0) for strength in (1e-9, 1.0)]
    torch.testing.assert_close(here[0], here[1], rtol=1e-4, atol=1e-6)  # the student is the teacher: nothing to keep
    free, held = (step(stage, strength, 0.1) for strength in (1e-9, 1.0))
    back = held - free
    assert float(back.sum()) > 0.1  # all parameters were moved up; the displacement x − x_new is up, too

    # Rows of classes: seen ones are moved, current ones by their labels alone; those still to come never.
    heads, learner = stage.experiment.benchmark.heads, stage.host.learner
    learner.load(held, stage.server.buffers)
    moved = learner._last_dense().bias.detach() != 0
    learner.load(back, stage.server.buffers)
    pulled = learner._last_dense().bias.detach().abs() > 1e-6
    assert moved.tolist() == heads.outputs((0, 1)).tolist()
    assert pulled.tolist() == heads.own[0].tolist()


def test_a_step_learns_from_current_data_and_exemplars_and_leaves_both_as_they_were() -> None:
    stage = Stage()
    stage.end_task()
    stage.enter(1)
    stage.host.changed.clear()
    client = stage.host.client(0, 1)
    data, kept = client.data, client.kept()
    step(stage, 1.0, 0.0)
    assert (client.cost.current, client.cost.memory) == (len(data), 10)
    assert client.data is data
    assert all(a is b for a, b in zip(client.kept(), kept, strict=True))
    stage.engine.converse(stage.method.round(stage.server), stage.server)
    assert not stage.host.changed
    assert sum(len(c.data) for c in stage.host.clients.values()) == sum(stage.server.sizes.values())


def test_the_teacher_is_the_model_with_which_the_task_ended() -> None:
    stage = Stage()
    assert set(stage.method.sent(stage.server).values()) == {None}  # type: ignore[attr-defined]
    stage.end_task()
    ended = stage.server.params.clone()
    stage.enter(1)
    stage.engine.converse(stage.method.round(stage.server), stage.server)
    assert not torch.equal(stage.server.params, ended)
    assert torch.equal(stage.method.sent(stage.server)["teacher"], ended)  # type: ignore[attr-defined]


def test_the_first_task_is_not_forgotten_class_incremental(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"tasks": 2, "rounds": 6, "batch": 16, "eval_every": 3, "scenario": "class"}
    matrix = {}
    for method in ("icarl", "finetune"):
        changes: dict[str, Any] = {**shared, "method": method, method: {"lr": 0.1}}
        matrix[method] = run("digits", out=tmp_path / method, **changes).accuracy_matrix
    assert matrix["finetune"][-1][0] < 0.1
    assert matrix["icarl"][-1][0] > 0.8
    assert matrix["icarl"][-1][1] > 0.8


def test_workers_and_a_stop_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / name for name in ("alone", "workers", "stopped")]
    for workers, path in zip((1, 2), paths, strict=False):
        run("digits", out=path, workers=workers, **CLASS)
    with monkeypatch.context() as patch:
        stop_after(3, patch)  # in the middle of task 2, where exemplars and teacher are in use
        with pytest.raises(Crash):
            run("digits", out=paths[2], workers=1, **CLASS)
    resume(paths[2])
    for path in paths[1:]:
        same(path, paths[0])


@pytest.mark.parametrize("workers", [1, 2])
def test_no_memory_is_one_clear_line(workers: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"icarl cannot do without exemplars; set memory.kind = 'ring'"):
        run("digits", out=tmp_path / "run", workers=workers, **CLASS, memory={"kind": "none"})


@pytest.mark.parametrize("name", ["lr", "strength"])
def test_settings_that_cannot_work_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"icarl.{name} = 0.0 must be positive"):
        resolve({"method": "icarl", "icarl": {name: 0}})
