"""The host: the clients that one process serves, with the one model they share."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cflag.client import Client
from cflag.conversation import Ask, Occasion, Reply, Value
from cflag.data.benchmark import Benchmark
from cflag.data.samples import Samples
from cflag.files import load_state, save_state
from cflag.learning.learner import Learner
from cflag.memory import MEMORIES
from cflag.memory.base import Memory, MemoryOptions
from cflag.methods.base import Method

Count = tuple[int, int, int]
"""Right answers with the task known, right answers without, and samples."""


@dataclass(frozen=True)
class GlobalModel:
    """What the server sends with a question: its parameters and batch-norm statistics."""

    params: Tensor
    buffers: Tensor


class Host:
    """Answers questions for clients one after the other; a client comes into being when it is first needed.

    Every public function is a generator of one reply a client, so that a host works the same in this process,
    behind a pipe, or behind a network.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        method: Method,
        learner: Learner,
        memory: MemoryOptions,
        seed: int,
        scratch_limit: int = 2**30,
    ) -> None:
        self.benchmark = benchmark
        self.method = method
        self.learner = learner
        self.memory = memory
        self.seed = seed
        self.scratch_limit = scratch_limit
        self.clients: dict[int, Client] = {}
        self.task_of: dict[int, int] = {}
        self.changed: set[int] = set()

    def answer(self, numbers: Sequence[int], ask: Ask, model: GlobalModel, occasion: Occasion) -> Iterator[Reply]:
        """Let each client answer a question, starting from the global model."""
        for number in numbers:
            client = self._client(number, occasion.task)
            before = client.kept()
            self.learner.load(model.params, model.buffers)
            client.begin_question(ask.question, occasion)
            answer = getattr(self.method, ask.question)(client, **ask.sent)
            client.end_question()
            after = client.kept()
            if len(after) != len(before) or any(a is not b for a, b in zip(after, before, strict=True)):
                self.changed.add(number)
            if sum(c.scratch_bytes() for c in self.clients.values()) > self.scratch_limit:
                client.drop_scratch()
            yield Reply(answer, len(client.data), client.cost, client.remarks)

    def evaluate(
        self,
        numbers: Sequence[int],
        tasks: Sequence[int],
        model: GlobalModel,
        current: int,
        sent: Mapping[str, Value],
    ) -> Iterator[list[Count]]:
        """Count each client's right answers, with and without the task known, on its held-out samples of each task."""
        self.learner.load(model.params, model.buffers)
        self.learner.current = current
        for number in numbers:
            held_out = [self.benchmark.test(number, task) for task in tasks]
            right = torch.zeros(0, 2)
            if any(map(len, held_out)):
                together = Samples.cat(held_out)
                scores = self.method.scores(self._client(number, current), together, **sent)
                right = self.learner.right(scores, together)
            pieces = right.split([len(samples) for samples in held_out])
            yield [(int(piece[:, 0].sum()), int(piece[:, 1].sum()), len(piece)) for piece in pieces]

    def save(self, numbers: Sequence[int], folder: Path, stamp: str) -> Iterator[str | None]:
        """Save the clients that changed since the last time; say under which name, or None for the others."""
        for number in numbers:
            if number not in self.changed:
                yield None
                continue
            client = self.clients[number]
            state: dict[str, Any] = {f"memory.{k}": v for k, v in client.memory.state().items()}
            state.update({f"state.{k}": v for k, v in client.state.items()})
            name = f"client-{number:05d}.{stamp}.safetensors"
            save_state(folder / name, state)
            self.changed.discard(number)
            yield name

    def restore(self, numbers: Sequence[int], folder: Path, names: dict[int, str]) -> Iterator[None]:
        """Bring clients back to what was saved under these names; those without a name start anew."""
        for number in numbers:
            self.clients.pop(number, None)
            self.task_of.pop(number, None)
            self.changed.discard(number)
            if number in names:
                client = self.clients[number] = self._new_client(number)
                saved = load_state(folder / names[number])
                client.memory.restore(_part(saved, "memory."))
                client.state = _part(saved, "state.")
            yield None

    def peak_mb(self, numbers: Sequence[int]) -> Iterator[float]:
        """Tell the largest memory this process ever had (ru_maxrss is in kB on Linux)."""
        for _ in numbers:
            yield resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3

    def _client(self, number: int, task: int) -> Client:
        client = self.clients.get(number)
        if client is None:
            client = self.clients[number] = self._new_client(number)
        if self.task_of.get(number) != task:
            client.data = self.benchmark.train(number, task)
            self.task_of[number] = task
        return client

    def _new_client(self, number: int) -> Client:
        kind = self.memory.kind if self.method.uses_memory else "none"
        memory: Memory = MEMORIES.get(kind)(self.memory)
        return Client(number, self.seed, self.learner, memory)


def _part(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
