"""A grid without processes: nodes that run the ClientApp here, and can be made to fail."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from cflag import run
from cflag.commands.server_app import run_server_app
from cflag.config import Config, flatten, load_raw, merge, resolve
from cflag.engines.flower.client import app as client_app
from cflag.engines.flower.client.station import Stations
from cflag.engines.flower.server import post, roll
from cflag.results.folder import RunFolder
from cflag.results.result import Result

Spoil = Callable[[Message, Message], Message | None]
"""What happens to a reply on its way, given the question and the reply; None loses it."""


class Node:
    """One client's SuperNode."""

    def __init__(self, number: int, state: Path, keeps: bool = True) -> None:
        self.number = number
        self.state = state
        self.keeps = keeps
        self.online = True
        self.spoil: Spoil = lambda question, reply: reply
        self.received: list[Message] = []
        # What Flower keeps for a node between the messages of a run: the secrets of secure aggregation.
        node: dict[str, Any] = {"partition-id": number, "state-dir": str(state)}
        self.context = Context(run_id=1, node_id=number, node_config=node, state=RecordDict(), run_config={})
        self.restart()

    def restart(self) -> None:
        """Lose all that is in memory, as a killed process does."""
        self.stations = Stations(self.keeps)

    def answer(self, message: Message) -> Message | None:
        """Run the ClientApp for a message."""
        self.received.append(message)
        client_app.stations = self.stations
        try:
            reply = client_app.client(message=message, context=self.context)
        except Exception as error:
            reply = Message(Error(1, f"{type(error).__name__}: {error}"), reply_to=message)
        return self.spoil(message, reply)


class FakeGrid:
    """What Flower's grid does, in this process: messages are answered when they are pushed."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        # Ids in another order than the clients' numbers, as Flower's random ones are.
        self.nodes = {1000 - node.number: node for node in nodes}
        self.replies: dict[str, Message] = {}
        self.count = 0

    def get_node_ids(self) -> list[int]:
        return [key for key, node in self.nodes.items() if node.online]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = f"message-{self.count}"
            ids.append(message.metadata.message_id)
            node = self.nodes[message.metadata.dst_node_id]
            reply = node.answer(copy.deepcopy(message)) if node.online else None
            if reply is not None:
                self.replies[message.metadata.message_id] = reply
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(key) for key in list(ids) if key in self.replies]


QUICK: dict[str, Any] = {"clients": 3, "tasks": 2, "rounds": 2, "width": 8, "epochs": 1}

for module in (post, roll):
    vars(module)["POLL"] = 0.01  # answers are there at once


class Fleet:
    """A few nodes, a run folder, and the server of an experiment: Split-Digits, shortened."""

    def __init__(self, folder: Path, keeps: bool = True, **settings: Any) -> None:
        own = {"engine": "flower", "deadline": 0.3, "patience": 2.0}
        self.config: Config = resolve(merge(load_raw("digits"), flatten({**QUICK, **own, **settings})))
        self.path = folder / "run"
        self.nodes = [Node(k, folder / f"state-{k}", keeps) for k in range(self.config.clients)]
        self.grid = FakeGrid(self.nodes)
        self.said: list[str] = []

    def run(self) -> Result:
        """Run, or go on with, the experiment."""
        here = (self.path / "config.toml").is_file()
        folder = RunFolder.open(self.path) if here else RunFolder.create(self.path, self.config)
        run_server_app(self.grid, folder, self.said.append)  # type: ignore[arg-type]
        return Result.load(self.path)

    def records(self) -> list[dict[str, Any]]:
        """Return the lines of the metrics."""
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]


def local(folder: Path, **settings: Any) -> Result:
    """Run the same experiment on the local engine."""
    return run("digits", out=folder / "local", workers=1, **{**QUICK, **settings})


def numbers(folder: Path) -> tuple[list[dict[str, Any]], bytes, Any]:
    """Return all that must not depend on the engine: the metrics but for time, the model, the matrices."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    plain = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    return plain, (folder / "model.safetensors").read_bytes(), (result["matrices"], result["client_matrices"])
