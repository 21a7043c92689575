"""Clients side by side: stacks change no bit of any run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cflag import Source, registry, run
from cflag.client import Client
from cflag.config import flatten, load_raw, merge, resolve
from cflag.conversation import Answer, Ask, Conversation
from cflag.data.heads import Heads
from cflag.data.samples import Samples
from cflag.engines.local import LocalEngine
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.learning.dense import Array, DenseNet, Nets, aligned_rows
from cflag.learning.learner import Learner
from cflag.learning.stack import Seat, Stack, joined
from cflag.methods.base import FedAvg, Method
from cflag.server import Server
from tests.support.stacks import SEVEN, everything, twice

pytestmark = pytest.mark.usefixtures("no_figures")


def learner_of(widths: tuple[int, ...], classes: int, seed: int = 0) -> Learner:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in zip(widths, (*widths[1:], classes), strict=True):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    own = torch.arange(classes) < (classes + 1) // 2
    return Learner(nn.Sequential(*layers[:-1]), Heads(torch.stack([own, torch.ones_like(own)]), by_task=True))


def drawn(count: int, width: int, classes: int) -> Samples:
    y = torch.randint(0, (classes + 1) // 2, (count,))
    return Samples(torch.randn(count, width), y, torch.zeros_like(y))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=3).map(tuple),
    st.integers(2, 40),
    st.lists(st.integers(1, 3), min_size=2, max_size=9),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_each_client_of_a_stack_has_the_gradient_that_it_has_alone(
    widths: tuple[int, ...], classes: int, kinds: list[int], closes: bool, seed: int
) -> None:
    """Three sizes of mini-batches among them, so that groups are cut out of the stack, too."""
    learner = learner_of(widths, classes, seed)
    stack = Stack(learner, len(kinds))
    batches = [[drawn(7 * kind, widths[0], classes) for kind in (first, 2)] for first in kinds]
    start = learner.params.clone()
    shut = torch.zeros(classes).masked_fill(torch.arange(classes) == classes - 1, -torch.inf) if closes else None

    def path(place: Any, mine: list[Samples]) -> tuple[list[float], Tensor]:
        place.close(shut if len(mine[0]) > 7 else None)
        losses = []
        for batch in mine:
            value, gradient = place.value_and_grad(batch, None)
            place.params -= 0.1 * gradient
            losses.append(value)
        return losses, place.params.clone()

    seats = stack.seats(len(kinds), start)
    for _ in range(2):  # the first time, a shape is computed both ways
        for seat in seats:
            seat.params.copy_(start)
        together = stack.run([partial(path, *pair) for pair in zip(seats, batches, strict=True)])
    for mine, (losses, end) in zip(batches, together, strict=True):
        learner.load(start, learner.buffers)
        learner.closed = shut if len(mine[0]) > 7 else None
        for batch, loss in zip(mine, losses, strict=True):
            value, gradient = learner.value_and_grad(batch)
            learner.params -= 0.1 * gradient
            assert value == loss
        assert torch.equal(learner.params, end)


METHODS = sorted(set(registry.names("method")) - {"target"})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scenario", ["task", "class"])
def test_no_methods_numbers_change(method: str, scenario: str, tmp_path: Path) -> None:
    twice(tmp_path, method=method, scenario=scenario)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "cflag", "cflag": {"estimator": "minibatch"}, "optimizer": "adam"},
        {"method": "cflag", "cflag": {"smoothness": "auto"}},
        {"method": "cflag", "table_bytes": 60_000, "model": "linear"},  # tables do not fit and are made again
        {"method": "replay", "clients_per_round": 3},
        {"method": "replay", "schedule": {"kind": "staggered", "heads": "own"}, "scenario": "class"},
        {
            "method": "replay",
            "schedule": {"kind": "online"},
            "memory": {"kind": "reservoir"},
            "augment": {"noise": 0.1},
        },
        {"method": "cflag-tracked", "preset": "diabetes", "zeta": 1.0},
    ],
    ids=str,
)
def test_nothing_around_methods_changes_either(options: dict[str, Any], tmp_path: Path) -> None:
    twice(tmp_path, **options)


class Restless(FedAvg):
    """A user's method that does what methods may: draws from torch, and asks for gradients without a graph."""

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        if client.number % 2:
            with torch.no_grad():
                gradient = client.value_and_grad(batch)[1]
                assert not torch.is_grad_enabled()
        else:
            gradient = client.value_and_grad(batch)[1]
            assert torch.is_grad_enabled()
        own = client.value_and_grad(batch, lambda outputs, here: outputs.square().mean())[1]
        return gradient + torch.rand(()) * own + 0.1 * client.outputs(batch).mean()


def test_what_methods_draw_from_torch_and_whether_they_want_graphs_stays_theirs(tmp_path: Path) -> None:
    twice(tmp_path, method=Restless)


def test_shapes_whose_stacked_gradients_differ_are_looped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    true, calls = DenseNet.values_and_grads, []

    def rounded(self: DenseNet, nets: Nets, x: Array, slopes: Any) -> tuple[list[float], Tensor]:
        values, gradients = true(self, nets, x, slopes)
        if len(x) == 1:
            return values, gradients
        calls.append(x.shape[1])
        return values, gradients * (1 + 2e-7)

    monkeypatch.setattr(DenseNet, "values_and_grads", rounded)
    twice(tmp_path, method="finetune")
    assert calls
    assert len(calls) == len(set(calls))  # each shape was tried once


@pytest.mark.parametrize("widths", [(64, 8, 8, 10), (8, 8, 10), (20, 4), (561, 32, 6), (10, 64, 1), (64, 64, 10)])
def test_a_shape_that_may_be_stacked_never_differs(widths: tuple[int, ...]) -> None:
    learner = learner_of(widths[:-1], widths[-1])
    dense = learner._dense
    assert dense is not None
    stacked = 0
    for samples in (1, 2, 3, 4, 5, 6, 8, 13, 16, 32, 33):
        if not dense.stacks(samples):
            continue
        stacked += 1
        for _ in range(20):
            rows = aligned_rows(3, learner.params.numel(), torch.float32).normal_().mul_(0.3)
            batches = [drawn(samples, widths[0], widths[-1]) for _ in range(3)]
            together = learner.values_and_grads(learner.nets(rows), joined(batches), [None] * 3)
            for row, batch, value, gradient in zip(rows, batches, *together, strict=True):
                learner.params.copy_(row)
                assert learner.value_and_grad(batch)[0] == value
                assert torch.equal(learner.value_and_grad(batch)[1], gradient)
    assert stacked == 11  # numpy's product of stacks is a loop over plain products


class Fails(Method):
    """One client of the stack cannot answer, after a gradient."""

    def round(self, server: Server) -> Conversation:
        yield Ask(self.fail)

    def fail(self, client: Client) -> Answer:
        client.value_and_grad(client.data)
        if client.number == 2:
            raise UserError("client 2 has enough")
        return {}


def test_an_error_in_a_stack_reaches_the_user() -> None:
    with pytest.raises(UserError, match="client 2 has enough"):
        run("digits", method=Fails, **SEVEN)


def test_a_stack_is_used_again_by_fewer_by_another_thread_and_after_a_failure() -> None:
    learner = learner_of((6,), 4)
    stack, start = Stack(learner, 5), learner.params.clone()
    batches = [drawn(8, 6, 4) for _ in range(5)]
    alone = [learner.value_and_grad(batch)[1] for batch in batches]

    def job(seat: Seat, batch: Samples, fails: bool) -> Tensor:
        gradient = seat.value_and_grad(batch, None)[1]
        if fails:
            raise ValueError("enough")
        return gradient

    def together(count: int, failing: int = -1) -> bool:
        seats = stack.seats(count, start)
        jobs = [partial(job, *pair, k == failing) for k, pair in enumerate(zip(seats, batches, strict=False))]
        return all(map(torch.equal, stack.run(jobs), alone))

    assert together(5)
    assert together(3)
    assert together(5)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(together, 5).result()
    assert together(5)
    for failing in (0, 2):  # the first, while all others still wait for what they asked for; one in the middle
        with pytest.raises(ValueError, match="enough"):
            together(5, failing)
        assert together(5)


def test_a_large_net_and_one_that_is_not_dense_are_not_stacked() -> None:
    assert Stack(learner_of((64, 32), 10), 32).size == 32
    assert Stack(learner_of((200, 200), 10), 32).size == 600_000 // 42_210  # (200 + 1) 200 + (200 + 1) 10
    assert Stack(learner_of((1280,), 100), 32).size == 1  # 128,100 parameters: four would fit
    other = Learner(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), Heads(torch.ones(1, 4, dtype=torch.bool), True))
    assert Stack(other, 32).size == 1


def test_those_who_wait_for_others_go_on_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sizes in either order: 32 first for three, 18 first for two: groups of 3, then 5, then 2."""
    learner = learner_of((4,), 2)
    stack, sizes, true = Stack(learner, 5), [], Stack._gradients

    def counted(self: Stack, shape: tuple[int, ...], group: dict[int, Samples]) -> dict[int, Any]:
        sizes.append(len(group))
        return true(self, shape, group)

    monkeypatch.setattr(Stack, "_gradients", counted)
    seats = stack.seats(5, learner.params.clone())

    def path(seat: Seat, counts: tuple[int, int]) -> None:
        for count in counts:
            seat.value_and_grad(drawn(count, 4, 2), None)

    orders = [(32, 18), (32, 18), (18, 32), (32, 18), (18, 32)]
    stack.run([partial(path, *pair) for pair in zip(seats, orders, strict=True)])
    assert sizes == [3, 5, 2, 0]


def test_a_source_of_ones_own_is_stacked_like_any(tmp_path: Path) -> None:
    torch.manual_seed(3)
    x, y = torch.randn(300, 20), torch.arange(300) % 4
    source = Source.from_tensors((x, y), (x[:60], y[:60]))
    for stack in (1, 8):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(20, 4))
        run(source=source, model=model, method="cflag", clients=6, tasks=2, rounds=2, partition="iid",
            workers=2, stack=stack, out=tmp_path / str(stack))  # fmt: skip
    assert everything(tmp_path / "1") == everything(tmp_path / "8")


def test_those_who_answer_side_by_side_keep_their_samples_whatever_the_limit() -> None:
    """A limit below what two clients hold: with a stack of five the others' samples go, and no number changes."""
    ends = []
    for stack in (1, 5):
        config = resolve(merge(load_raw("digits"), flatten({**SEVEN, "method": "cflag", "stack": stack})))
        host = Experiment(config).host()
        host.data.limit = 1
        session = Experiment(config).session(LocalEngine(host, 1))
        session.play(0)
        ends.append(session.server.params.clone())
        assert len(host.data.sizes) == (1 if stack == 1 else 2)  # the last stack has two of the seven
    assert torch.equal(*ends)
