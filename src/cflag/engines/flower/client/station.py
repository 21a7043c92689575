"""A station: it answers the server's questions for one client, with the client's own data and state."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

from torch import Tensor

import cflag
from cflag.config import OPTION_TABLES, Config, load_text, resolve
from cflag.conversation import Answer, Ask
from cflag.engines.flower.client.states import StateFolder
from cflag.engines.flower.messages import Parcel, Question, Shelf
from cflag.engines.flower.sealed import LEAST
from cflag.engines.host import NONE_LEFT, Host, host_of
from cflag.errors import CflagError, one_line
from cflag.files import sweep
from cflag.memory.gate import at_work
from cflag.models.reference import is_reference
from cflag.privacy.noise import digest
from cflag.process import use_one_thread


class Station:
    """One client of one experiment, with what it needs to answer.

    `keeps` says whether this process will be there for the next question, too: only then does the server leave out
    tensors that it sent before.
    """

    def __init__(self, number: int, config: Config, host: Host, states: StateFolder, keeps: bool) -> None:
        if not 0 <= number < config.clients:
            raise CflagError(f"partition-id = {number}: this experiment has clients 0 to {config.clients - 1}")
        self.number = number
        self.config = config
        self.host = host
        self.states = states
        self.keeps = keeps
        self.shelf = Shelf()
        host.keeper.watch(states.home, number)
        sweep(states.folder)

    def hello(self) -> Parcel:
        """Say who this is, and what the server needs to know of its data."""
        deal, tasks = self.host.benchmark, range(len(self.host.benchmark.tasks))
        head = {
            "number": self.number,
            "version": cflag.__version__,
            "spec": deal.spec.to_dict(),
            "sizes": [deal.size(self.number, task) for task in tasks],
            "test_sizes": [deal.test_size(self.number, task) for task in tasks],
            "trail": self.states.trail(),
        }
        return head, {}

    def answer(self, head: Mapping[str, Any], sent: Mapping[str, Tensor]) -> Parcel:
        """Answer a question and keep what it changed, before the answer leaves."""
        tensors = self.shelf.open(head["tensors"], sent)
        if tensors is None:
            return {"number": self.number, "lacks": True}, {}
        question, attempt = Question.read(head, tensors), head["attempt"]
        with at_work(self.states.home):  # between two answers others may change what the memory holds
            return self._answer(question, attempt, head)

    def _answer(self, question: Question, attempt: str, head: Mapping[str, Any]) -> Parcel:
        saved = self.states.before(question.position, attempt)
        ask = Ask.named(question.name, question.sent, self.host.method)
        (reply,) = self.host.answer([(self.number, saved)], ask, question.model, question.context)
        if reply is None:
            raise CflagError(f"client {self.number}: {NONE_LEFT}")
        list(self.host.save(self.states.sink(question.position)))
        where = {"task": question.context.task + 1, "round": question.context.round + 1, "question": question.name}
        # A server that restarts has the rounds before this one in its checkpoint, or all but one of them where that is
        # damaged; but it asks again what this client had still to catch up on then.
        catching_up = head.get("floors", {}).get(str(self.number), question.position)
        floor = min((question.position[0] - 1, 0), (catching_up[0], catching_up[1]))
        self.states.answered(question.position, floor, attempt, where)
        return {
            "number": self.number,
            "position": list(question.position),
            "trail": self.states.trail(),
            "samples": reply.samples,
            "cost": [reply.cost.current, reply.cost.memory],
            "logs": dict(reply.logs),
            **({"uses": reply.uses} if self.config.privacy.on else {}),
            "numbers": {k: v for k, v in reply.answer.items() if not isinstance(v, Tensor)},
            "holds": sorted(self.shelf.held) if self.keeps else [],
        }, {k: v for k, v in reply.answer.items() if isinstance(v, Tensor)}

    def with_noise(self, head: Mapping[str, Any], sent: Mapping[str, Tensor], answer: Answer) -> Answer:
        """Return an answer with this client's share of the noise, where clients add it under secure aggregation.

        Any `needed` clients' shares are enough for the sum. The server says how many samples the largest client has.
        """
        shield, size = self.host.shield, self.host.clients[self.number].size
        if shield is None:
            return answer
        needed = max(min(self.config.min_clients, head["context"][3]), LEAST)
        largest = max(size, int(head.get("largest", head["total"])))
        told = json.dumps([head["numbers"], head["context"], head["position"]])
        name = (self.number, told, digest(*(sent[key] for key in sorted(sent))))
        return shield.share(head["question"], answer, largest / size / sqrt(needed), *name)

    def evaluate(self, head: Mapping[str, Any], sent: Mapping[str, Tensor]) -> Parcel:
        """Test the global model on this client's held-out samples."""
        tensors = self.shelf.open(head["tensors"], sent)
        if tensors is None:
            return {"number": self.number, "lacks": True}, {}
        question = Question.read(head, tensors)
        counts = self.host.evaluate(
            [[self.number]], head["tasks"], question.model, question.context.moment.seen, question.sent
        )
        held = sorted(self.shelf.held) if self.keeps else []
        return {"number": self.number, "counts": next(counts)[0].tolist(), "holds": held}, {}


class Stations:
    """The stations of one process; in a simulation it serves several clients with one model and one data set."""

    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.name = ""
        self.open: dict[int, Station] = {}

    def get(self, folder: Path, number: int, node: Mapping[str, Any], head: Mapping[str, Any]) -> Station:
        """Return a client's station for the experiment that a message is about."""
        name = str(head.get("experiment"))
        if not re.fullmatch(r"[0-9a-f]{16}", name):
            raise CflagError(f"'{name}' is not the name of an experiment")
        states = StateFolder(folder / name)
        if "config" in head:
            states.learn(head["config"])
        if states.config is None:
            raise CflagError(f"experiment {name} is unknown to client {number}: its state folder has nothing of it")
        if name != self.name:
            use_one_thread()
            raw = load_text(states.config, states.folder / "config.toml")
            # The server decides the experiment; this machine decides where its data are, what computes, and which code
            # of its own it runs: a server must not be able to name a file that a client then executes.
            own = {key: value for key, value in raw.items() if not isinstance(value, dict)}
            if "plugins" in node and "model" not in node and is_reference(str(own.get("model", ""))):
                raise CflagError(
                    f"client {number}: the experiment's model, {one_line(own['model'], 100)}, is code of the server's; "
                    "if you have it here and trust it, start this client with --model FILE.py:NAME"
                )
            tables = {key: dict(raw[key]) for key in (*OPTION_TABLES, str(raw.get("method"))) if key in raw}
            tables.get("schedule", {}).pop("file", None)  # its lines are here
            self.config = resolve({**own, **tables, "workers": 1, **node})
            self.host = host_of(self.config, folder=states.folder)
            self.name, self.open = name, {}
        if number not in self.open:
            self.open[number] = Station(number, self.config, self.host, states, self.keeps)
        return self.open[number]

    def drop(self) -> None:
        """Forget all that is in memory: after a failure the state on disk is what counts."""
        self.name, self.open = "", {}
