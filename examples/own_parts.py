"""A plugin: one small part of every kind that cflag knows, in one file.

cflag list methods --plugin examples/own_parts.py
cflag run digits --plugin examples/own_parts.py --set method=pulled --set source=dots --set tasks=2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cflag import (
    Backbone,
    BackboneOptions,
    Classes,
    Client,
    Config,
    Deal,
    FedAvg,
    Figure,
    Logger,
    Memory,
    Plan,
    RobustMean,
    Samples,
    Schedule,
    Score,
    Series,
    Source,
    Task,
    TaskSequence,
    register,
)


@register("method", "pulled")
class Pulled(FedAvg):
    """FedAvg whose local steps are pulled towards the global model, and which says how far they went."""

    figures = (Figure("pull", "Distance from the global model", (Series("distance", "‖x_i − x‖", by_client=True),)),)
    search_space: ClassVar[Mapping[str, Any]] = {"lr": (0.02, 0.2)}

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        away = client.params - client.start
        client.log(distance=float(away.norm()))
        return client.value_and_grad(batch)[1] + 0.1 * away


@register("problem", "top2", "classes, right where the true one is among the two largest outputs")
class TopTwo(Classes):
    """Cross entropy as ever, another score: it is made of a sum over samples, like all of them."""

    scores = (Score("top2", "Top-2", "top-2 accuracy", "%", 100.0, 1, bounds=(0.0, 1.0)),)

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.topk(min(2, outputs.shape[1])).indices == y[:, None]).any(1, keepdim=True)


@register("source", "dots", "600 points around six centres, 6 numbers each")
def dots(data_dir: Path) -> Source:
    x, y = torch.randn(600, 6, generator=torch.Generator().manual_seed(1)), torch.arange(600) % 6
    x[torch.arange(600), y] += 4
    return Source.from_tensors(train=(x[:480], y[:480]), test=(x[480:], y[480:]), name="dots")


@register("scenario", "odd-even", "the even classes are the first task, the odd ones the second")
def odd_even(source: Source, options: Config) -> TaskSequence:
    return TaskSequence(tuple(Task(tuple(range(k, source.classes, 2))) for k in range(2)), by_task=True)


@register("partition", "alternating", "sample after sample to client after client")
def alternating(deal: Deal) -> tuple[list[NDArray[np.int64]], ...]:
    clients = deal.options.clients
    return tuple([half.indices[k::clients] for k in range(clients)] for half in (deal.train, deal.test))


@register("schedule", "late", "every second client begins each task a round late")
class Late(Schedule):
    def planned(self) -> Plan:
        first = np.tile(np.arange(self.frame.tasks) * self.frame.rounds, (self.frame.clients, 1))
        last = first + self.frame.rounds - 1
        first[1::2] += 1
        return Plan.of(first, last)


@register("model", "line", "one linear layer")
def line(shape: tuple[int, ...], outputs: int, options: Config) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), outputs))


@register("augmentation", "shrink", "numbers that are a little smaller")
def shrink(x: Tensor, generator: np.random.Generator) -> Tensor:
    factors = torch.from_numpy(generator.uniform(0.9, 1.0, len(x))).to(x)
    return x * factors.view(-1, *[1] * (x.dim() - 1))


class Profile(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """How bright the columns of a picture are, and its rows."""
        return torch.cat([x.mean((1, 2)), x.mean((1, 3))], 1)


@register("backbone", "profile", "how bright the columns and rows of a picture are")
def profile(options: BackboneOptions) -> Backbone:
    return Backbone("profile", Profile(), size=options.size or 8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@register("memory", "first", "the first samples of each task")
class First(Memory):
    def add(self, samples: Samples, rng: np.random.Generator) -> None:
        kept = samples[: self.options.per_task]
        self.samples = kept if self.samples is None else Samples.cat([self.samples, kept])


@register("mean", "midway", "halfway between the smallest and the largest value")
class Midway(RobustMean):
    def combine(self, rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        values = torch.stack(list(rows))
        return (values.amin(0) + values.amax(0)) / 2


@register("logger", "lines", "one line per round in RUN/lines.txt")
class Lines(Logger):
    name = "lines"
    title = "a text file"

    @classmethod
    def modules(cls) -> list[str]:
        return []

    def open(self, done: int) -> set[int]:
        self.path = self.folder.path / "lines.txt"
        return {int(row.split()[0]) for row in self.path.read_text().splitlines()} if self.path.exists() else set()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with open(self.path, "a") as file:
            file.write(f"{step} {values['loss/current']:.4f}\n")

    def sum_up(self, result: Mapping[str, Any]) -> None:
        with open(self.path, "a") as file:
            file.write(f"0 {result['average_accuracy']:.4f}\n")

    def close(self, status: str) -> None:
        """Nothing is open."""
