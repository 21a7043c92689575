"""Clients that lie: about what they computed, about how many samples they have, and in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.liars import Cell, cells, table
from benchmarks.lies import LIES, LyingHost, Seen, lying
from flwr.app import Error, Message
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from cflag import Experiment, load_config, run
from cflag.conversation import Answer, Ask, RoundContext
from cflag.engines.flower.messages import pack, unpack
from cflag.engines.host import GlobalModel, Whom
from cflag.engines.local import LocalEngine
from cflag.errors import DivergedError, one_line
from cflag.files import load_state
from cflag.methods.finetune import Finetune
from tests.support.grid import Fleet, Node, local, numbers

pytestmark = pytest.mark.usefixtures("no_figures")

NASTY = "\x1b[31mall is\x1b[0m\n well\x07 \x1b]0;title\x07\u202e\x9b2J‮" + "!" * 10_000


def lie(node: Node, change: Callable[[dict[str, Any], dict[str, Tensor]], Any], asked: str) -> None:
    """Let a node's answers to a question (or hello, as `query`) be changed on their way."""

    def on_the_way(message: Message, reply: Message) -> Message:
        question = unpack(message.content)[0].get("question") or message.metadata.message_type
        if question != asked:
            return reply
        head, tensors = unpack(reply.content)
        change(head, tensors)
        return Message(pack(head, tensors), reply_to=message)

    node.spoil = on_the_way


def params(fleet: Fleet) -> Tensor:
    """The final global model of a fleet, flat."""
    learner = Experiment(fleet.config).learner
    learner.model.load_state_dict(load_state(fleet.path / "model.safetensors"))
    return learner.params


# Answers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["clipped", "trimmed", "median", "krum"])
def test_a_fleet_has_the_numbers_of_one_machine(kind: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "clients": 5, "method": "cflag-sgd", "zeta": 0.5, "mean": {"kind": kind, "outlier": 1e6, "max_share": 0.4},
    }  # fmt: skip
    fleet = Fleet(tmp_path, **own)
    fleet.run()
    local(tmp_path, **own)
    assert numbers(fleet.path) == numbers(tmp_path / "local")
    assert fleet.said == []


@pytest.mark.parametrize("kind", ["clipped", "trimmed", "median", "krum"])
def test_a_client_that_shouts_ruins_the_mean_and_none_of_the_others(kind: str) -> None:
    """Times 1e30: the plain mean is no model any more; the robust one is about as good as without the liar."""

    def accuracy(mean: str) -> float:
        own: dict[str, Any] = {"method": "finetune", "clients": 5, "tasks": 1, "rounds": 3, "zeta": 1e5}
        config = load_config("digits", **own, mean={"kind": mean})
        experiment = Experiment(config)
        session = experiment.session(LocalEngine(lying(experiment.host(), [1], "huge"), 1, mean=config.mean))
        for done in range(3):
            session.play(done)
        counts = session.evaluate([0]).sum(0)
        return float(counts[0, 0] / counts[0, 2])

    with pytest.raises(DivergedError):
        accuracy("mean")
    assert accuracy(kind) > 0.9


def test_on_a_fleet_too_and_the_liar_takes_part(tmp_path: Path) -> None:
    """Three deltas, one of them times 1e30: each coordinate moves by their median."""
    fleet = Fleet(tmp_path, method="finetune", tasks=1, rounds=1, mean={"kind": "median"})
    deltas: dict[int, Tensor] = {}
    for node in fleet.nodes:

        def shout(head: dict[str, Any], tensors: dict[str, Tensor], n: int = node.number) -> None:
            deltas[n] = tensors["delta"].mul_(1e30 if n == 1 else 1)

        lie(node, shout, "local_steps")
    fleet.run()
    assert all("missing" not in record for record in fleet.records())
    moved = np.median(np.stack([delta.numpy() for delta in deltas.values()]), axis=0)
    start = Experiment(fleet.config).server().params
    assert torch.equal(params(fleet), start - torch.from_numpy(moved))


@pytest.mark.parametrize("kind", ["mean", "median"])
def test_an_absurdly_long_answer_is_refused_by_name_and_the_round_goes_on(kind: str, tmp_path: Path) -> None:
    """The model is that of a fleet in which the client never answers this question; on one machine it is the same."""
    own: dict[str, Any] = {"method": "finetune", "tasks": 1, "clients": 4, "mean": {"kind": kind, "outlier": 1e3}}
    fleet = Fleet(tmp_path, **own, min_clients=4)  # an answer that was refused so was heard: nobody waits for it
    lie(fleet.nodes[1], lambda head, tensors: tensors["delta"].mul_(1e30), "local_steps")
    fleet.run()
    for record in fleet.records():
        assert list(record["missing"]) == ["1"]
        assert record["missing"]["1"].startswith("refused: its delta is ")
        assert record["cohort"] == [0, 2, 3]
    assert any(line.startswith("client 1: refused: its delta is ") for line in fleet.said)

    silent = Fleet(tmp_path / "silent", **own)
    lie(silent.nodes[1], lambda head, tensors: head.update(error="leave me out"), "local_steps")
    silent.run()
    assert numbers(fleet.path)[1] == numbers(silent.path)[1]

    experiment = Experiment(load_config("digits", **{**own, "rounds": 2, "width": 8, "epochs": 1}))
    host = lying(experiment.host(), [1], "huge")
    session = experiment.session(LocalEngine(host, 1, mean=experiment.config.mean))
    for done in range(2):
        session.play(done)
        assert list(session.engine.settle().missing) == [1]
    assert torch.equal(session.server.params, params(fleet))


def test_a_robust_mean_waits_for_as_many_as_outvote_the_liars(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, method="finetune", tasks=1, rounds=1, clients=3, patience=0.5, mean={"kind": "median"})
    fleet.nodes[2].online = False
    with pytest.raises(Exception, match="min_clients = 3; gave up"):
        fleet.run()


def test_lies_by_hand() -> None:
    """Two honest clients say (3, 4) and (5, 12), of lengths 5 and 13."""
    honest: list[Answer] = [{"v": torch.tensor([3.0, 4.0]), "n": 1.0}, {"v": torch.tensor([5.0, 12.0]), "n": 3.0}]
    own: Answer = {"v": torch.tensor([1.0, 2.0]), "n": 2.0}
    first: Answer = {"v": torch.tensor([7.0, 7.0]), "n": 7.0}
    made = {name: LIES[name](Seen(own, first, honest)) for name in LIES}
    assert {name: answer["v"].tolist() for name, answer in made.items() if name in ("flip", "labels", "stale")} == {  # type: ignore[union-attr]
        "flip": [-1.0, -2.0],
        "labels": [1.0, 2.0],
        "stale": [7.0, 7.0],
    }
    assert made["huge"]["n"] == pytest.approx(2e30)
    assert made["little"]["v"].tolist() == pytest.approx([4 - 1.5 * 1, 8 - 1.5 * 4])  # type: ignore[union-attr]
    assert made["little"]["n"] == pytest.approx(2 - 1.5)
    against = made["against"]["v"]
    assert isinstance(against, Tensor)
    assert float(against.norm()) == pytest.approx(0.99 * 5)
    assert float(against @ torch.tensor([4.0, 8.0])) == pytest.approx(-0.99 * 5 * 80**0.5)
    assert LIES["stale"](Seen(own, {"other": 1.0}, honest)) is own


def test_liars_lie_and_others_do_not() -> None:
    experiment = Experiment(load_config("digits", method="finetune", tasks=2, rounds=1, epochs=1))
    plain, turned = experiment.host(), lying(experiment.host(), [0], "flip")
    seen: list[list[Tensor]] = []
    for host in (plain, turned):
        server = experiment.server()
        asked: list[Whom] = [(number, None) for number in range(5)]
        ask, context = Ask(Finetune.local_steps, steps=2), RoundContext(0, 0, 1, 5)
        replies = host.answer(asked, ask, GlobalModel(server.params, server.buffers), context)
        seen.append([torch.as_tensor(reply.answer["delta"]).clone() for reply in replies if reply is not None])
    assert torch.equal(seen[1][0], -seen[0][0])
    assert all(torch.equal(one, other) for one, other in zip(seen[0][1:], seen[1][1:], strict=True))


def test_exchanged_labels_stay_in_the_task_and_are_exchanged_once() -> None:
    experiment = Experiment(load_config("digits", method="replay", tasks=5, rounds=2, epochs=1))
    host = lying(experiment.host(), [2], "labels")
    session = experiment.session(LocalEngine(host, 1))
    true = experiment.benchmark.train(2, 0).y
    session.play(0)
    session.play(1)
    assert isinstance(host, LyingHost)
    client = host.host.clients[2]
    assert set(client.data.y.tolist()) == set(true.tolist())
    assert not bool((client.data.y == true).any())  # two classes a task: each label is the other one
    assert torch.equal(host.host.clients[1].data.y, experiment.benchmark.train(1, 0).y)


def test_the_campaigns_table_by_hand() -> None:
    known = {cell: 0.9 - 0.1 * cell.liars - (0.05 if cell.lie == "stale" else 0) for cell in cells()}
    known[Cell("cflag", 0.3, "median", "none", 0, 1234)] = 0.6
    del known[Cell("replay", 1e5, "mean", "against", 2, 1236)]  # a seed counts where all of its runs are there
    lines = list(table(known, "cflag", 0.3))
    (row,) = [line for line in lines if line.startswith("| `median`")]
    assert row == "| `median` | 75.0 | 60.0 | 60.0 | 60.0 | 55.0 | 60.0 | 60.0 | 55.0 |"


# Claims ---------------------------------------------------------------------------------------------------------------


def claims(count: int) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    return lambda head, tensors: head.update(sizes=[count] * len(head["sizes"]))


@pytest.mark.parametrize("what", ["sizes", "test_sizes"])
def test_an_absurd_claim_is_refused_by_name_and_costs_the_others_nothing(what: str, tmp_path: Path) -> None:
    """E is made of claims: with 2^39 samples nobody would ever be done with a round."""
    fleet = Fleet(tmp_path, clients=4, tasks=1)
    lie(fleet.nodes[1], lambda head, tensors: head.update({what: [2**39]}), "query")
    push = fleet.grid.push_messages

    def push_or_fail(messages: Any) -> list[str]:  # before someone starts on 10^10 steps
        messages = list(messages)
        assert all(unpack(m.content)[0].get("numbers", {}).get("steps", 0) < 1000 for m in messages)
        return push(messages)

    fleet.grid.push_messages = push_or_fail  # type: ignore[method-assign]
    fleet.run()
    (refused,) = [line for line in fleet.said if "claims" in line]
    assert refused.startswith(f"refused node 999: client 1 claims {2**39} samples of task 1, and the median client ")
    assert [record["cohort"] for record in fleet.records()] == [[0, 2, 3]] * 2
    sizes = [Experiment(fleet.config).benchmark.size(n, 0) for n in (0, 2, 3)]
    asked = [unpack(m.content)[0] for m in fleet.nodes[0].received]
    steps = {head["numbers"]["steps"] for head in asked if head.get("question") == "local_steps"}
    assert steps == {round(sum(-(-n // 16) for n in sizes) / 3)}


def test_who_comes_late_with_an_absurd_claim_is_refused_too(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, clients=4, tasks=1, rounds=3, patience=0.3)
    fleet.nodes[3].online = False
    lie(fleet.nodes[3], claims(2**39), "query")

    def arrive(message: Message, reply: Message) -> Message:
        fleet.nodes[3].online |= unpack(message.content)[0].get("position", [0])[0] > 0
        return reply

    fleet.nodes[0].spoil = arrive
    fleet.run()
    assert len([line for line in fleet.said if f"client 3 claims {2**39}" in line]) == 1
    assert [record["cohort"] for record in fleet.records()] == [[0, 1, 2]] * 3


def test_a_claim_that_nobody_could_judge_is_refused_when_a_third_client_comes(tmp_path: Path) -> None:
    """Two clients, one of which claims fifty thousand times too much; the third shows who is absurd."""
    fleet = Fleet(tmp_path, tasks=1, rounds=4, patience=0.3, steps=2)
    late, liar = fleet.nodes[2], fleet.nodes[1]
    late.online = False
    lie(liar, claims(10**6), "query")

    def arrive(message: Message, reply: Message) -> Message:
        late.online |= unpack(message.content)[0].get("position", [0])[0] > 0
        return reply

    fleet.nodes[0].spoil = arrive
    fleet.run()
    assert any("client 1 claims 1000000 samples" in line for line in fleet.said)
    assert fleet.records()[-1]["cohort"] == [0, 2]


def test_a_bounded_share_bounds_the_weight_and_the_steps(tmp_path: Path) -> None:
    """A client with nearly all samples weighs no more than half: by hand from its answers, for a fleet."""
    own: dict[str, Any] = {"method": "finetune", "tasks": 1, "rounds": 1, "mean": {"max_share": 0.5}}
    fleet = Fleet(tmp_path, **own)
    deltas: dict[int, Tensor] = {}
    for node in fleet.nodes:

        def on_the_way(message: Message, reply: Message, n: int = node.number) -> Message:
            head, tensors = unpack(reply.content)
            if n == 1:
                head |= {"sizes": [20_000]} if "sizes" in head else {"samples": 20_000}
            deltas.update({n: tensors["delta"].clone()} if "delta" in tensors else {})
            return Message(pack(head, tensors), reply_to=message)

        node.spoil = on_the_way
    fleet.run()
    sizes = [Experiment(fleet.config).benchmark.size(n, 0) for n in range(3)]
    honest = sizes[0] + sizes[2]
    weights = {0: 0.5 * sizes[0] / honest, 1: 0.5, 2: 0.5 * sizes[2] / honest}
    start = Experiment(fleet.config).server().params
    expected = start - sum(weights[n] * deltas[n] for n in range(3))
    torch.testing.assert_close(params(fleet), expected)
    (asked,) = [unpack(m.content)[0] for m in fleet.nodes[0].received if m.metadata.message_type == "train"]
    counted = [sizes[0], honest, sizes[2]]
    assert asked["numbers"]["steps"] == round(sum(-(-n // 16) for n in counted) / 3)


# Words ----------------------------------------------------------------------------------------------------------------


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=900), st.integers(1, 500))
@example(NASTY, 400)
@example("\x1b" * 300, 7)
@example("\ud800 lone", 40)
def test_whatever_a_client_says_is_one_printable_line_of_bounded_length(text: str, longest: int) -> None:
    line = one_line(text, longest)
    assert line.isprintable()
    assert len(line) <= longest
    assert line.splitlines() in ([], [line])
    line.encode()
    assert one_line(line, longest) == line


def test_plain_words_stay_and_commands_of_a_terminal_go() -> None:
    assert one_line("no data in /srv/ä: Größe 3 µm") == "no data in /srv/ä: Größe 3 µm"
    assert one_line("\x1b[1;31mred\x1b[0m and \x1b]8;;http://x\x07link\x1b]8;;\x07") == "red and link"
    assert one_line("one\ntwo\r\n\tthree") == "one two three"
    assert one_line("x" * 50, 10) == "xxxxxxxxx…"
    assert one_line("\x1b]0;never ends") == "0;never ends"
    assert one_line("safe\u202egnp.exe\u2066") == "safe gnp.exe"


@pytest.mark.parametrize("asked", ["query", "local_steps"])
def test_an_error_reaches_events_and_metrics_as_one_plain_line(asked: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, method="finetune", tasks=1, rounds=1, patience=0.5)
    lie(fleet.nodes[1], lambda head, tensors: head.update(error=NASTY), asked)
    fleet.run()
    told = [line for line in fleet.said if "all is well" in line]
    assert told
    reasons = [json.dumps(record.get("missing", {}), ensure_ascii=False) for record in fleet.records()]
    for line in [*told, *reasons, *fleet.said]:
        assert line.isprintable()
        assert len(line) < 500


def test_what_flower_says_a_client_said_is_one_plain_line(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, method="finetune", tasks=1, rounds=1)
    fleet.nodes[1].spoil = lambda message, reply: (
        Message(Error(1, NASTY), reply_to=message) if message.metadata.message_type == "train" else reply
    )
    fleet.run()
    assert any("client 1: no answer: all is well" in line for line in fleet.said)
    assert all(line.isprintable() and len(line) < 500 for line in fleet.said)


def test_names_versions_and_logs_in_words_are_plain(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, method="finetune", tasks=1, rounds=1, clients=4, patience=0.5)
    own = {"mo\x1b[31mod": "fi\x07ne\u202e", "x" * 100: 1.0}
    lie(fleet.nodes[0], lambda head, tensors: head["logs"].update(own), "local_steps")
    lie(fleet.nodes[1], lambda head, tensors: head.update(version=NASTY), "query")
    lie(fleet.nodes[2], lambda head, tensors: tensors.update({"de\x1b[31m": tensors["delta"].half()}), "local_steps")
    fleet.run()
    (record,) = fleet.records()
    assert record["clients"]["mood"][0] == "fi ne"
    assert {len(name) <= 40 and name.isprintable() for name in record["clients"]} == {True}
    assert "its de is torch.float16" in record["missing"]["2"]
    assert any("it runs cflag all is well" in line for line in fleet.said)
    assert all(line.isprintable() and len(line) < 500 for line in fleet.said)


def test_a_run_names_its_mean(tmp_path: Path) -> None:
    result = run("digits", out=tmp_path / "run", tasks=1, rounds=1, workers=1, mean={"kind": "trimmed", "trim": 0.25})
    assert result.config["mean"]["kind"] == "trimmed"
    assert load_config(str(tmp_path / "run" / "config.toml")).mean.trim == 0.25
