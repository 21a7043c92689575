"""Losses of the user's own: torch's, and functions of outputs and samples; and a sample that is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cflag import Client, Samples, Source, run
from cflag.data.heads import Heads
from cflag.errors import UserError
from cflag.learning.estimators import Components
from cflag.learning.learner import Learner
from cflag.problems.base import find
from tests.support.quick import QUICK

pytestmark = pytest.mark.usefixtures("no_figures")

SPLIT = torch.tensor([[True, True, False, False], [False, False, True, True]])
SHARED = torch.ones(2, 4, dtype=torch.bool)


def learner(loss: Any, own: Tensor = SPLIT, problem: str = "classes", outputs: int = 4) -> Learner:
    torch.manual_seed(0)
    return Learner(nn.Linear(3, outputs), Heads(own, by_task=True), loss=loss, problem=find(problem))


def samples() -> Samples:
    torch.manual_seed(1)
    return Samples(torch.randn(6, 3), torch.tensor([0, 1, 0, 2, 3, 2]), torch.tensor([0, 0, 0, 1, 1, 1]))


def smoothed(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y)


class Own(nn.Module):
    def forward(self, answers: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(answers, labels)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy, smoothed, Own(), nn.CrossEntropyLoss])
def test_a_loss_of_targets_gets_outputs_with_other_heads_closed(loss: Any) -> None:
    if loss is nn.CrossEntropyLoss:
        with pytest.raises(UserError, match=r"CrossEntropyLoss is a class: give an object of it, CrossEntropyLoss\(\)"):
            learner(loss)
        return
    value, gradient = learner(loss).value_and_grad(samples())
    usual, expected = learner(None).value_and_grad(samples())
    assert value == pytest.approx(usual)
    assert torch.allclose(gradient, expected, atol=1e-7)


def test_a_loss_of_samples_gets_outputs_as_they_are() -> None:
    seen: list[tuple[Tensor, Samples]] = []

    def own(outputs: Tensor, samples: Samples) -> Tensor:
        seen.append((outputs, samples))
        return outputs.mean()

    one = learner(own)
    one.value_and_grad(samples())
    assert torch.equal(seen[0][0], one.model(samples().x))
    assert torch.equal(seen[0][1].task, samples().task)


def test_weights_of_classes_count() -> None:
    """Class 1 counts three times: torch's weighted mean, over the open outputs."""
    weight = torch.tensor([1.0, 3.0, 1.0, 1.0])
    here = samples()[torch.arange(3)]
    value, _ = learner(nn.CrossEntropyLoss(weight=weight)).value_and_grad(here)
    each = -learner(None).model(here.x)[:, :2].log_softmax(1)[torch.arange(3), here.y]
    assert value == pytest.approx((each * torch.tensor([1.0, 3.0, 1.0])).sum().item() / 5)


def test_numbers_are_compared_row_by_row() -> None:
    """(n, 1) outputs and (n,) labels would silently make n² differences."""
    here = Samples(torch.randn(5, 3), torch.randn(5), torch.zeros(5, dtype=torch.long))
    one = learner(nn.MSELoss(), torch.ones(1, 1, dtype=torch.bool), "regression", 1)
    value, _ = one.value_and_grad(here)
    assert value == pytest.approx((one.model(here.x)[:, 0] - here.y).square().mean().item())


@pytest.mark.parametrize(
    ("make", "own", "problem", "why"),
    [
        (lambda: nn.CrossEntropyLoss(reduction="sum"), SHARED, "classes", "set reduction = 'mean'"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), SPLIT, "classes", "set label_smoothing = 0"),
        (nn.BCEWithLogitsLoss, SPLIT, "multilabel", r"write it as a function of \(outputs, samples\)"),
        (lambda: "mse", SHARED, "classes", "give a function"),
    ],
)
def test_losses_that_would_go_wrong_are_refused(make: Callable[[], Any], own: Tensor, problem: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        learner(make(), own, problem)


def test_torchs_cross_entropy_runs_and_changes_next_to_nothing(tmp_path: Path) -> None:
    one = run("digits", loss=nn.CrossEntropyLoss(), out=tmp_path / "a", workers=1, **QUICK)
    other = run("digits", out=tmp_path / "b", workers=1, **QUICK)
    assert [m["loss"] for m in one.metrics] == pytest.approx([m["loss"] for m in other.metrics], rel=1e-4)
    with pytest.raises(UserError, match="engine = 'flower-sim' starts processes that know no loss"):
        run("digits", loss=nn.CrossEntropyLoss(), engine="flower-sim", out=tmp_path / "c", **QUICK)


# A sample alone -------------------------------------------------------------------------------------------------------


def sizes(count: int, batch: int, batch_norm: bool) -> list[int]:
    data = Samples(torch.arange(float(count))[:, None], torch.zeros(count), torch.zeros(count, dtype=torch.long))
    client = cast(Client, SimpleNamespace(data=data, pieces=0, batch_norm=batch_norm))
    components = Components(client, batch, "cyclic")
    assert torch.cat([part.x for part in components.parts]).flatten().tolist() == list(range(count))
    assert components.weights == [len(part) / count for part in components.parts]
    return [len(part) for part in components.parts]


def test_a_sample_left_alone_joins_the_mini_batch_before_where_there_is_batch_norm() -> None:
    assert sizes(9, 4, batch_norm=True) == [4, 5]
    assert sizes(9, 4, batch_norm=False) == [4, 4, 1]
    assert sizes(10, 4, batch_norm=True) == [4, 4, 2]
    assert sizes(8, 4, batch_norm=True) == [4, 4]
    assert sizes(1, 4, batch_norm=True) == [1]  # nobody to join
    assert sizes(3, 1, batch_norm=True) == [1, 1, 1]  # asked for


@pytest.mark.parametrize("method", ["cflag", "replay", "fedtrack", "joint"])
def test_batch_norm_learns_where_a_sample_is_left_over(method: str, tmp_path: Path) -> None:
    """Nine samples of a task, mini-batches of four; two local passes are as many steps as without batch norm."""
    torch.manual_seed(0)
    x, y = torch.randn(18, 3), torch.arange(18) % 4
    task = (torch.arange(18) >= 9).long()
    source = Source.from_tensors((x, y), (x, y), tasks=(task, task))
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    same: dict[str, Any] = {"scenario": "domain", "tasks": 2, "clients": 1, "rounds": 2, "batch": 4, "epochs": 2,
                            "workers": 1, "memory": {"per_task": 4, "sample": 4}}  # fmt: skip
    result = run(source=source, model=model, method=method, out=tmp_path / "run", **same)
    assert len(result.metrics) == 4
