"""Clients that answer as one: their numbers are those that each has by itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cflag import Source, run
from cflag.client import Client
from cflag.config import flatten, load_raw, merge, resolve
from cflag.conversation import Answer, Ask, Conversation, Cost, Reply
from cflag.data.samples import Samples
from cflag.engines.host import Host
from cflag.engines.local import LocalEngine
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.learning.choir import Choir, told
from cflag.learning.dense import aligned_rows
from cflag.learning.optimizers import make_optimizer
from cflag.methods.base import FedAvg
from cflag.methods.finetune import Finetune
from cflag.server import Server
from tests.support.stacks import SEVEN, twice

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def choirs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients were in each choir that answered."""
    built: list[int] = []
    true = Choir.__init__

    def counted(self: Choir, stack: Any, clients: Any, method: str) -> None:
        built.append(len(clients))
        true(self, stack, clients, method)

    monkeypatch.setattr(Choir, "__init__", counted)
    return built


@pytest.mark.parametrize("method", ["finetune", "ewc"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("scenario", ["task", "class"])
def test_clients_answer_as_one_and_no_bit_of_a_run_changes(
    method: str, optimizer: str, scenario: str, choirs: list[int], tmp_path: Path
) -> None:
    """Very uneven clients: their mini-batches are of several sizes, and their last ones shorter."""
    twice(tmp_path, method=method, scenario=scenario, zeta=0.1, optimizer=optimizer)
    assert choirs == [5, 2] * 4  # two tasks of two rounds; with stack = 1 none


@pytest.mark.parametrize(
    "options",
    [
        {"clients_per_round": 3},
        {"schedule": {"kind": "staggered", "heads": "own"}, "scenario": "class"},
        {"schedule": {"kind": "online"}},
        {"preset": "diabetes", "zeta": 1.0},  # another loss than the one whose slope is written out
        {"batch": 7, "steps": 30},  # several passes
    ],
    ids=str,
)
def test_nor_does_one_whatever_is_around_the_method(options: dict[str, Any], choirs: list[int], tmp_path: Path) -> None:
    twice(tmp_path, method="finetune", **options)
    assert choirs


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 200),
    st.integers(2, 9),
    st.sampled_from(["sgd", "momentum", "adam"]),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**31),
)
def test_an_optimizer_does_to_rows_what_it_does_to_vectors(
    width: int, count: int, kind: str, dtype: torch.dtype, seed: int
) -> None:
    """torch's kernels treat the ends of vectors unlike their middles, in the last bit: rows keep their own ends."""
    torch.manual_seed(seed)
    gradients = [aligned_rows(count, width, dtype).normal_() for _ in range(3)]
    together = make_optimizer(kind)
    moved = [together(gradient).clone() for gradient in gradients]
    for row in range(count):
        alone = make_optimizer(kind)
        for gradient, matrix in zip(gradients, moved, strict=True):
            assert torch.equal(alone(gradient[row].clone()), matrix[row])


class Shortened(Finetune):
    """Divides by a norm, which is a client's own: what it derives from is elementwise, it is not."""

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        gradient = super().direction(client, batch, **sent)
        shortened: Tensor = gradient / gradient.norm()
        return shortened


def test_a_class_that_derives_from_one_answers_client_by_client(choirs: list[int], tmp_path: Path) -> None:
    twice(tmp_path, method=Shortened)
    assert not choirs


class Mistaken(Shortened):
    """Says of itself what is not true: the norm that it divides by would be that of all clients together."""

    elementwise = ("local_steps",)


def test_who_answers_otherwise_as_one_answers_client_by_client(choirs: list[int], tmp_path: Path) -> None:
    """A method that is mistaken about itself, or a machine whose kernels are others, changes no number."""
    twice(tmp_path, method=Mistaken)
    assert choirs == [5, 5]  # tried once in each task; all other answers are each client's own


class InPlace(Mistaken):
    """Sends its parameters themselves: where clients answered as one they lie where the next who answer have theirs."""

    elementwise = ("local_steps",)

    def round(self, server: Server) -> Conversation:
        mean = yield Ask(self.local_steps, steps=2)
        server.params.copy_(mean.x)

    def local_steps(self, client: Client, steps: int, **sent: Any) -> Answer:
        super().local_steps(client, steps)
        return {"x": client.params}


def test_an_answer_that_is_overwritten_is_compared_as_it_was(choirs: list[int], tmp_path: Path) -> None:
    twice(tmp_path, method=InPlace)
    assert choirs == [5, 5]


class Assigned(Finetune):
    """Elementwise, and written with a new tensor at every step; more steps after the first round."""

    elementwise = ("local_steps",)

    def round(self, server: Server) -> Conversation:
        mean = yield Ask(self.local_steps, steps=1 + server.round)
        server.params -= mean.delta

    def local_steps(self, client: Client, steps: int, **sent: Any) -> Answer:
        for batch in islice(self.batches(client), steps):
            client.params = client.params - self.settings.lr * self.direction(client, batch)
        return {"delta": client.start - client.params, "steps": float(steps)}


def test_parameters_may_be_assigned(choirs: list[int], tmp_path: Path) -> None:
    twice(tmp_path, method=Assigned)
    assert choirs == [5, 2] * 4


@pytest.mark.parametrize("what", ["answer", "cost", "logs"])
def test_all_that_leaves_a_client_is_compared(what: str) -> None:
    """Nothing differs but one bit of an answer, one sample counted, one number logged; not a number equals itself."""
    answer: Answer = {"delta": torch.tensor([1.0, torch.nan]), "alpha": 0.5}
    reply = Reply(answer, 7, Cost(3, 4), {"loss": float("nan")})
    near = {**answer, "delta": torch.tensor([1.0 + 2**-23, torch.nan])}
    other: Any = {"answer": near, "cost": Cost(3, 5), "logs": {"loss": 0.1}}[what]
    again = replace(reply, answer={**answer, "delta": torch.tensor([1.0, torch.nan])}, logs={"loss": float("nan")})
    assert told([reply, None]) == told([again, None])
    assert told([reply, None]) != told([replace(reply, **{what: other}), None])
    assert told([reply, None]) != told([reply, reply])


class Presumptuous(FedAvg):
    """Says that it is elementwise, and asks for what each client has of its own."""

    elementwise = ("local_steps",)

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        return client.value_and_grad(batch)[1] * client.number


def test_what_clients_do_not_have_in_common_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"Presumptuous.*client\.number.*elementwise"):
        run("digits", method=Presumptuous, **{**SEVEN, "stack": 5})


def test_where_samples_are_varied_each_client_answers_by_itself(choirs: list[int], tmp_path: Path) -> None:
    twice(tmp_path, method="finetune", augment={"noise": 0.1})
    assert not choirs


def test_those_of_whom_nothing_is_left_take_no_seat(choirs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients 0 and 3 of seven have no samples; what the others send is what they send without a stack."""
    true, ends = Host.client, []

    def emptied(self: Host, number: int, *rest: Any) -> Client:
        client = true(self, number, *rest)
        if number in (0, 3):
            client.data = client.data[:0]
        return client

    monkeypatch.setattr(Host, "client", emptied)
    for stack in (1, 5):
        config = resolve(merge(load_raw("digits"), flatten({**SEVEN, "method": "finetune", "stack": stack})))
        session = Experiment(config).session(LocalEngine(Experiment(config).host(), 1))
        session.play(0)
        ends.append(session.server.params.clone())
    assert torch.equal(*ends)
    assert choirs == [3, 2]


def test_one_client_by_itself_decides_nothing(choirs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of the first five have no samples, and of one client a norm is that of all: other stacks differ."""
    true, ends = Host.client, []

    def emptied(self: Host, number: int, *rest: Any) -> Client:
        client = true(self, number, *rest)
        if number < 4:
            client.data = client.data[:0]
        return client

    monkeypatch.setattr(Host, "client", emptied)
    for stack in (1, 5):
        config = resolve(merge(load_raw("digits"), flatten({**SEVEN, "clients": 12, "stack": stack})))
        experiment = Experiment(config)
        experiment.method = Mistaken(Finetune.Settings(), config)
        session = experiment.session(LocalEngine(experiment.host(), 1))
        session.play(0)
        ends.append(session.server.params.clone())
    assert torch.equal(*ends)
    assert choirs[:2] == [1, 5]


def test_a_net_whose_rows_would_lie_side_by_side_keeps_its_bits(choirs: list[int], tmp_path: Path) -> None:
    """Of 80 parameters, a whole number of what the kernels take at once: rows without a gap would be one vector."""
    torch.manual_seed(3)
    x, y = torch.randn(300, 19), torch.arange(300) % 4
    source = Source.from_tensors((x, y), (x[:60], y[:60]))
    ends = []
    for stack in (1, 8):
        torch.manual_seed(4)
        options: dict[str, Any] = {
            "method": "finetune",
            "optimizer": "adam",
            "clients": 6,
            "tasks": 2,
            "rounds": 2,
            "partition": "iid",
        }
        out, model = tmp_path / str(stack), nn.Sequential(nn.Linear(19, 4))
        run(source=source, model=model, workers=1, stack=stack, out=out, **options)
        ends.append((out / "model.safetensors").read_bytes())
    assert ends[0] == ends[1]
    assert choirs == [6] * 4


def test_each_client_draws_the_mini_batches_that_it_draws_alone() -> None:
    """Which samples of its own each visits, against `Client.batches`, for clients of different sizes."""
    config = resolve(merge(load_raw("digits"), flatten({**SEVEN, "method": "finetune", "stack": 4})))
    host = Experiment(config).host()
    session = Experiment(config).session(LocalEngine(host, 1))
    session.play(0)
    clients = [host.clients[number] for number in (5, 6)]
    assert len({len(client.data) for client in clients}) == 2
    host.stack.seats(2, session.server.params)
    batches = Choir(host.stack, clients, "finetune").batches(7)
    every = torch.cat([client.data.x for client in clients])
    alone = [client.batches(7) for client in clients]
    for _ in range(50):
        for chosen, own in zip(next(batches), [next(one) for one in alone], strict=True):
            assert torch.equal(every[torch.from_numpy(chosen)], own.x)
    assert list(islice(batches, 1))
