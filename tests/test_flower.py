"""The Flower engine on a grid without processes; test_deployment.py has real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from cflag import Experiment, registry
from cflag.conversation import Answer
from cflag.engines.flower.messages import pack, unpack
from cflag.engines.flower.server.roll import _release
from cflag.errors import CflagError, DivergedError
from cflag.files import load_state
from cflag.results.display import absences
from cflag.results.result import Result
from tests.support.grid import Fleet, Node, local, numbers

pytestmark = pytest.mark.usefixtures("no_figures")

FEW: dict[str, Any] = {"samples_per_class": 40}
"""Of 144: what engines do with numbers is the same for all of them."""
Change = Callable[[dict[str, Any], dict[str, Tensor]], Any]


def question(message: Message) -> str:
    """Return what a message asks: a method's question, or hello, or evaluate."""
    head, _ = unpack(message.content)
    return str(head.get("question") or message.metadata.message_type)


def spoil(node: Node, change: Change, asked: str = "local_steps") -> None:
    """Let a node's answers to a question be changed on their way."""

    def on_the_way(message: Message, reply: Message) -> Message:
        if question(message) != asked:
            return reply
        head, tensors = unpack(reply.content)
        changed = change(head, tensors)
        content = changed if isinstance(changed, RecordDict) else pack(head, tensors)
        return Message(content, reply_to=message)

    node.spoil = on_the_way


@pytest.mark.parametrize("method", registry.names("method"))
def test_every_method_gives_the_numbers_of_the_local_engine(method: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, method=method, **FEW)
    fleet.run()
    local(tmp_path, method=method, **FEW)
    assert numbers(fleet.path) == numbers(tmp_path / "local")
    assert fleet.said == []


def test_a_class_incremental_run_with_drift_and_tables(tmp_path: Path) -> None:
    own: dict[str, Any] = {"scenario": "class", "zeta": 0.5, "cflag": {"estimator": "iag", "drift": 1.0, "alpha": 0.1}}
    Fleet(tmp_path, **own).run()
    local(tmp_path, **own)
    assert numbers(tmp_path / "run") == numbers(tmp_path / "local")


@pytest.mark.parametrize("method", ["cflag", "icarl", "derpp"])
def test_a_process_for_every_message_changes_nothing(method: str, tmp_path: Path) -> None:
    """As a stock SuperNode does it: whatever is not in the state folder is gone."""
    fleet = Fleet(tmp_path, keeps=False, method=method, **FEW)
    for node in fleet.nodes:
        node.spoil = lambda asked, reply, node=node: (node.restart(), reply)[1]  # type: ignore[misc]
    fleet.run()
    local(tmp_path, method=method, **FEW)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


@pytest.mark.parametrize("method", ["cflag", "derpp", "icarl", "ewc"])
def test_a_question_asked_twice_is_answered_alike_and_changes_state_once(method: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, method=method, **FEW)
    for node in fleet.nodes:
        once = node.answer

        def twice(message: Message, once: Callable[[Message], Message] = once) -> Message:  # type: ignore[assignment]
            first, second = once(message), once(message)
            (head, tensors), (again, repeated) = unpack(first.content), unpack(second.content)
            assert head == again
            assert tensors.keys() == repeated.keys()
            assert all(torch.equal(tensors[name], repeated[name]) for name in tensors)
            return second

        node.answer = twice  # type: ignore[method-assign]
    fleet.run()
    local(tmp_path, method=method, **FEW)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_lost_questions_and_answers_are_asked_again(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    seen: set[str] = set()

    def lose_each_once(message: Message, reply: Message) -> Message | None:
        head, _ = unpack(message.content)
        key = f"{head.get('position')} {question(message)}"
        if "position" not in head or key in seen:
            return reply
        seen.add(key)
        return None

    fleet.nodes[1].spoil = lose_each_once
    fleet.run()
    local(tmp_path)
    assert len(seen) == 4 * 2 + 2 + 5  # two questions in each round, the end of each task, and every test
    assert numbers(fleet.path) == numbers(tmp_path / "local")


class ServerKilledError(Exception):
    """The server's process is gone."""


@pytest.mark.parametrize("method", ["cflag", "derpp"])
def test_a_killed_server_goes_on_from_its_checkpoint(method: str, tmp_path: Path) -> None:
    """Killed again and again, at each letter in turn, with clients that are ahead of the checkpoint."""
    fleet = Fleet(tmp_path, method=method)
    push, kills = fleet.grid.push_messages, 0

    def until(limit: int) -> Callable[[Any], list[str]]:
        left = limit

        def push_or_die(messages: Any) -> list[str]:
            nonlocal left
            left -= 1
            if left < 0:
                raise ServerKilledError
            return push(messages)

        return push_or_die

    for limit in range(4, 40):
        fleet.grid.push_messages = until(limit)  # type: ignore[assignment,method-assign]
        try:
            fleet.run()
            break
        except ServerKilledError:
            kills += 1
    local(tmp_path, method=method)
    assert kills > 5
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_a_client_that_was_away_is_named_and_its_weight_is_shared(tmp_path: Path) -> None:
    """Σ p_i Δ_i over those who answered, with p_i = n_i / Σ n_j of them, computed here from the letters."""
    fleet = Fleet(tmp_path, method="finetune", zeta=0.5, tasks=1, rounds=1)
    deltas: dict[int, tuple[int, Tensor]] = {}

    def note(number: int) -> Change:
        def keep(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
            deltas[number] = head["samples"], tensors["delta"]

        return keep

    for node in fleet.nodes[:2]:
        spoil(node, note(node.number))
    dead = fleet.nodes[2]
    dead.spoil = lambda message, reply: None if question(message) == "local_steps" else reply
    fleet.run()
    (record,) = fleet.records()
    assert record["missing"] == {"2": "no answer within 0.3 s"}
    assert record["cohort"] == [0, 1]
    start = Experiment(fleet.config).server().params
    total = sum(n for n, _ in deltas.values())
    expected = start - sum(n / total * delta for n, delta in deltas.values())
    experiment = Experiment(fleet.config)
    model = load_state(fleet.path / "model.safetensors")
    experiment.learner.model.load_state_dict(model)
    torch.testing.assert_close(experiment.learner.params, expected)


def test_a_client_that_missed_a_task_change_catches_up(tmp_path: Path) -> None:
    """Away from the end of task 1 until well into task 2; in the end its memory is that of a client never away."""
    fleet = Fleet(tmp_path, rounds=4)
    node = fleet.nodes[1]

    answer, left = node.answer, False

    def deaf(message: Message) -> Message | None:
        nonlocal left
        if question(message) == "remember" and not left:
            left, node.online = True, False
            return None
        return answer(message)

    def come_back(message: Message, reply: Message) -> Message:
        if unpack(message.content)[0].get("position", [0])[0] == 6 and not node.online:
            node.online = True
            node.restart()
        return reply

    node.answer = deaf  # type: ignore[method-assign]
    fleet.nodes[0].spoil = come_back
    fleet.run()
    assert "client 1 caught up on task 1 ('remember')" in fleet.said
    assert [sorted(record.get("missing", {})) for record in fleet.records()][3] == ["1"]
    assert "1" not in fleet.records()[-1].get("missing", {})
    memory = load_state(max(node.state.glob("*/client-*.safetensors")))
    other = Fleet(tmp_path / "other", rounds=4)
    other.run()
    whole = load_state(max(other.nodes[1].state.glob("*/client-*.safetensors")))
    assert memory["memory.task"].unique().tolist() == [0, 1]
    assert all(torch.equal(torch.as_tensor(memory[k]), torch.as_tensor(whole[k])) for k in whole if k != "dates")


def _nan(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["delta"][3] = float("nan")


def _infinite(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["delta"][0] = float("-inf")


def _infinite_number(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["logs"]["beta"] = float("inf")


def _short(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["delta"] = tensors["delta"][:-1].clone()


def _matrix(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["delta"] = tensors["delta"][None]


def _million_times_too_long(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["buffers"] = torch.zeros(10**6)


def _too_large_to_read(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["delta"] = torch.zeros(20_000_000)


def _other_experiment(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["experiment"] = "0123456789abcdef"


def _other_client(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["number"] = 0


def _other_position(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["position"][0] += 1


def _heavy(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["samples"] = 10**9


def _extra(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["more"] = torch.zeros(3)


def _text(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["cost"] = ["a lot", None]


def _nothing(head: dict[str, Any], tensors: dict[str, Tensor]) -> RecordDict:
    return RecordDict({})


def _noise(head: dict[str, Any], tensors: dict[str, Tensor]) -> RecordDict:
    return RecordDict({"cflag": ConfigRecord({"head": "{", "body": b"noise"})})


def _half_precision(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["delta"] = tensors["delta"].half()


def _complex(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["delta"] = tensors["delta"].to(torch.complex64)


def _infinite_cost(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["cost"] = [float("inf"), 0]


def _endless_number(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["numbers"]["alpha"] = 10**400


def _loss_in_words(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["logs"]["loss"] = "none to speak of"


def _memory_loss_in_words(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["logs"]["memory_loss"] = "little"


def _long_words(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["logs"]["mood"] = "x" * 41


def _list_in_logs(head: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    head["logs"]["mood"] = ["fine"]


def _nested(head: dict[str, Any], tensors: dict[str, Tensor]) -> RecordDict:
    return RecordDict({"cflag": ConfigRecord({"head": "[" * 200_000, "body": b""})})


GARBAGE = [
    _half_precision, _complex, _infinite_cost, _endless_number, _loss_in_words, _memory_loss_in_words, _long_words,
    _list_in_logs, _nested, _nan, _infinite,
    _infinite_number, _short, _matrix, _million_times_too_long, _too_large_to_read, _other_experiment, _other_client,
    _other_position, _heavy, _extra, _text, _nothing, _noise,
]  # fmt: skip


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet in which client 1 never answers."""
    fleet = Fleet(tmp_path_factory.mktemp("silent"), method="finetune", tasks=1)
    spoil(fleet.nodes[1], lambda head, tensors: head.update(error="leave me out"))
    fleet.run()
    return fleet.path


@pytest.mark.parametrize("change", GARBAGE, ids=lambda change: change.__name__.strip("_"))
def test_garbage_is_refused_named_and_the_round_goes_on(change: Change, tmp_path: Path, silent: Path) -> None:
    """The run is that of a fleet in which the client never answers this question."""
    fleet = Fleet(tmp_path, method="finetune", tasks=1)
    spoil(fleet.nodes[1], change)
    fleet.run()
    for record in fleet.records():
        assert list(record["missing"]) == ["1"]
        assert record["missing"]["1"].startswith("refused: ")
        assert record["cohort"] == [0, 2]
    assert any(line.startswith("client 1: refused: ") for line in fleet.said)
    assert numbers(fleet.path)[1] == numbers(silent)[1]


def test_a_log_is_a_number_or_a_few_words_whatever_its_name(tmp_path: Path) -> None:
    """Also where others log a number under that name: what is computed from it leaves the words out."""
    fleet = Fleet(tmp_path, rounds=1)
    words = "y" * 40
    own = {"mood": words, "weight": 2, "capped": "often", "alpha": "small"}
    spoil(fleet.nodes[1], lambda head, tensors: head["logs"].update(own))
    result = fleet.run()
    record = fleet.records()[-1]
    assert "missing" not in record
    assert record["clients"]["mood"] == [None, words, None]
    assert record["clients"]["weight"] == [None, 2, None]
    first, second, third = record["clients"]["capped"]
    assert second == "often"
    assert result.diagnostics["capped"] == first + third


def test_garbage_in_tests_is_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, method="finetune", tasks=1, rounds=1)
    spoil(fleet.nodes[2], lambda head, tensors: head["counts"][0].__setitem__(0, 10**6), asked="evaluate")
    result = fleet.run()
    assert result.client_matrices[2] == [[None]]
    assert 0 <= result.average_accuracy <= 1
    assert "between none and all" in fleet.records()[0]["missing"]["2"]


def test_if_nobody_is_finite_training_diverged(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, method="finetune", tasks=1, rounds=1)
    for node in fleet.nodes:
        spoil(node, _nan)
    with pytest.raises(DivergedError, match="not finite in task 1, round 1"):
        fleet.run()


def test_too_few_clients_wait_give_up_and_keep_the_checkpoint(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, min_clients=3, patience=2.0)

    def leave(message: Message, reply: Message) -> Message | None:
        head, _ = unpack(message.content)
        fleet.nodes[0].online = head.get("position", [0])[0] < 2
        return reply if fleet.nodes[0].online else None

    fleet.nodes[0].spoil = leave
    with pytest.raises(CflagError, match="min_clients = 3; gave up after"):
        fleet.run()
    assert any(line.startswith("waiting for clients: 2 of the 3 needed") for line in fleet.said)
    assert len(fleet.records()) == 2
    fleet.nodes[0].online, fleet.nodes[0].spoil = True, lambda message, reply: reply
    fleet.run()
    local(tmp_path)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_a_client_catches_up_and_then_the_server_is_killed(tmp_path: Path) -> None:
    """The new server asks again what the old one's checkpoint says was missed; the client can still go back to it."""
    fleet = Fleet(tmp_path, rounds=2, tasks=3, deadline=0.2)
    node, answer, left = fleet.nodes[1], fleet.nodes[1].answer, False

    def deaf(message: Message) -> Message | None:
        nonlocal left
        if question(message) == "remember" and unpack(message.content)[0]["position"][0] == 3 and not left:
            left, node.online = True, False
            return None
        return answer(message)

    push, killed = fleet.grid.push_messages, False

    def die_later(messages: Any) -> list[str]:
        nonlocal killed
        messages = list(messages)
        heads = [unpack(m.content)[0] for m in messages]
        if any(head.get("position", [0])[0] == 4 for head in heads):
            node.online = True
        if not killed and any(head.get("position") == [4, 1] and "tasks" in head for head in heads):
            assert "client 1 caught up on task 2 ('remember')" in fleet.said
            killed = True
            raise ServerKilledError
        return push(messages)

    node.answer = deaf  # type: ignore[method-assign]
    fleet.grid.push_messages = die_later  # type: ignore[method-assign]
    with pytest.raises(ServerKilledError):
        fleet.run()
    fleet.run()
    memory = load_state(max(node.state.glob("*/client-*.safetensors")))
    assert memory["memory.task"].unique().tolist() == [0, 1, 2]
    assert fleet.said.count("client 1 caught up on task 2 ('remember')") == 2


def test_a_client_that_dies_between_two_questions_of_a_round(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, deadline=0.2)

    def die(message: Message, reply: Message) -> Message | None:
        head, _ = unpack(message.content)
        fleet.nodes[1].online &= not (head.get("position", [0])[0] == 3 and question(message) == "local_steps")
        return reply if fleet.nodes[1].online else None

    fleet.nodes[1].spoil = die
    fleet.run()
    last = fleet.records()[-1]
    assert list(last["missing"]) == ["1"]
    assert last["clients"]["memory_loss"][1] is not None
    assert last["clients"]["capped"][1] is None


def test_a_test_waits_for_those_it_needs(tmp_path: Path) -> None:
    """A client that is needed and loses its answers to a test: it is asked until it was heard."""
    fleet = Fleet(tmp_path, min_clients=3, deadline=0.2, tasks=1, rounds=1)
    lost = 0

    def lose_some(message: Message, reply: Message) -> Message | None:
        nonlocal lost
        if message.metadata.message_type == "evaluate" and lost < 5:
            lost += 1
            return None
        return reply

    fleet.nodes[2].spoil = lose_some
    fleet.run()
    local(tmp_path, tasks=1, rounds=1)
    assert lost == 5
    assert numbers(fleet.path)[2] == numbers(tmp_path / "local")[2]


def test_a_round_waits_where_too_few_of_a_fleet_are_here(tmp_path: Path) -> None:
    own: dict[str, Any] = {"clients": 4, "clients_per_round": 2, "min_clients": 2, "tasks": 1, "rounds": 3}
    fleet = Fleet(tmp_path, **own, patience=0.6)

    def leave(message: Message, reply: Message) -> Message:
        if unpack(message.content)[0].get("position", [0])[0] == 1:
            for node in fleet.nodes[1:]:
                node.online = False
        return reply

    fleet.nodes[0].spoil = leave
    with pytest.raises(CflagError, match="min_clients = 2"):
        fleet.run()
    assert len(fleet.records()) <= 2


def test_sizes_cannot_change(tmp_path: Path) -> None:
    """A client that goes away and comes back with a thousand times the samples does not come back."""
    fleet = Fleet(tmp_path, deadline=0.2)
    node, changed = fleet.nodes[1], False

    def grow(message: Message, reply: Message) -> Message | None:
        nonlocal changed
        if question(message) == "local_steps" and not changed:
            changed, node.online = True, False
            return None
        if message.metadata.message_type == "query" and changed:
            head, tensors = unpack(reply.content)
            head["sizes"] = [1000 * n for n in head["sizes"]]
            return Message(pack(head, tensors), reply_to=message)
        return reply

    def call_back(message: Message, reply: Message) -> Message:
        node.online |= unpack(message.content)[0].get("position", [0])[0] > 0
        return reply

    node.spoil, fleet.nodes[0].spoil = grow, call_back
    fleet.run()
    assert any("now counts other samples" in line for line in fleet.said)


def test_nobody_comes(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, patience=0.3)
    for node in fleet.nodes:
        node.online = False
    with pytest.raises(CflagError, match="only 0 of 3 clients came"):
        fleet.run()


def test_a_hello_that_gets_lost_is_said_again_in_time(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, min_clients=3, patience=1.5, tasks=1, rounds=1)
    lost: list[Message] = []

    def lose_first(message: Message, reply: Message) -> Message | None:
        lost.extend([message] if not lost else [])
        return None if message is lost[0] else reply

    fleet.nodes[2].spoil = lose_first
    fleet.run()
    assert lost[0].metadata.message_type == "query"
    assert "missing" not in fleet.records()[0]


def test_the_late_reply_to_a_hello_that_was_said_twice_speaks_of_the_past(tmp_path: Path) -> None:
    """A slow node is greeted again; its first reply comes when it has long answered questions."""
    fleet = Fleet(tmp_path, min_clients=3, patience=3.0)
    push, late = fleet.grid.push_messages, {}  # type: ignore[var-annotated]

    def hold_back(messages: Any) -> list[str]:
        messages = list(messages)
        heads = [unpack(message.content)[0] for message in messages]
        ids = push(messages)
        if not late and "nonce" in heads[0] and messages[0].metadata.dst_node_id == 999:
            late.update({key: fleet.grid.replies.pop(key) for key in ids})
        if any(head.get("position", [0])[0] == 2 for head in heads):
            fleet.grid.replies.update(late)
        return ids

    fleet.grid.push_messages = hold_back  # type: ignore[method-assign]
    fleet.run()
    assert len(late) == 1
    assert fleet.said == []
    local(tmp_path)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_a_run_begins_without_a_late_client_which_joins_later(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, patience=0.3, rounds=3)
    late, other = fleet.nodes[2], fleet.nodes[0]
    late.online = False

    def arrive(message: Message, reply: Message) -> Message:
        head, _ = unpack(message.content)
        late.online = late.online or head.get("position", [0])[0] >= 4
        return reply

    other.spoil = arrive
    fleet.run()
    assert "going on without clients 2; they may join later" in fleet.said
    assert "client 2 caught up on task 1 ('remember')" in fleet.said
    assert [record.get("missing") for record in fleet.records()] == [{"2": "away"}] * 5 + [None]
    assert [record.get("cohort") for record in fleet.records()] == [[0, 1]] * 4 + [[0, 1, 2], None]
    assert absences(Result.load(fleet.path)) == ["client 2 was missing in 5 of 6 rounds; metrics.jsonl says why"]


def test_a_cohort_is_the_local_engines_and_others_stand_in_for_those_away(tmp_path: Path) -> None:
    own: dict[str, Any] = {"clients": 5, "clients_per_round": 2, "tasks": 1, "rounds": 4}
    fleet = Fleet(tmp_path, **own)
    fleet.run()
    local(tmp_path, **own)
    assert numbers(fleet.path) == numbers(tmp_path / "local")

    drawn = [record["cohort"] for record in fleet.records()]
    other = Fleet(tmp_path / "other", **own, patience=0.3)
    gone = drawn[1][0]
    other.nodes[gone].online = False
    other.run()
    for before, record in zip(drawn, other.records(), strict=True):
        assert len(record["cohort"]) == 2
        assert gone not in record["cohort"]
        assert set(before) - {gone} <= set(record["cohort"])


def test_two_nodes_cannot_be_one_client(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, tasks=1, rounds=1)
    impostor = Node(1, tmp_path / "impostor")
    fleet.grid.nodes[5] = impostor
    fleet.run()
    refused = [line for line in fleet.said if "which another node already is" in line]
    assert len(refused) == 1
    assert not fleet.records()[0].get("missing")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda head: head.update(version="0.0.1"), "it runs cflag 0.0.1"),
        (lambda head: head["spec"].update(classes=17), "another benchmark"),
        (lambda head: head.update(number=17), "there are clients 0 to 2"),
        (lambda head: head.update(sizes="many"), "its sizes are many"),
        (lambda head: head.update(error="no data here"), "no data here"),
        (lambda head: head.update(experiment="0" * 16), "another experiment"),
    ],
)
def test_who_does_not_belong_is_refused_at_the_door(change: Any, words: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, tasks=1, rounds=1, patience=0.5)
    spoil(fleet.nodes[2], lambda head, tensors: change(head), asked="query")
    fleet.run()
    assert [line for line in fleet.said if line.startswith("refused node 998") and words in line]
    assert fleet.records()[0]["cohort"] == [0, 1]
    assert {question(message) for message in fleet.nodes[2].received} == {"query"}


def test_the_log_says_which_client_cannot_come_and_why(tmp_path: Path) -> None:
    """Its node's number alone means nothing to whoever reads the log."""
    fleet = Fleet(tmp_path, tasks=1, rounds=1, patience=0.5, source="npz:none.npz")
    with pytest.raises(CflagError):
        fleet.run()
    for node, number in ((1000, 0), (999, 1), (998, 2)):
        assert any(
            line.startswith(f"refused node {node}: client {number}: ") and "none.npz: not found" in line
            for line in fleet.said
        )


def test_a_tensor_that_a_client_holds_is_not_sent_again(tmp_path: Path) -> None:
    """In C-FLAG's second question of a round g and m are new; the model went with the first, or with a test."""
    fleet = Fleet(tmp_path)
    fleet.run()
    size = Experiment(fleet.config).learner.params.numel()
    for node in fleet.nodes:
        asked = [unpack(message.content) for message in node.received if message.metadata.message_type != "query"]
        for head, tensors in asked:
            whole = [t for t in tensors.values() if t.numel() == size]
            if head.get("question") == "local_steps":
                assert len(whole) == (2 if head["context"][0] else 1)  # the first task has no m
            else:
                assert len(whole) <= 1


def test_a_client_that_lost_its_tensors_is_sent_them_again(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)

    def restart(message: Message, reply: Message) -> Message:
        fleet.nodes[0].restart()  # after having said that it holds them
        return reply

    fleet.nodes[0].spoil = restart
    fleet.run()
    local(tmp_path)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_no_sample_leaves_a_client(tmp_path: Path) -> None:
    """Neither a training nor a memory sample's bytes are in anything a client says."""
    fleet = Fleet(tmp_path, method="replay")
    sent: list[bytes] = []

    def listen(message: Message, reply: Message) -> Message:
        sent.append(b"".join(v for r in reply.content.config_records.values() for v in r.values() if type(v) is bytes))
        sent.append(json.dumps(unpack(reply.content)[0]).encode())
        return reply

    fleet.nodes[0].spoil = listen
    fleet.run()
    said = b"".join(sent)
    benchmark = Experiment(fleet.config).benchmark
    for task in range(2):
        for x in benchmark.train(0, task).x:
            assert x.numpy().tobytes() not in said
            assert benchmark.normalise(x[None]).numpy().tobytes() not in said


def test_state_is_kept_by_experiment(tmp_path: Path) -> None:
    """A second run of the same config finds nothing of the first."""
    first, second = Fleet(tmp_path), Fleet(tmp_path)
    first.run()
    second.path = tmp_path / "second"
    second.run()
    assert numbers(first.path) == numbers(second.path)
    assert len([p for p in first.nodes[0].state.iterdir() if p.is_dir()]) == 2


def test_clients_measure_accuracy_on_their_own_samples(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, zeta=0.5)
    result = fleet.run()
    benchmark = Experiment(fleet.config).benchmark
    for i in range(2):
        for j in range(2):
            sizes = [benchmark.test_size(client, j) for client in range(3)]
            own = [result.client_matrices[client][i][j] or 0.0 for client in range(3)]
            overall = sum(a * n for a, n in zip(own, sizes, strict=True)) / sum(sizes)
            assert result.accuracy_matrix[i][j] == pytest.approx(overall, abs=1e-12)


def test_clients_with_data_of_their_own(tmp_path: Path) -> None:
    """Each machine has its own folder; the numbers are those of the same samples dealt by subject on one machine."""
    rng = np.random.default_rng(0)
    whole: dict[str, list[Any]] = {"train": [], "test": []}
    own: dict[str, Any] = {"source": "folder", "tasks": 2, "method": "cflag"}
    fleet = Fleet(tmp_path, **own, partition="own")
    for node in fleet.nodes:
        data = tmp_path / f"data-{node.number}"
        data.mkdir()
        for name, count in (("train", 40 + 20 * node.number), ("test", 20)):
            y = np.arange(count) % 4
            x = (rng.normal(size=(count, 6)) + 2 * np.eye(6)[y]).astype(np.float32)
            np.savez(data / f"{name}.npz", x=x, y=y)
            whole[name].append((x, y, np.full(count, node.number)))
        (data / "source.toml").write_text('name = "mine"\nclasses = 4\nmean = [0.1]\nstd = [1.2]\n')
        node.context.node_config["data-dir"] = str(data)
    fleet.run()
    together = tmp_path / "together"
    together.mkdir()
    for name, parts in whole.items():
        x, y, subject = (np.concatenate(column) for column in zip(*parts, strict=True))
        np.savez(together / f"{name}.npz", x=x, y=y, subject=subject)
    (together / "source.toml").write_text('name = "mine"\nclasses = 4\nmean = [0.1]\nstd = [1.2]\n')
    local(tmp_path, **own, partition="subject", data_dir=str(together))
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_the_method_of_a_stranger_is_not_called(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, keeps=False, tasks=1, rounds=1)
    fleet.run()
    node = fleet.nodes[0]
    message = next(m for m in node.received if m.metadata.message_type == "train")
    head, tensors = unpack(message.content)
    for name in ("__init__", "_replay", "settings", "nothing"):
        asked = Message(pack({**head, "question": name, "numbers": {}}, tensors), 1, "train")
        asked.metadata.__dict__["_message_id"] = "x"
        reply = node.answer(asked)
        assert reply is not None
        assert "has no question" in unpack(reply.content)[0]["error"]


def test_answers_are_plain() -> None:
    """The type of an answer that travels: tensors and numbers, nothing else."""
    answer: Answer = {"delta": torch.ones(3), "alpha": 0.5}
    head, tensors = unpack(pack({"alpha": answer["alpha"]}, {"delta": torch.ones(3)}))
    assert head == {"alpha": 0.5}
    assert torch.equal(tensors["delta"], torch.ones(3))


def test_builds_between_two_releases_are_of_the_next() -> None:
    """The commit and the day are in their versions, and machines build on other days."""
    assert _release("0.1.dev605+g7d0a41746.d20261119") == _release("0.1.dev0") != _release("0.1.0")
    assert _release("1.2.4.dev1+gabc") == _release("1.2.4") != _release("1.2.3")
