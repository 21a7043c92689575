"""The server's memory while a fleet answers: `python -m benchmarks.answers [CLIENTS] [PARAMETERS]` prints a table.

A stand-in grid makes each answer, a vector as long as the model, when it is fetched. The server asks one question that
is new to it, then one whose answers it has seen. Answers come in the order of the clients' numbers, in any order, or
with the first client last, so that all others wait for it. Each way has a process of its own, whose peak it is.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity
from rich.console import Console
from rich.table import Table

from cflag.build import build_method
from cflag.config import load_raw, merge, resolve
from cflag.conversation import Ask
from cflag.engines.flower.messages import pack
from cflag.engines.flower.server.engine import FlowerEngine
from cflag.engines.flower.server.register import Register
from cflag.engines.flower.server.roll import Member
from cflag.process import peak_mb
from cflag.server import Server

ORDERS = ("in order", "any order", "first one last")
RUN = "0123456789abcdef"
SAMPLES = 100


class Grid:
    """Clients that answer with a vector of random numbers, in an order."""

    def __init__(self, clients: int, order: str) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.clients = clients
        self.order = order
        self.questions: dict[str, Message] = {}
        self.drawn = random.Random(1)
        self.count = 0
        self.size = 0

    def get_node_ids(self) -> list[int]:
        """Return all nodes."""
        return list(range(self.clients))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take questions."""
        ids = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = f"message-{self.count}"
            ids.append(message.metadata.message_id)
            self.questions[ids[-1]] = message
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        """Make the answers that are there by now."""
        here = [key for key in ids if key in self.questions and self._has_come(key)]
        return [self._answer(self.questions.pop(key)) for key in here]

    def _has_come(self, key: str) -> bool:
        if self.order == "any order":
            return self.drawn.random() < 0.1
        return self.order == "in order" or self.questions[key].metadata.dst_node_id != 0 or len(self.questions) == 1

    def _answer(self, question: Message) -> Message:
        number = question.metadata.dst_node_id
        drawn = torch.Generator().manual_seed(number)
        head = {"number": number, "experiment": RUN, "position": list(self.position), "samples": SAMPLES,
                "numbers": {}, "cost": [1, 0], "logs": {}, "holds": []}  # fmt: skip
        return Message(pack(head, {"g": torch.randn(self.size, generator=drawn)}), reply_to=question)

    position: tuple[int, int] = (0, 0)


def measure(clients: int, size: int, order: str, pipe: Any) -> None:
    """Ask twice; send the seconds of each question, and the peak before and after both."""
    torch.set_num_threads(1)
    own = [("engine", "flower"), ("clients", clients), ("min_clients", clients), ("deadline", 3600.0), ("rounds", 2)]
    config = resolve(merge(load_raw("digits"), own))
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        grid = Grid(clients, order)
        grid.size = size
        engine = FlowerEngine(grid, config, RUN, print, Register(Path(folder)))  # type: ignore[arg-type]
        tasks = [SAMPLES] * config.tasks
        engine.roll.members = {k: Member(k, "", tasks, tasks, "", []) for k in range(clients)}
        engine.roll.present, engine.roll.sizes = set(range(clients)), dict.fromkeys(range(clients), tasks)
        server = Server(torch.zeros(size), torch.zeros(0), config.rounds, None)  # type: ignore[arg-type]
        server.sizes = dict.fromkeys(range(clients), SAMPLES)
        before, seconds = peak_mb(), []
        for round_ in range(2):
            server.round, grid.position = round_, (round_, 0)
            started = time.perf_counter()
            engine.ask(Ask.named("gradients", {}, build_method(config)), server)
            seconds.append(time.perf_counter() - started)
        pipe.send((seconds, before, peak_mb()))


def main() -> None:
    """Measure each order."""
    clients, size = (int(word) for word in [*sys.argv[1:], *("100", "11000000")[len(sys.argv) - 1 :]])
    table = Table("answers come", "new question, s", "known question, s", "MB before", "MB peak")
    for order in ORDERS:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=measure, args=(clients, size, order, theirs))
        process.start()
        theirs.close()
        (new, known), before, peak = ours.recv()
        process.join()
        table.add_row(order, f"{new:.1f}", f"{known:.1f}", f"{before:.0f}", f"{peak:.0f}")
    Console().print(f"{clients} clients, answers of {4 * size / 1e6:.0f} MB: {4 * size * clients / 1e6:.0f} MB in all")
    Console().print(table)


if __name__ == "__main__":
    main()
