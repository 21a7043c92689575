"""The hand-written gradient of a plain MLP is autograd's up to rounding, and the same to the bit in any stack."""

from __future__ import annotations

import warnings
from itertools import pairwise
from math import isfinite

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from cflag.data.heads import Heads
from cflag.data.samples import Samples
from cflag.learning.dense import DenseNet, cross_entropy_slopes
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
def test_it_is_autograds_gradient_up_to_rounding(
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
        (value,), (flat,) = dense.values_and_grads(
            dense.nets(parameters_to_vector(model.parameters()).detach().numpy()[None]),
            x.numpy()[None],
            lambda outputs: cross_entropy_slopes(outputs + shift.numpy().T, y.numpy()),
        )
        loss = F.cross_entropy(model(x) + shift, y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
    rtol, atol = (1e-5, 1e-6) if dtype == torch.float32 else (1e-12, 1e-14)
    assert_allclose(value, loss.item(), rtol, atol)
    assert_allclose(flat, torch.cat([g.reshape(-1) for g in grads]).numpy(), rtol, atol)


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
    assert_allclose(by_hand[1].numpy(), by_autograd[1].numpy(), rtol=1e-5, atol=1e-7)
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


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 70), min_size=2, max_size=4),
    st.integers(1, 40),
    st.integers(2, 9),
    st.sampled_from(["float32", "float64"]),
    st.integers(0, 2**31),
)
def test_what_a_net_gets_does_not_depend_on_the_nets_beside_it(
    widths: list[int], samples: int, nets: int, dtype: str, seed: int
) -> None:
    dense = DenseNet.of(mlp(widths, flatten=True).to(getattr(torch, dtype)))
    assert dense is not None
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(nets, dense.count)).astype(dtype) / 3
    x = draw.normal(size=(nets, samples, widths[0])).astype(dtype)
    y = draw.integers(0, widths[-1], (nets, samples))

    def gradients(some: slice) -> tuple[list[float], Tensor]:
        own = dense.nets(rows[some].copy())
        return dense.values_and_grads(own, x[some].copy(), lambda outputs: cross_entropy_slopes(outputs, y[some]))

    values, grads = gradients(slice(None))
    for k in range(nets):
        value, grad = gradients(slice(k, k + 1))
        assert value == values[k : k + 1]
        assert torch.equal(grad[0], grads[k])


def test_a_net_that_runs_away_says_nothing_and_is_not_finite() -> None:
    dense = DenseNet.of(mlp([3, 4, 2], flatten=True))
    assert dense is not None
    rows, x = np.full((1, dense.count), 1e30, np.float32), np.full((1, 2, 3), 1e30, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (value,), _ = dense.values_and_grads(
            dense.nets(rows), x, lambda outputs: cross_entropy_slopes(outputs, np.zeros((1, 2), int))
        )
    assert not isfinite(value)
