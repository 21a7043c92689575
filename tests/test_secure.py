"""Secure aggregation on a grid without processes, and once in a real deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.faults import Deployment
from flwr.app import Message
from flwr.compat.common.recorddict_compat import recorddict_to_fitres

from cflag.conversation import Answer
from cflag.engines.flower.client.secure import is_secure, open_question, seal_answer
from cflag.engines.flower.client.station import Station
from cflag.engines.flower.messages import unpack
from cflag.engines.flower.sealed import RANGE
from cflag.engines.flower.server.secure_mean import SecureMean
from cflag.errors import CflagError, UserError
from cflag.files import load_state
from tests.support.grid import Fleet, local

pytestmark = pytest.mark.usefixtures("no_figures")

SECURE: dict[str, Any] = {"engine": "flower-sim", "secure": True, "clients": 4, "zeta": 0.5}


@pytest.mark.parametrize("method", ["cflag", "finetune", "icarl"])
def test_the_model_is_the_local_engines_up_to_rounding(method: str, tmp_path: Path) -> None:
    """One round: its means are rounded to 2 RANGE / 2^22 per client, far below the steps that they make.

    C-FLAG's g is rounded before it enters each of E steps of rate β: Δ is then off by another βE times that, and as
    much again where gradients change along the way.
    """
    own = {"method": method, "tasks": 1, "rounds": 1, "steps": 10, "cflag": {"beta": 0.1}}
    result = Fleet(tmp_path, **{**SECURE, **own}).run()
    plain = local(tmp_path, clients=4, zeta=0.5, **own)
    mine, theirs = (load_state(tmp_path / name / "model.safetensors") for name in ("run", "local"))
    for name in theirs:
        amplified = 1 + 2 * 0.1 * 10 if method == "cflag" else 1
        torch.testing.assert_close(mine[name], theirs[name], atol=amplified * 4 * 4 * 2 * RANGE / 2**22, rtol=0)
    assert result.average_accuracy == pytest.approx(plain.average_accuracy, abs=0.02)


def test_a_mean_is_weighted_by_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Σ n_i a_i / Σ n_i of the answers as the clients made them, for both questions of C-FLAG."""
    answers: dict[str, list[tuple[int, Answer]]] = {}
    means: list[dict[str, Any]] = []
    once, ask = Station.answer, SecureMean.ask

    def listen(self: Station, head: Any, sent: Any) -> Any:
        answered, tensors = once(self, head, sent)
        answers.setdefault(head["question"], []).append((answered["samples"], {**tensors, **answered["numbers"]}))
        return answered, tensors

    def note(self: SecureMean, *args: Any) -> Any:
        mean, heads = ask(self, *args)
        means.append(mean)
        return mean, heads

    monkeypatch.setattr(Station, "answer", listen)
    monkeypatch.setattr(SecureMean, "ask", note)
    Fleet(tmp_path, **SECURE, tasks=2, rounds=1, cflag={"drift": 1.0}).run()
    gradients, steps = answers["gradients"][4:], answers["local_steps"][4:]  # of the second task, with a memory
    for asked in (gradients, steps):
        total = sum(n for n, _ in asked)
        mean = next(mean for mean in reversed(means) if set(mean) == set(asked[0][1]))
        for name, value in mean.items():
            expected = sum(n / total * torch.as_tensor(answer[name], dtype=torch.float64) for n, answer in asked)
            given = torch.as_tensor(value, dtype=torch.float64)
            torch.testing.assert_close(given, torch.as_tensor(expected), atol=1e-4, rtol=1e-4)


def test_nothing_singles_out_a_client(tmp_path: Path) -> None:
    """Neither in the metrics nor in what arrives: no answer's vector, log, loss or accuracy of one client."""
    fleet = Fleet(tmp_path, **SECURE, tasks=1, rounds=1)
    arrived: list[Message] = []

    def listen(message: Message, reply: Message) -> Message:
        arrived.append(reply)
        if is_secure(message.content):
            assert recorddict_to_fitres(reply.content, keep_input=True).parameters.tensors == []
            metrics = recorddict_to_fitres(reply.content, keep_input=True).metrics
            assert set(metrics) == {"head"}
            for word in ("logs", "loss", 'counts": [[', "samples"):
                assert word not in str(metrics["head"])
        return reply

    for node in fleet.nodes:
        node.spoil = listen
    result = fleet.run()
    (record,) = fleet.records()
    assert arrived
    assert record["clients"] == {}
    assert record["loss"] is None
    assert "cohort" not in record
    assert result.client_matrices == []


def test_a_client_that_drops_out_is_left_out_of_the_mean(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, **SECURE, method="finetune", tasks=1, rounds=1)

    def silent(message: Message, reply: Message) -> Message | None:
        lost = is_secure(message.content) and unpack(open_question(message.content))[0]["question"] == "local_steps"
        return None if lost else reply

    fleet.nodes[3].spoil = silent
    fleet.run()
    assert "client 3: no answer within 0.3 s" in fleet.said
    fewer = Fleet(tmp_path / "fewer", **{**SECURE, "engine": "flower", "secure": False}, method="finetune", tasks=1,
                  rounds=1)  # fmt: skip
    fewer.nodes[3].spoil = lambda message, reply: None if message.metadata.message_type == "train" else reply
    fewer.run()
    mine, theirs = (load_state(path / "model.safetensors") for path in (fleet.path, fewer.path))
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name], atol=1e-4, rtol=0)


def test_the_mean_of_two_is_not_to_be_had(tmp_path: Path) -> None:
    """Each of two clients would know the other's answer; nor are their shares of a private run's noise enough."""
    fleet = Fleet(tmp_path, **SECURE, method="finetune", tasks=1, rounds=1)
    for node in fleet.nodes[2:]:
        node.spoil = lambda message, reply: None if is_secure(message.content) else reply
    with pytest.raises(CflagError, match="too few clients answered"):
        fleet.run()


CLOCKS: dict[str, Any] = {
    "tasks": 2, "rounds": 1, "clients": 6, "steps": 2, "method": "cflag", "cflag": {"beta": 0.1}, "model": "linear",
    "samples_per_class": 30, "eval_every": 9, "schedule": {"kind": "staggered", "groups": 2},
}  # fmt: skip


def test_with_clocks_of_their_own_the_model_is_the_local_engines_up_to_rounding(tmp_path: Path) -> None:
    """Three rounds; in the second three clients have a past and are asked for it apart. Accuracies are those of all."""
    secure = Fleet(tmp_path, **{**SECURE, **CLOCKS}).run()
    plain = local(tmp_path, zeta=0.5, **CLOCKS)
    mine, theirs = (load_state(tmp_path / name / "model.safetensors") for name in ("run", "local"))
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name], atol=3e-4, rtol=0)
    assert secure.client_matrices == []
    assert secure.plan == plain.plan
    assert secure.average_accuracy == pytest.approx(plain.average_accuracy, abs=0.02)


def test_where_the_data_leave_two_clients_a_secure_run_ends_with_a_line(tmp_path: Path) -> None:
    """No schedule can know: with this draw two of four clients have samples of the second task."""
    own = {"zeta": 0.05, "min_samples": 0, "seed": 6, "samples_per_class": 20, "tasks": 2, "rounds": 1}
    fleet = Fleet(tmp_path, **{**SECURE, **own}, method="finetune")
    with pytest.raises(
        CflagError, match="question 'local_steps' in round 2 is for 2 clients alone, and a mean"
    ) as said:
        fleet.run()
    assert "\n" not in str(said.value)
    assert len(fleet.records()) == 1  # the first round, with three clients, is saved


def test_a_question_in_plain_gets_no_answer_worth_having(tmp_path: Path) -> None:
    """A server that asks outside of the protocol, to catch up or out of curiosity, learns nothing."""
    fleet = Fleet(tmp_path, **SECURE, method="finetune", tasks=1, rounds=1)
    fleet.run()
    node = fleet.nodes[0]
    asked = next(m for m in node.received if is_secure(m.content))
    for kind in ("train", "evaluate"):
        question = next(
            open_question(m.content)
            for m in node.received
            if is_secure(m.content) and ("tasks" in unpack(open_question(m.content))[0]) == (kind == "evaluate")
        )
        message = Message(question, 1, kind)
        message.metadata.__dict__["_message_id"] = asked.metadata.message_id
        reply = node.answer(message)
        assert reply is not None
        head, tensors = unpack(reply.content)
        assert tensors == {}
        assert set(head) <= {"experiment", "number", "position"}


def test_what_cannot_be_carried_is_refused_not_clipped() -> None:
    seal_answer({"delta": torch.tensor([2 * RANGE])}, 1, 2, {})
    with pytest.raises(CflagError, match=r"carries numbers up to 8; this answer has 8\.5"):
        seal_answer({"delta": torch.tensor([2.125 * RANGE])}, 1, 2, {})
    with pytest.raises(CflagError, match="this answer has nan"):
        seal_answer({"delta": torch.tensor([float("nan")])}, 1, 2, {})


@pytest.mark.parametrize("own", [{"engine": "local"}, {"clients": 2}, {"clients_per_round": 2}])
def test_it_needs_flower_and_three_clients(own: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="secure = true needs"):
        Fleet(tmp_path, **{**SECURE, **own})


@pytest.mark.fleet
@pytest.mark.slow
def test_a_secure_and_private_deployment_survives_a_killed_client(tmp_path: Path) -> None:
    """Real processes: four clients, three of them needed; one is killed in the middle of a round."""
    private = {"privacy.unit": "client", "privacy.noise": 0.5}
    settings: dict[str, Any] = {"secure": True, "clients": 4, "min_clients": 3, "method": "finetune", "rounds": 3}
    fleet = Deployment(tmp_path / "fleet", "--no-database", deadline=40.0, **settings, **private)
    fleet.start()
    fleet.after(1)
    fleet.kill("client 1")
    assert fleet.wait() == 0, fleet.log()
    assert "client 1 ended and is started again" in fleet.log()
    records = fleet.records()
    assert len(records) == 6
    assert all(record["clients"] == {} and record["loss"] is None for record in records)
    spent = [record["epsilon"] for record in records]
    assert 0 < spent[0] < spent[-1]
    assert spent == sorted(spent)
