"""The learner, heads, optimizers and adaptive rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import astuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from cflag import Experiment, Source
from cflag.config import resolve
from cflag.data.heads import Heads
from cflag.data.samples import Samples
from cflag.errors import UserError
from cflag.learning.forgetting import forgetting_term
from cflag.learning.learner import Learner
from cflag.learning.optimizers import Optimizer, make_optimizer
from cflag.learning.rates import Overlap, RateRule, Rates

ALL_OPEN = Heads(torch.ones(1, 3, dtype=torch.bool), by_task=True)


def loss_of(learner: Learner, samples: Samples) -> Tensor:
    return learner.loss(learner.model(learner.normalise(samples.x)), samples)


def network() -> nn.Module:
    """Return a model with parameters of several shapes, batch norm among them; the same one every time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3)
    )


def images(count: int = 6, outputs: int = 3, task: int = 0) -> Samples:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 2, 4, 4, generator=generator)
    return Samples(x, torch.randint(0, outputs, (count,), generator=generator), torch.full((count,), task))


# Learner --------------------------------------------------------------------------------------------------------------


def test_gradient_is_that_of_every_parameter_in_order() -> None:
    samples, reference = images(), network()
    loss = F.cross_entropy(reference(samples.x), samples.y)
    loss.backward()
    value, gradient = Learner(network(), ALL_OPEN).value_and_grad(samples)
    grads = [p.grad for p in reference.parameters()]
    assert value == pytest.approx(loss.item(), rel=1e-6)
    torch.testing.assert_close(gradient, flat(g for g in grads if g is not None))


def test_gradient_agrees_with_finite_differences_of_the_loss() -> None:
    torch.manual_seed(1)
    learner = Learner(nn.Sequential(nn.Flatten(), nn.Linear(32, 3)).double(), ALL_OPEN, lambda x: x.double() / 2)
    samples, start = images(), learner.params.clone()
    gradient = learner.value_and_grad(samples)[1]
    for k in range(0, len(start), 7):
        ends = []
        for step in (1e-6, -1e-6):
            learner.params.copy_(start)
            learner.params[k] += step
            ends.append(loss_of(learner, samples).item())
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float(gradient[k]), abs=1e-6)


def test_gradients_are_new_vectors_that_later_ones_leave_alone() -> None:
    learner = Learner(nn.Sequential(nn.Flatten(), nn.Linear(32, 3, bias=False)), ALL_OPEN)
    first = learner.value_and_grad(images(6))[1]
    kept = first.clone()
    learner.value_and_grad(images(9))
    learner.params.zero_()
    assert torch.equal(first, kept)


def test_channels_last_is_the_same_model_in_another_order() -> None:
    samples, plain, fast = images(), Learner(network(), ALL_OPEN), Learner(network(), ALL_OPEN, channels_last=True)
    assert torch.equal(fast.params, flat(network().parameters(), channels_last=True))
    torch.testing.assert_close(fast.outputs(samples), plain.outputs(samples))
    gradient = fast.value_and_grad(samples)[1]
    fast.load(gradient, fast.buffers)
    torch.testing.assert_close(flat(fast.model.parameters()), plain.value_and_grad(samples)[1])


def test_a_plain_model_is_given_plain_inputs() -> None:
    """With channels last a strided 1x1 convolution of few channels would corrupt memory, whoever made the input."""
    made = images().x.contiguous(memory_format=torch.channels_last)
    assert Learner(network(), ALL_OPEN).inputs(made).is_contiguous()
    fast = Learner(network(), ALL_OPEN, channels_last=True)
    assert fast.inputs(images().x).is_contiguous(memory_format=torch.channels_last)


def test_a_model_of_the_users_own_may_use_view() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.dense = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(3 * 5 * 5, 4)

        def forward(self, x: Tensor) -> Tensor:
            seen = self.convolution(x)
            y: Tensor = self.dense(seen.view(len(x), -1))
            return y

    x, y = torch.rand(40, 2, 5, 5), torch.arange(40) % 4
    source = Source.from_tensors((x, y), (x, y))
    config = resolve({"source": "custom", "model": "custom", "tasks": 2, "clients": 2})
    learner = Experiment(config, source, Viewing()).learner
    assert len(learner.value_and_grad(Samples(x, y, torch.zeros(40, dtype=torch.long)))[1]) == 54 + 3 + 300 + 4


def test_parameters_are_views_of_the_flat_vector_both_ways() -> None:
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    learner, x = Learner(model, ALL_OPEN), images().x
    assert torch.equal(learner.params, flat(before))

    output = model.eval()(x)
    learner.params *= 2
    assert all(torch.equal(p, 2 * old) for p, old in zip(model.parameters(), before, strict=True))
    assert not torch.equal(model(x), output)

    with torch.no_grad():
        next(model.parameters()).fill_(7.0)
    first = before[0].numel()
    assert torch.equal(learner.params[:first], torch.full((first,), 7.0))
    assert torch.equal(learner.params[first:], 2 * torch.cat([p.flatten() for p in before[1:]]))


def test_load_copies_a_global_model_and_stays_apart_from_it() -> None:
    learner = Learner(network(), ALL_OPEN)
    vector, views = learner.params, [p.data_ptr() for p in learner.model.parameters()]
    params, buffers = torch.randn_like(learner.params), torch.rand_like(learner.buffers)
    learner.load(params, buffers)
    assert learner.params is vector
    assert [p.data_ptr() for p in learner.model.parameters()] == views
    assert torch.equal(flat(learner.model.parameters()), params)
    assert torch.equal(_statistics(learner.model), buffers)
    learner.params += 1
    learner.buffers += 1
    assert not torch.equal(learner.params, params)
    assert not torch.equal(learner.buffers, buffers)


def flat(tensors: Iterable[Tensor], channels_last: bool = False) -> Tensor:
    """Tensors one after the other; those of convolutions with their channels last, where wanted."""
    ordered = [t.permute(0, 2, 3, 1) if channels_last and t.dim() == 4 else t for t in tensors]
    return torch.cat([t.detach().flatten() for t in ordered])


def correct(learner: Learner, samples: Samples) -> Tensor:
    """Which samples the scenario counts as right."""
    return learner.tested(learner.outputs(samples), samples)[:, 0 if learner.heads.by_task else 1]


def _statistics(model: nn.Module) -> Tensor:
    (norm,) = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return torch.cat([norm.running_mean, norm.running_var])


def test_batch_norm_statistics_are_buffers_that_move_in_training_alone() -> None:
    model, samples = network(), images()
    learner = Learner(model, ALL_OPEN)
    count = sum(p.numel() for p in network().parameters())
    assert learner.params.numel() == count
    assert torch.equal(learner.buffers, torch.tensor([0.0] * 4 + [1.0] * 4))

    correct(learner, samples)
    assert torch.equal(learner.buffers, torch.tensor([0.0] * 4 + [1.0] * 4))

    params = learner.params.clone()
    learner.value_and_grad(samples)
    convolution = next(iter(network().children()))
    seen = convolution(samples.x).detach().transpose(0, 1).flatten(1)
    expected = torch.cat([0.1 * seen.mean(1), 0.9 + 0.1 * seen.var(1)])
    torch.testing.assert_close(learner.buffers, expected)
    assert torch.equal(_statistics(model), learner.buffers)
    assert torch.equal(learner.params, params)


def test_correct_uses_the_running_statistics_and_not_the_batchs() -> None:
    learner, samples = Learner(network(), ALL_OPEN), images(40)
    together = correct(learner, samples)
    assert torch.equal(together, learner.outputs(samples, batch=1).argmax(1) == samples.y)
    reference = network().eval()
    assert torch.equal(together, reference(samples.x).argmax(1) == samples.y)
    learner.value_and_grad(samples)  # leaves the model in training mode
    learner.load(learner.params, torch.tensor([0.0] * 4 + [1.0] * 4))
    assert torch.equal(correct(learner, samples), together)


def test_correct_of_no_samples_is_empty() -> None:
    assert len(correct(Learner(network(), ALL_OPEN), images()[:0])) == 0


def test_frozen_parameters_are_no_part_of_the_vector_and_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 5), nn.Linear(5, 3))
    for p in model[1].parameters():
        p.requires_grad_(False)
    before = [p.clone() for p in model[1].parameters()]
    learner = Learner(model, ALL_OPEN)
    assert learner.params.numel() == 5 * 3 + 3
    assert learner.value_and_grad(images())[1].numel() == 5 * 3 + 3
    learner.params.fill_(9.0)
    assert all(torch.equal(p, old) for p, old in zip(model[1].parameters(), before, strict=True))


class Unused(nn.Module):
    """A model that forgets to use some of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.ones(4))
        torch.manual_seed(0)
        self.layer = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.flatten(1))
        return y


def test_unused_parameter_has_zero_gradient_in_its_place() -> None:
    gradient = Learner(Unused(), ALL_OPEN).value_and_grad(images())[1]
    assert torch.equal(gradient[:4], torch.zeros(4))
    assert gradient[4:].abs().min() > 0


def test_shared_parameter_is_in_the_vector_once_and_gets_both_gradients() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    samples = Samples(torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1]), torch.zeros(5).long())
    learner = Learner(model, ALL_OPEN)
    gradient = learner.value_and_grad(samples)[1]
    weight = layer.weight.detach().clone().requires_grad_()
    bias = layer.bias.detach().clone().requires_grad_()
    outputs = F.linear(F.linear(samples.x, weight, bias).tanh(), weight, bias)
    expected = torch.autograd.grad(F.cross_entropy(outputs, samples.y), [weight, bias])
    torch.testing.assert_close(gradient, torch.cat([g.flatten() for g in expected]))


def test_models_without_anything_to_train_are_refused() -> None:
    frozen = nn.Linear(2, 3).requires_grad_(False)
    for model in (nn.Flatten(), frozen):
        with pytest.raises(UserError, match="no parameters to train"):
            Learner(model, ALL_OPEN)


def test_mixed_dtypes_are_refused() -> None:
    with pytest.raises(UserError, match="parameters must all have one dtype"):
        Learner(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3).double()), ALL_OPEN)
    model = nn.Linear(2, 3)
    model.register_buffer("one", torch.zeros(2))
    model.register_buffer("other", torch.zeros(2, dtype=torch.float64))
    with pytest.raises(UserError, match="buffers must all have one dtype"):
        Learner(model, ALL_OPEN)


def test_own_loss_replaces_cross_entropy() -> None:
    learner = Learner(nn.Linear(2, 1, bias=False), ALL_OPEN, loss=lambda out, s: (out.sum(1) - s.y).square().mean())
    learner.params.copy_(torch.tensor([1.0, 2.0]))
    samples = Samples(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([1, 1]), torch.zeros(2).long())
    value, gradient = learner.value_and_grad(samples)
    # Residuals 3 - 1 = 2 and 2 - 1 = 1: loss (4 + 1) / 2, gradient (2·2·(1, 1) + 2·1·(0, 1)) / 2.
    assert value == 2.5
    assert gradient.tolist() == [2.0, 3.0]


# Heads ----------------------------------------------------------------------------------------------------------------

OWN = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]], dtype=torch.bool)
"""Three tasks with two outputs each."""


def answers(logits: list[list[float]], labels: list[int], tasks: list[int]) -> tuple[nn.Module, Samples]:
    """Return a model that answers sample k with the k-th logits, whatever happens to be asked."""
    table = torch.tensor(logits)
    model = nn.Linear(len(table), table.shape[1], bias=False)
    with torch.no_grad():
        model.weight.copy_(table.T)
    return model, Samples(torch.eye(len(table)), torch.tensor(labels), torch.tensor(tasks))


def log_sum_exp(values: list[float]) -> float:
    return math.log(sum(map(math.exp, values)))


LOGITS = [2.5, 1.0, 2.0, 3.0, 1.5, 0.5]


@pytest.mark.parametrize("current", [0, 1, 2])
def test_task_incremental_loss_and_accuracy_see_only_the_own_head(current: int) -> None:
    model, samples = answers([LOGITS] * 3, [1, 3, 4], [0, 1, 2])
    learner = Learner(model, Heads(OWN, by_task=True))
    learner.seen = tuple(range(current + 1))
    expected = [log_sum_exp([2.5, 1]) - 1, log_sum_exp([2, 3]) - 3, log_sum_exp([1.5, 0.5]) - 1.5]
    assert loss_of(learner, samples).item() == pytest.approx(sum(expected) / 3, rel=1e-5)
    assert correct(learner, samples).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("task", "current", "opened"),
    [(0, 0, 2), (0, 1, 4), (0, 2, 6), (1, 0, 4), (1, 1, 4), (1, 2, 6), (2, 0, 6), (2, 1, 6), (2, 2, 6)],
)
def test_class_incremental_heads_are_open_up_to_the_current_or_the_samples_task(
    task: int, current: int, opened: int
) -> None:
    label = 2 * task
    model, samples = answers([LOGITS], [label], [task])
    learner = Learner(model, Heads(OWN, by_task=False))
    learner.seen = tuple(range(current + 1))
    expected = log_sum_exp(LOGITS[:opened]) - LOGITS[label]
    assert loss_of(learner, samples).item() == pytest.approx(expected, rel=1e-5)
    masked = learner.heads.mask(torch.tensor([LOGITS]), samples.task, learner.seen)[0].tolist()
    assert masked == LOGITS[:opened] + [-math.inf] * (6 - opened)


def test_class_incremental_answers_may_be_wrong_across_tasks() -> None:
    # The best of the first two outputs is 0; of the first four still; of all six it is 5.
    model, samples = answers([[5.0, 1.0, 2.0, 4.0, 1.0, 6.0]], [0], [0])
    learner = Learner(model, Heads(OWN, by_task=False))
    found = []
    for current in range(3):
        learner.seen = tuple(range(current + 1))
        found.append(bool(correct(learner, samples)))
    assert found == [True, True, False]


def test_heads_follow_classes_in_any_order() -> None:
    own = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 1]], dtype=torch.bool)
    appended, apart = Heads(own, by_task=False), Heads(own, by_task=True)
    assert appended.open(0, (0,)).tolist() == [False, False, True, False]
    assert appended.open(0, (0, 1)).tolist() == [True, False, True, False]
    assert appended.open(2, (0, 2)).tolist() == [False, True, True, True]  # clients need not have come by task 1
    assert all(torch.equal(apart.open(task, (0, 1, 2)), own[task]) for task in range(3))


@given(
    st.booleans(),
    st.integers(0, 2),
    st.lists(st.integers(0, 2), min_size=1, max_size=8),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=30)
def test_closed_outputs_get_exactly_zero_gradient_and_open_ones_some(
    by_task: bool, current: int, tasks: list[int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    of = torch.tensor(tasks)
    labels = 2 * of + torch.randint(0, 2, (len(tasks),), generator=generator)
    torch.manual_seed(seed)
    learner = Learner(nn.Linear(5, 6), Heads(OWN, by_task))
    learner.seen = tuple(range(current + 1))
    samples = Samples(torch.rand(len(tasks), 5, generator=generator) + 0.1, labels, of)
    gradient = learner.value_and_grad(samples)[1]
    weight, bias = gradient[:30].view(6, 5), gradient[30:]
    opened = set(tasks) if by_task else set(range(max(current, *tasks) + 1))
    for output in range(6):
        if output // 2 in opened:
            assert bias[output] != 0
        else:
            assert bias[output] == 0
            assert weight[output].abs().max() == 0
    assert gradient.isfinite().all()


def test_all_heads_open_is_plain_cross_entropy() -> None:
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    tasks = torch.tensor([0, 1, 2, 1])
    everything = Heads(torch.ones(3, 6, dtype=torch.bool), by_task=True)
    assert torch.equal(everything.mask(logits, tasks, (0,)), logits)
    last = Heads(OWN, by_task=False)
    assert torch.equal(last.mask(logits, tasks, (0, 1, 2)), logits)
    model, samples = answers(logits.tolist(), [0, 3, 5, 2], tasks.tolist())
    loss = loss_of(Learner(model, everything), samples)
    torch.testing.assert_close(loss, F.cross_entropy(logits, samples.y))


# Optimizers -----------------------------------------------------------------------------------------------------------

THEIRS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.05),
}


@pytest.mark.parametrize("name", THEIRS)
def test_optimizer_walks_the_way_of_torchs_own(name: str) -> None:
    start = torch.tensor([1.0, -2.0, 3.0, 0.5, 1.0], dtype=torch.float64)
    scale = torch.tensor([1.0, 10.0, 0.1, 3.0, 1e-8], dtype=torch.float64)

    def gradient(x: Tensor) -> Tensor:
        return scale * (x + torch.sin(3 * x))  # the last as small as Adam's ε

    theirs = start.clone().requires_grad_()
    ours, optimizer = start, make_optimizer(name)
    reference = THEIRS[name]([theirs])
    for _ in range(12):
        theirs.grad = gradient(theirs.detach())
        reference.step()
        ours = ours - 0.05 * optimizer(gradient(ours))
        torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-6)
    assert (ours - start)[:4].abs().min() > 0.01


@pytest.mark.parametrize("name", THEIRS)
def test_optimizer_leaves_the_direction_alone_and_starts_fresh(name: str) -> None:
    direction = torch.tensor([1.0, -2.0])
    first = make_optimizer(name)
    one = first(direction).clone()
    first(3 * direction)
    assert torch.equal(direction, torch.tensor([1.0, -2.0]))
    assert torch.equal(make_optimizer(name)(direction), one)


def test_first_step_of_adam_is_the_sign_and_of_the_others_the_direction() -> None:
    direction = torch.tensor([0.3, -200.0, 0.0])

    def first(optimizer: Optimizer) -> list[float]:
        return optimizer(direction).tolist()

    assert first(make_optimizer("adam")) == pytest.approx([1, -1, 0], abs=1e-4)
    assert first(make_optimizer("sgd")) == first(make_optimizer("momentum")) == direction.tolist()


# Rates ----------------------------------------------------------------------------------------------------------------

positive = st.floats(1e-3, 1e3)
vectors = st.lists(st.floats(-10, 10), min_size=3, max_size=3).map(lambda v: torch.tensor(v, dtype=torch.float64))


def facing(v: Tensor, m: Tensor) -> Tensor:
    """Return v or -v, whichever does not point against m."""
    return v if float(m @ v) >= 0 else -v


@given(vectors, vectors, st.floats(0.1, 10), st.floats(0.01, 0.99), st.floats(1e-3, 1), st.floats(0.05, 5))
@settings(deadline=None, max_examples=50)
def test_transference_beta_minimises_the_clients_part_of_the_forgetting_term(
    m: Tensor, a: Tensor, smoothness: float, slack: float, beta: float, weight: float
) -> None:
    a = facing(a, m)
    inner, steps = float(m @ a), float(a @ a)
    assume(inner > 1e-3)
    alpha = slack / smoothness
    rates = RateRule(smoothness, alpha, beta).adapt(Overlap.between(m, a, m), weight)
    assert (rates.alpha, rates.case, rates.capped) == (alpha, "transference", 0)

    def cost(beta: float) -> float:
        return smoothness / 2 * weight * steps * beta**2 - (1 - smoothness * alpha) * inner * beta

    # A grid from far below to far above any candidate, and a fine one around the answer.
    grid = np.concatenate([np.geomspace(1e-9, 1e6, 300), rates.beta * np.linspace(0.9, 1.1, 41)])
    assert rates.beta > 0
    assert all(cost(rates.beta) <= cost(b) + 1e-12 * abs(cost(b)) for b in grid)


@given(vectors, vectors, positive, st.floats(1e-3, 1), st.floats(1e-3, 1), positive)
@settings(deadline=None, max_examples=50)
def test_interference_alpha_restores_the_memory_steps_progress(
    m: Tensor, a: Tensor, smoothness: float, alpha: float, beta: float, weight: float
) -> None:
    a = -facing(a, m)
    inner, memory = float(m @ a), float(m @ m)
    assume(memory > 1e-3)
    rates = RateRule(smoothness, alpha, beta).adapt(Overlap.between(m, a, m), weight)
    assert (rates.beta, rates.case, rates.capped) == (beta, "interference", 0)
    assert rates.alpha >= alpha
    along = float(m @ (rates.alpha * m + rates.beta * a))
    assert along == pytest.approx(alpha * memory, rel=1e-9, abs=1e-9 * abs(inner))


@given(vectors, vectors, vectors, st.floats(1e-3, 1), st.floats(1e-3, 1))
@settings(deadline=None, max_examples=50)
def test_interference_with_an_optimizer_removes_it_along_its_own_direction(
    m: Tensor, a: Tensor, q: Tensor, alpha: float, beta: float
) -> None:
    a, q = -facing(a, m), facing(q, m)
    assume(float(m @ q) > 1e-3)
    rates = RateRule(5.0, alpha, beta).adapt(Overlap.between(m, a, q), 1.0)
    along = float(m @ (rates.alpha * q + rates.beta * a))
    assert along == pytest.approx(alpha * float(m @ q), rel=1e-9, abs=1e-9 * abs(float(m @ a)))


def test_rates_by_hand() -> None:
    rule = RateRule(smoothness=5.0, alpha=0.1, beta=0.2)

    def adapted(inner: float) -> tuple[object, ...]:
        return astuple(rule.adapt(Overlap(inner, steps=16.0, memory=2.0), weight=0.5))

    # β_i = (1 - 0.5) · 4 / (5 · 0.5 · 16) = 0.05
    assert adapted(4.0) == (0.1, pytest.approx(0.05), "transference", 0)
    # α_i = 0.1 + 0.2 · 4 / 2 = 0.5
    assert adapted(-4.0) == (pytest.approx(0.5), 0.2, "interference", 0)
    # Orthogonal steps need no correction.
    assert adapted(0.0) == (0.1, 0.2, "interference", 0)


@given(st.floats(-100, 100), positive, positive, st.floats(0.1, 5), st.floats(1e-4, 10), st.floats(1e-4, 10))
@settings(deadline=None, max_examples=50)
def test_caps_bind_and_are_counted_where_they_act(
    inner: float, steps: float, memory: float, weight: float, alpha_cap: float, beta_cap: float
) -> None:
    overlap = Overlap(inner, steps, memory)
    free = RateRule(5.0, 0.05, 0.05).adapt(overlap, weight)
    capped = RateRule(5.0, 0.05, 0.05, alpha_cap, beta_cap).adapt(overlap, weight)
    assert capped.case == free.case
    if free.case == "transference":
        assert (capped.alpha, capped.beta) == (free.alpha, min(free.beta, beta_cap))
        assert capped.capped == (1 if free.beta > beta_cap else 0)
    else:
        assert (capped.alpha, capped.beta) == (min(free.alpha, alpha_cap), free.beta)
        assert capped.capped == (1 if free.alpha > alpha_cap else 0)


@given(st.floats(-100, 100), positive, st.floats(0.1, 5))
@settings(deadline=None, max_examples=30)
def test_no_memory_and_rules_that_are_off_leave_the_plain_rates(inner: float, steps: float, weight: float) -> None:
    nothing = torch.zeros(3)
    a = torch.tensor([1.0, -2.0, 3.0])
    rule = RateRule(5.0, 0.03, 0.07, 1e-6, 1e-6)
    assert rule.adapt(Overlap.between(nothing, a, nothing), weight) == Rates(0.03, 0.07, "none")
    off = RateRule(5.0, 0.03, 0.07, 1e-6, 1e-6, frozenset())
    case = "transference" if inner > 0 else "interference"
    assert off.adapt(Overlap(inner, steps, 1.0), weight) == Rates(0.03, 0.07, case)


def test_one_rule_acts_without_the_other() -> None:
    agree, clash = Overlap(4.0, 16.0, 2.0), Overlap(-4.0, 16.0, 2.0)
    plain = RateRule(5.0, 0.1, 0.2, rules=frozenset({"interference"}))
    assert plain.adapt(agree, 1.0) == Rates(0.1, 0.2, "transference")
    assert plain.adapt(clash, 1.0).alpha == pytest.approx(0.5)
    other = RateRule(5.0, 0.1, 0.2, rules=frozenset({"transference"}))
    assert other.adapt(clash, 1.0) == Rates(0.1, 0.2, "interference")
    assert other.adapt(agree, 1.0).beta == pytest.approx(0.025)


def test_overlap_measures_three_inner_products() -> None:
    m, a, q = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0]), torch.tensor([5.0, 6.0])
    assert Overlap.between(m, a, q) == Overlap(inner=-5.0, steps=25.0, memory=17.0)


def test_forgetting_term_by_hand() -> None:
    # (5/2) · 0.2² · 16 - 0.2 · (1 - 5 · 0.1) · 4 = 1.6 - 0.4
    rule = RateRule(smoothness=5.0, alpha=0.1, beta=0.2)
    assert forgetting_term(Overlap(4.0, 16.0, 2.0), rule) == pytest.approx(1.2)
    assert forgetting_term(Overlap(-4.0, 16.0, 2.0), rule) == pytest.approx(2.0)


def test_forgetting_term_at_the_servers_beta_is_negative_and_least() -> None:
    overlap = Overlap(4.0, 16.0, 2.0)
    best = RateRule(5.0, 0.1, 0.2).adapt(overlap, weight=1.0).beta
    # At β* = (1 - Lα) Λ / (L ‖a‖²) the term is -((1 - Lα) Λ)² / (2 L ‖a‖²) = -4 / 160.
    assert forgetting_term(overlap, RateRule(5.0, 0.1, best)) == pytest.approx(-0.025)
