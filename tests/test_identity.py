"""Who is who: a client whose state or key is not the one it had is noticed, and the operator decides."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from cflag.cli import main
from cflag.engines.flower.environment import KEYS
from cflag.engines.flower.identity import claim, fingerprint, sign, signer
from cflag.engines.flower.messages import GarbageError, Position, pack, unpack
from cflag.engines.flower.processes.keys import make_client_key
from cflag.engines.flower.server.register import Register, accept
from cflag.engines.flower.trail import SPARE, Link, extended, read_trail, stamp
from cflag.errors import CflagError
from cflag.files import load_state
from tests.support.crashes import newest_checkpoint
from tests.support.grid import Fleet, Node, local, numbers

pytestmark = pytest.mark.usefixtures("no_figures")


class ServerKilledError(Exception):
    """The server's process is gone."""


LONG: dict[str, Any] = {"tasks": 3, "rounds": 2, "deadline": 0.2}


def before_round(fleet: Fleet, when: Mapping[int, Callable[[], object]]) -> None:
    """Do something before the first question of a round, counted from 0, is sent."""
    push, left = fleet.grid.push_messages, dict(when)

    def watch(messages: Any) -> list[str]:
        messages = list(messages)
        for message in messages:
            head, _ = unpack(message.content)
            if "question" in head and head["question"] and head["position"][0] in left:
                left.pop(head["position"][0])()
        return push(messages)

    fleet.grid.push_messages = watch  # type: ignore[method-assign]


def missing(fleet: Fleet, number: int) -> list[str | None]:
    """Return, for each round, why a client was missing."""
    return [record.get("missing", {}).get(str(number)) for record in fleet.records()]


def wipe(node: Node, *names: str) -> None:
    """Lose the state folder, or files of it, while the process goes on."""
    for path in node.state.glob("*/"):
        for name in names:
            for file in path.glob(name):
                file.unlink()
        if not names:
            shutil.rmtree(path)


def memory(node: Node) -> Any:
    state = load_state(max(node.state.glob("*/client-*.safetensors")))
    return state["memory.task"].unique().tolist()


@pytest.mark.parametrize("method", ["cflag", "finetune"])
@pytest.mark.parametrize("lost", [[], ["client-*", "status.json"], ["status.json"]])
def test_a_wiped_client_is_noticed_named_and_left_out(method: str, lost: list[str], tmp_path: Path) -> None:
    """The server has no reason to greet it; its next answer is not used."""
    fleet = Fleet(tmp_path, method=method, **LONG)
    node = fleet.nodes[1]
    before_round(fleet, {3: lambda: wipe(node, *lost)})
    fleet.run()
    reasons = missing(fleet, 1)
    assert reasons[:3] == [None] * 3
    assert ("refused: its state" if lost else "its state folder has nothing of it") in str(reasons[3])
    for reason in reasons[4:]:
        assert reason is not None
        assert reason.startswith("refused: its state")
        assert reason.endswith(f"to take it as it is: cflag accept {fleet.path} 1")
    assert [record.get("cohort") for record in fleet.records()][3:] == [[0, 2]] * 3
    assert any(line.startswith(f"client 1: {reasons[3]}") for line in fleet.said)
    assert any(line.startswith("refused node 999: client 1: its state") for line in fleet.said)


def test_a_client_that_lost_a_state_file_alone_says_so_itself(tmp_path: Path) -> None:
    """It has its trail, so the server would believe it; with no other state left it would answer from nothing."""
    fleet = Fleet(tmp_path, **LONG)
    node, kept = fleet.nodes[1], tmp_path / "kept"

    def lose() -> None:
        shutil.copytree(node.state, kept)
        wipe(node, "client-*")

    before_round(fleet, {3: lose, 5: lambda: shutil.copytree(kept, node.state, dirs_exist_ok=True)})
    fleet.run()
    for reason in missing(fleet, 1)[3:5]:
        assert "this client's state of question 0000001-002 is gone; put it back" in str(reason)
    assert memory(node) == [0, 1, 2]


def test_what_a_killed_client_left_half_written_is_removed(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, tasks=1, rounds=3)
    node = fleet.nodes[1]

    def die() -> None:
        (folder,) = node.state.glob("*/")
        (folder / "client-00001.x.safetensors.77.new").write_bytes(b"half")
        (folder / "status.json.77.new").write_bytes(b"half")
        node.restart()

    before_round(fleet, {1: die})
    fleet.run()
    assert not list(node.state.rglob("*.new"))
    assert missing(fleet, 1) == [None] * 3


@pytest.mark.parametrize(
    ("old", "words"),
    [
        (False, "its state of this run is gone; it has answered up to question 0000001-002"),
        (True, "its state is an old copy: it is at question 0000000-001 and has answered up to 0000001-002"),
    ],
)
def test_a_client_that_was_away_comes_back_without_its_state(old: bool, words: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, **LONG)
    node, copy = fleet.nodes[1], tmp_path / "copy"

    def leave() -> None:
        node.online = False
        wipe(node)
        if old:
            shutil.copytree(copy, node.state, dirs_exist_ok=True)

    copying = {1: lambda: shutil.copytree(node.state, copy)}
    before_round(fleet, {**copying, 2: leave, 4: lambda: setattr(node, "online", True)})
    fleet.run()
    assert missing(fleet, 1)[3] == "away"
    assert words in str(missing(fleet, 1)[5])


def test_an_old_copy_is_noticed_and_the_right_one_is_taken_back(tmp_path: Path) -> None:
    """With the right state put back the client comes in by itself and catches up: nobody has to accept anything."""
    fleet = Fleet(tmp_path, tasks=4, rounds=2, deadline=0.2)
    node, old, right = fleet.nodes[1], tmp_path / "old", tmp_path / "right"

    def put(copy: Path) -> None:
        shutil.rmtree(node.state)
        shutil.copytree(copy, node.state)

    def restore_old() -> None:
        shutil.copytree(node.state, right)
        put(old)

    copies = {2: lambda: shutil.copytree(node.state, old), 4: restore_old, 6: lambda: put(right)}
    before_round(fleet, copies)
    fleet.run()
    reasons = missing(fleet, 1)
    for reason in reasons[4:6]:
        assert "its state is not the one it had after question 0000003-002" in str(reason)
    assert reasons[7] is None
    assert "client 1 caught up on task 3 ('remember')" in fleet.said
    assert memory(node) == [0, 1, 2, 3]


@pytest.mark.parametrize("state", ["gone", "old"])
def test_the_operator_takes_a_client_back_as_it_is_while_the_run_goes_on(state: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, tasks=4, rounds=2, deadline=0.2)
    node, old = fleet.nodes[1], tmp_path / "old"

    def lose() -> None:
        wipe(node)
        if state == "old":
            shutil.copytree(old, node.state, dirs_exist_ok=True)

    when = {
        1: lambda: shutil.copytree(node.state, old),
        4: lose,
        6: lambda: main(["accept", str(fleet.path), "1"]),
    }
    before_round(fleet, when)
    fleet.run()
    reasons = missing(fleet, 1)
    assert "its state" in str(reasons[4])
    assert str(reasons[5]).startswith("refused: its state")
    assert reasons[7] is None
    assert fleet.said.count("client 1 is taken as it is: the operator accepted it") == 1
    assert memory(node) == [2, 3]  # the first two tasks are lost; what it missed since then it was asked again


def test_state_that_was_wiped_while_the_server_was_down(tmp_path: Path) -> None:
    """The clients are greeted before the server reads its checkpoint; they are looked at again after it."""
    fleet = Fleet(tmp_path, **LONG, min_clients=3, patience=0.4)
    node = fleet.nodes[1]

    def die() -> None:
        raise ServerKilledError

    before_round(fleet, {3: die})
    with pytest.raises(ServerKilledError):
        fleet.run()
    wipe(node)
    with pytest.raises(CflagError, match="min_clients = 3"):
        fleet.run()
    assert [line for line in fleet.said if "client 1: its state of this run is gone" in line]
    assert len(fleet.records()) == 3
    assert main(["accept", str(fleet.path), "1"]) == 0
    fleet.run()
    assert missing(fleet, 1) == [None] * 6
    checkpoint = load_state(newest_checkpoint(fleet.path))
    assert checkpoint["engine.answered"]["1"][0] == "0000005-002"
    register = Register(fleet.path)
    register.take_back({name.removeprefix("engine."): value for name, value in checkpoint.items()})
    assert register.newly_accepted() == []
    assert register.doubt(1, "", []), "what was decided once is not decided for good"


def test_an_acceptance_survives_a_server_that_dies_before_its_checkpoint(tmp_path: Path) -> None:
    register = Register(tmp_path)
    register.bind(1, "old")
    kept = register.kept()
    accept(tmp_path, [1])
    assert register.newly_accepted() == [1]
    assert register.newly_accepted() == []
    again = Register(tmp_path)
    again.take_back(kept)
    assert again.doubt(1, "new", [])
    assert again.newly_accepted() == [1]
    assert not again.doubt(1, "new", [])
    accept(tmp_path, [2])
    assert again.newly_accepted() == [2]


def test_accept_refuses_what_makes_no_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(tmp_path, tasks=1, rounds=1)
    assert main(["accept", str(tmp_path / "nothing"), "1"]) == 2
    fleet.run()
    assert main(["accept", str(fleet.path), "1"]) == 2
    assert "is finished" in capsys.readouterr().err
    (fleet.path / "result.json").unlink()
    assert main(["accept", str(fleet.path), "3"]) == 2
    assert "this run has clients 0 to 2" in capsys.readouterr().err


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the server has the clients' public keys."""
    folder = tmp_path / "keys"
    for name in ("0", "1", "2", "spare"):
        make_client_key(folder, name)
    monkeypatch.setenv(KEYS, str(folder))
    return folder


def give_keys(fleet: Fleet, keys: Path) -> None:
    for node in fleet.nodes:
        node.context.node_config["key"] = str(keys / f"{node.number}.key")


def impostor(fleet: Fleet, number: int, key: Path | None, state: Path) -> Node:
    """Another registered machine that says it is this client."""
    node = Node(number, state)
    if key:
        node.context.node_config["key"] = str(key)
    node.online = False
    fleet.grid.nodes[5] = node
    return node


def test_with_keys_nothing_else_changes(tmp_path: Path, keys: Path) -> None:
    fleet = Fleet(tmp_path)
    give_keys(fleet, keys)
    fleet.run()
    local(tmp_path)
    assert numbers(fleet.path) == numbers(tmp_path / "local")
    assert fleet.said == []


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("spare", "it has the key spare, and client 1 has 1"),
        ("2", "it has the key 2, and client 1 has 1"),
        ("", "it does not sign with its key"),
        ("stranger", "is not registered"),
    ],
)
def test_nobody_takes_the_place_of_a_client_that_is_away(key: str, words: str, tmp_path: Path, keys: Path) -> None:
    """Neither while the server runs nor, with a copy of the client's state, when it is started again."""
    make_client_key(tmp_path / "elsewhere", "stranger")
    fleet = Fleet(tmp_path, **LONG)
    give_keys(fleet, keys)
    file = tmp_path / "elsewhere" / "stranger.key" if key == "stranger" else keys / f"{key}.key"
    other = impostor(fleet, 1, file if key else None, tmp_path / "other")
    node = fleet.nodes[1]

    def swap() -> None:
        shutil.copytree(node.state, other.state)
        node.online, other.online = False, True

    def die() -> None:
        raise ServerKilledError

    before_round(fleet, {1: swap, 3: die, 4: lambda: setattr(node, "online", True)})
    with pytest.raises(ServerKilledError):
        fleet.run()
    fleet.run()
    reasons = missing(fleet, 1)
    assert words in str(reasons[2])
    assert words in str(reasons[3])
    assert reasons[5] is None, "the client itself came back"
    assert all(message.metadata.message_type == "query" for message in other.received)
    assert [line for line in fleet.said if line.startswith("refused node 5: client 1: ") and words in line]


def test_the_operator_gives_a_number_to_another_key(tmp_path: Path, keys: Path) -> None:
    """A machine was replaced: it has a key of its own, and the state of the old one or none."""
    fleet = Fleet(tmp_path, **LONG)
    give_keys(fleet, keys)
    other = impostor(fleet, 1, keys / "spare.key", tmp_path / "other")
    node = fleet.nodes[1]

    def swap() -> None:
        node.online, other.online = False, True

    before_round(fleet, {1: swap, 3: lambda: main(["accept", str(fleet.path), "1"])})
    fleet.run()
    assert missing(fleet, 1)[5] is None
    assert any(message.metadata.message_type == "train" for message in other.received)
    checkpoint = load_state(newest_checkpoint(fleet.path))
    assert checkpoint["engine.keys"]["1"] == fingerprint((keys / "spare.pub").read_bytes())


def test_a_client_cannot_have_two_numbers(tmp_path: Path, keys: Path) -> None:
    """Number 1 never came; client 2, whose number is known, cannot say it is client 1, too."""
    fleet = Fleet(tmp_path, tasks=1, rounds=1, patience=0.3)
    give_keys(fleet, keys)
    fleet.nodes[1].online = False
    late = fleet.grid.nodes[2000] = Node(1, tmp_path / "other")  # greeted last
    late.context.node_config["key"] = str(keys / "2.key")
    fleet.run()
    assert "it has the key of client 2, 2" in str(missing(fleet, 1)[0])


@pytest.mark.parametrize("change", ["key", "node", "number", "nonce", "garbage"])
def test_a_signature_is_of_this_hello_alone(change: str, tmp_path: Path, keys: Path) -> None:
    text = claim("0" * 16, "nonce", 7, 1)
    head: dict[str, Any] = sign(keys / "1.key", text)
    assert signer(head, text) == fingerprint((keys / "1.pub").read_bytes())
    asked = {"node": claim("0" * 16, "nonce", 8, 1), "number": claim("0" * 16, "nonce", 7, 2)}
    asked["nonce"] = claim("0" * 16, "other", 7, 1)
    if change == "key":
        head["key"] = (keys / "2.pub").read_text()
    if change == "garbage":
        head["key"] = "ssh-ed25519 xx"
    with pytest.raises(GarbageError, match="its signature does not fit"):
        signer(head, asked.get(change, text))


def test_a_hello_signed_for_another_node_is_refused(tmp_path: Path, keys: Path) -> None:
    """What client 1 signed, said by another node."""
    fleet = Fleet(tmp_path, tasks=1, rounds=1, patience=0.3)
    give_keys(fleet, keys)
    thief = fleet.grid.nodes[2000] = Node(1, tmp_path / "thief")  # greeted last
    heard: list[Message] = []

    def steal(message: Message, reply: Message) -> Message | None:
        heard.append(reply)
        return None

    def say_again(message: Message, reply: Message) -> Message:
        return Message(pack(*unpack(heard[0].content)), reply_to=message)

    fleet.nodes[1].spoil, thief.spoil = steal, say_again
    fleet.run()
    assert any(line.startswith("refused node 2000: its signature does not fit") for line in fleet.said)
    assert missing(fleet, 1) == ["away"]


@pytest.mark.parametrize("value", [None, 7, [["a"]], [["a", 3]], [["a" * 41, "b"]], [[]] * 3, [["a", "b"]] * 2**15])
def test_a_trail_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(GarbageError):
        read_trail(value)


def test_a_client_that_tells_no_trail_is_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, tasks=1, rounds=2)

    def silent(message: Message, reply: Message) -> Message:
        head, tensors = unpack(reply.content)
        if head.get("position") == [1, 0]:
            del head["trail"]
        return Message(pack(head, tensors), reply_to=message)

    fleet.nodes[1].spoil = silent
    fleet.run()
    assert missing(fleet, 1) == [None, "refused: it does not say which questions it answered"]


class Course:
    """A client's trail and what a server knows of it, in a run whose server and answers come and go."""

    def __init__(self) -> None:
        self.register = Register(Path("run"))
        self.trail: list[Link] = []
        self.position: Position = (0, 0)
        self.checkpoint = (self.register.kept(), self.position)

    def answer(self, heard: bool) -> None:
        self.trail = extended(self.trail, self.position, (self.position[0], 0), f"{self.position}")
        if heard:
            assert not self.register.follow(1, stamp(self.position), self.trail)
        self.position = (self.position[0], self.position[1] + 1)

    def end_round(self) -> None:
        self.position = (self.position[0] + 1, 0)
        self.checkpoint = (self.register.kept(), self.position)

    def restart_server(self) -> None:
        self.register = Register(Path("run"))
        self.register.take_back(self.checkpoint[0])
        self.position = self.checkpoint[1]
        self.trail = [link for link in self.trail if link[0] < stamp(self.position)]

    def go_on(self, steps: list[str]) -> None:
        for step in steps:
            if step == "round":
                self.end_round()
            elif step == "restart":
                self.restart_server()
            else:
                self.answer(heard=step == "heard")


STEPS = st.lists(st.sampled_from(["heard", "heard", "lost", "round", "restart"]), max_size=SPARE)


@given(STEPS)
def test_an_honest_client_is_never_doubted(steps: list[str]) -> None:
    course = Course()
    course.go_on(steps)
    assert not course.register.doubt(1, "", course.trail)


@given(STEPS, STEPS)
def test_a_state_from_before_the_last_answer_is_always_doubted(first: list[str], then: list[str]) -> None:
    course = Course()
    course.go_on(first)
    old = course.trail
    course.go_on([step for step in then if step != "restart"])
    if course.register.answered.get(1) in [None, *old]:
        return
    assert course.register.doubt(1, "", old)
    assert course.register.doubt(1, "", [])
    moved_on = extended(old, (course.position[0] + 1, 0), course.position, "x")
    assert course.register.doubt(1, "", moved_on)


def test_a_question_answered_again_has_the_same_link() -> None:
    trail: list[Link] = []
    for question in range(5):
        trail = extended(trail, (3, question), (3, 0), f"seal {question}")
    assert extended(trail, (3, 2), (3, 0), "seal 2") == trail
    assert extended(trail, (3, 2), (3, 0), "something in it was forgotten") == trail
    assert extended(trail, (3, 5), (3, 0), "one state") != extended(trail, (3, 5), (3, 0), "another")


def test_a_trail_does_not_grow() -> None:
    trail: list[Link] = []
    for done in range(200):
        for question in range(3):
            trail = extended(trail, (done, question), (done, 0), "")
    assert len(trail) == SPARE + 3
