"""The hand-written gradient of a plain MLP is autograd's, to the bit."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from cflag.data.heads import Heads
from cflag.data.samples import Samples
from cflag.learning.dense import DenseNet, cross_entropy_slope
from cflag.learning.learner import Learner
from cflag.process import one_thread


def mlp(widths: list[int], flatten: bool) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()] if flatten else []
    for k, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.ReLU(), nn.Linear(inputs, outputs)] if k else [nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(2, 70), min_size=2, max_size=5),
    st.integers(2, 70),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**31),
)
def test_it_is_autograds_gradient_to_the_bit(
    widths: list[int], samples: int, masked: bool, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    model = mlp(widths, flatten=True).to(dtype)
    classes = widths[-1]
    y = torch.randint(0, classes, (samples,))
    shift = torch.zeros(samples, classes, dtype=dtype)
    if masked:
        shift = shift.masked_fill(torch.rand(samples, classes) < 0.4, -torch.inf)
        shift[torch.arange(samples), y] = 0
    x = torch.randn(samples, widths[0], dtype=dtype)
    dense = DenseNet.of(model)
    assert dense is not None
    with one_thread():
        value, flat = dense.value_and_grad(x, lambda outputs: cross_entropy_slope(outputs + shift, y))
        loss = F.cross_entropy(model(x) + shift, y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
    assert value == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)  # an exact sum, where torch rounds every partial one
    assert torch.equal(flat, torch.cat([g.reshape(-1) for g in grads]))


def test_a_learner_takes_it_for_plain_mlps_and_its_own_loss_only() -> None:
    torch.manual_seed(0)
    heads = Heads(torch.tensor([[True, True, False, False], [False, False, True, True]]), by_task=True)
    learner = Learner(mlp([6, 5, 4], flatten=False), heads)
    samples = Samples(torch.randn(9, 6), torch.arange(9) % 4, (torch.arange(9) % 4) // 2)

    def same_loss(outputs: Tensor, given: Samples) -> Tensor:  # through autograd, because it is given
        return learner.loss(outputs, given)

    by_hand, by_autograd = learner.value_and_grad(samples), learner.value_and_grad(samples, same_loss)
    assert learner._dense is not None
    assert by_hand[0] == pytest.approx(by_autograd[0], rel=1e-6)
    assert torch.equal(by_hand[1], by_autograd[1])
    assert Learner(mlp([6, 5, 4], flatten=False), heads, loss=same_loss)._dense is None


shared = nn.Linear(3, 3)
frozen = nn.Linear(3, 3)
frozen.weight.requires_grad_(False)


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(3, 2),
        nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)),
        nn.Sequential(shared, nn.ReLU(), shared),
        nn.Sequential(frozen, nn.ReLU(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.ReLU()),
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)),
        nn.Sequential(nn.Flatten(0), nn.Linear(3, 2)),
        nn.Sequential(nn.Flatten()),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2)),
    ],
)
def test_anything_else_is_left_to_autograd(model: nn.Module) -> None:
    assert DenseNet.of(model) is None
