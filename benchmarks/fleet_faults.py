"""Faults of a fleet on a grid without processes: to messages, to clients and their states, and to the server."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict
from tests.support.grid import Fleet, Node

from benchmarks.injection import Operations, disk_full, flip_bit
from cflag.engines.flower.messages import pack, unpack
from cflag.engines.flower.server import exchange
from cflag.errors import CflagError
from cflag.files import read_json
from cflag.results.folder import RunFolder

FLEET_KINDS = (
    "answer is garbage",
    "answer delayed",
    "question or answer lost",
    "client killed at a file operation",
    "client's disk full",
    "bit flipped in a client's state",
    "client's state wiped or an old copy",
    "server killed",
    "server killed, its checkpoint damaged",
)
SETTINGS: dict[str, Any] = {"min_clients": 3, "deadline": 0.1, "patience": 6.0, "samples_per_class": 40, "rounds": 3}
vars(exchange)["HELLO"] = 0.3  # seconds that an idle client has to say hello
EVENTS = 90
"""Messages that the clients of a run get, about."""


class KilledError(BaseException):
    """The end of a process: no handler of ours runs on it."""


def killed() -> None:
    """End here."""
    raise KilledError


class Saboteur:
    """Lets things happen to the messages that are drawn, whoever gets them."""

    def __init__(self, kind: str, draw: random.Random, faults: int, fleet: Fleet) -> None:
        self.kind = kind
        self.draw = draw
        self.fleet = fleet
        self.when = set(draw.sample(range(3, EVENTS), faults))
        self.events = 0
        self.injected = 0
        self.late: list[tuple[float, Message]] = []
        self.put_back: dict[int, tuple[int, Callable[[], None]]] = {}
        """What repairs a client's state, and after how many more messages to it."""
        self.copies: dict[int, Path] = {}

    def take_over(self) -> None:
        """Stand between the grid and its nodes."""
        for node in self.fleet.nodes:
            node.answer = self._between(node, node.answer)  # type: ignore[method-assign]
        pull = self.fleet.grid.pull_messages

        def pull_late(ids: Any) -> list[Message]:
            due = [message for when, message in self.late if when <= time.monotonic()]
            self.late = [(when, message) for when, message in self.late if when > time.monotonic()]
            self.fleet.grid.replies |= {message.metadata.reply_to_message_id: message for message in due}
            return pull(ids)

        self.fleet.grid.pull_messages = pull_late  # type: ignore[method-assign]

    def _between(self, node: Node, answer: Callable[[Message], Message | None]) -> Any:
        def sabotaged(message: Message) -> Message | None:
            self.events += 1
            self._repair(node)
            if self.events not in self.when:
                return answer(message)
            self.injected += 1
            strikes: dict[str, Callable[..., Message | None]] = {
                "answer is garbage": self._garble,
                "answer delayed": self._delay,
                "question or answer lost": self._lose,
                "client killed at a file operation": self._kill,
                "client's disk full": self._fill,
                "bit flipped in a client's state": self._flip,
                "client's state wiped or an old copy": self._wipe,
                "server killed": self._kill_server,
                "server killed, its checkpoint damaged": self._damage_server,
            }
            return strikes[self.kind](node, message, answer)

        return sabotaged

    def _repair(self, node: Node) -> None:
        """Put back what was damaged, once a few messages were refused because of it."""
        left, repair = self.put_back.get(node.number, (0, killed))
        if left == 1:
            repair()
            del self.put_back[node.number]
        elif left:
            self.put_back[node.number] = (left - 1, repair)

    def _garble(self, node: Node, message: Message, answer: Callable[[Message], Message | None]) -> Message | None:
        reply = answer(message)
        if reply is None or reply.has_error():
            return reply
        head, tensors = unpack(reply.content)
        garbage: list[Callable[[], RecordDict]] = [
            lambda: RecordDict(),
            lambda: RecordDict({"cflag": ConfigRecord({"head": "not JSON", "body": b""})}),
            lambda: RecordDict({"cflag": ConfigRecord({"head": "{}", "body": self.draw.randbytes(100)})}),
            lambda: pack({**head, "experiment": "0" * 16}, tensors),
            lambda: pack({**head, "number": "one"}, tensors),
            lambda: pack({key: self.draw.random() for key in head}, tensors),
            lambda: pack({k: v for k, v in head.items() if k in ("experiment", "number")}, {}),
            lambda: pack({**head, "number": node.number + 5}, tensors),
        ]
        if tensors:
            garbage += [
                lambda: pack(head, {k: torch.full_like(v, torch.nan) for k, v in tensors.items()}),
                lambda: pack(head, {k: v[None] for k, v in tensors.items()}),
                lambda: pack(head, {f"{k}x": v for k, v in tensors.items()}),
                lambda: pack(head, {**tensors, "more": torch.zeros(10**5)}),
            ]
        if self.draw.random() < 0.1:
            return Message(Error(1, "an exception somewhere"), reply_to=message)
        return Message(self.draw.choice(garbage)(), reply_to=message)

    def _delay(self, node: Node, message: Message, answer: Callable[[Message], Message | None]) -> Message | None:
        reply = answer(message)
        if reply is not None:
            self.late.append((time.monotonic() + self.draw.uniform(0, 3 * SETTINGS["deadline"]), reply))
        return None

    def _lose(self, node: Node, message: Message, answer: Callable[[Message], Message | None]) -> Message | None:
        if self.draw.random() < 0.5:
            answer(message)
        return None

    def _kill(self, node: Node, message: Message, answer: Callable[[Message], Message | None]) -> Message | None:
        """Killed in the middle of writing its state, or, where it writes nothing, before it answers."""
        with suppress(KilledError), Operations(self.draw.randint(1, 10), killed):
            answer(message)
        node.restart()
        return None

    def _fill(self, node: Node, message: Message, answer: Callable[[Message], Message | None]) -> Message | None:
        full = Operations(self.draw.randint(1, 6), disk_full, goes_on=True)
        with full:
            reply = answer(message)
        self.injected -= full.count < full.at  # it wrote too little to notice
        return reply

    def _flip(self, node: Node, message: Message, answer: Callable[[Message], Message | None]) -> Message | None:
        """Change a bit of a file; it is put back unless it was replaced meanwhile."""
        files = sorted(path for path in node.state.rglob("*") if path.is_file() and path.stat().st_size)
        if node.number in self.put_back or not files:
            self.injected -= 1
            return answer(message)
        path = self.draw.choice(files)
        whole, damaged = flip_bit(path, self.draw)

        def repair() -> None:
            if path.exists() and path.read_bytes() == damaged:
                path.write_bytes(whole)

        node.restart()
        self.put_back[node.number] = (3, repair)
        return answer(message)

    def _wipe(self, node: Node, message: Message, answer: Callable[[Message], Message | None]) -> Message | None:
        """Take the state away, or put an earlier one in its place; the right one comes back after a while."""
        copy = self.copies.get(node.number)
        right = node.state.with_name(f"right-{node.number}-{self.events}")
        if node.number in self.put_back or not list(node.state.glob("*/status.json")):
            self.injected -= 1
            return answer(message)
        shutil.copytree(node.state, right)
        shutil.rmtree(node.state)
        if copy is not None and _trail(copy) != _trail(right) and self.draw.random() < 0.7:
            shutil.copytree(copy, node.state)
        self.copies[node.number] = right

        def repair() -> None:
            shutil.rmtree(node.state)
            shutil.copytree(right, node.state)
            node.restart()

        self.put_back[node.number] = (4, repair)
        return answer(message)

    def _kill_server(self, node: Node, message: Message, answer: Callable[[Message], Message | None]) -> Message | None:
        if self.draw.random() < 0.5:
            answer(message)
        raise KilledError

    def _damage_server(
        self, node: Node, message: Message, answer: Callable[[Message], Message | None]
    ) -> Message | None:
        """Killed, and a bit of its last checkpoint changes; where there is none before it, the run would be lost."""
        checkpoints = RunFolder(self.fleet.path).generations.files()
        if len(checkpoints) < 2:
            self.injected -= 1
            return answer(message)
        flip_bit(checkpoints[0], self.draw)
        return self._kill_server(node, message, answer)


def _trail(state: Path) -> Any:
    """Return what a client has answered."""
    return read_json(next(state.glob("*/status.json")))["trail"]


def run_fleet(kind: str, draw: random.Random, faults: int, folder: Path) -> tuple[int, int, Path, dict[int, Path]]:
    """Run a fleet with some faults to its end; return how many there were and were noticed, and where all is."""
    folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(folder, **SETTINGS)
    saboteur = Saboteur(kind, draw, faults, fleet)
    saboteur.take_over()
    while not (fleet.path / "result.json").exists():
        with suppress(KilledError):
            fleet.run()
        if not (fleet.path / "result.json").exists() and not kind.startswith("server killed"):
            raise CflagError(f"{fleet.path} did not finish")
    states = {node.number: max(node.state.glob("*/client-*.safetensors")) for node in fleet.nodes}
    noticed = sum(line.startswith(("client ", "refused ")) for line in fleet.said)
    events = fleet.path / "events.log"
    noticed += events.read_text().count("going on from the checkpoint before") if events.exists() else 0
    return saboteur.injected, noticed, fleet.path, states
