"""A benchmark: source + scenario + partition + seed. It deals every task to the clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cflag.data.heads import Heads
from cflag.data.partitions import Indices, by_shares, by_subject, draw_shares, in_turn, refuse_poor
from cflag.data.samples import Samples
from cflag.data.scenarios import make_tasks
from cflag.data.source import Source, Split
from cflag.data.spec import Spec
from cflag.errors import UserError
from cflag.rng import stream


@dataclass(frozen=True)
class BenchmarkOptions:
    """How a source becomes tasks, and tasks become clients' data."""

    scenario: Literal["task", "class", "permuted", "rotated"] = "task"
    tasks: int = 5
    clients: int = 5
    partition: Literal["dirichlet", "iid", "subject", "own"] = "dirichlet"
    """How a task's samples are dealt to clients; "own" is for a fleet whose clients each have data of their own."""
    zeta: float = 1e5
    min_samples: int = 1
    class_order: Literal["seeded", "natural"] = "seeded"
    samples_per_class: int = 0
    test_per_class: int = 0
    image_size: int = 0
    seed: int = 1234


class Benchmark:
    """Who gets which samples of which task; only indices are kept, samples are cut out when asked for."""

    def __init__(self, source: Source, options: BenchmarkOptions) -> None:
        self.options = options
        self.source = source = _resized(_reduced(source, options), options.image_size)
        self.tasks = make_tasks(source, options.scenario, options.tasks, options.class_order, options.seed)
        self.spec = Spec(
            shape=source.shape,
            dtype=str(source.train.x.dtype).removeprefix("torch."),
            classes=source.classes,
            mean=source.mean,
            std=source.std,
            tasks=tuple(task.classes for task in self.tasks),
            by_task=options.scenario == "task",
            clients=options.clients,
        )
        present = source.test.y.unique().tolist()
        if options.partition == "own":  # what one client lacks another may have
            present = list(range(source.classes))
        for index, task in enumerate(self.tasks):
            if not set(task.classes) & set(present):
                raise UserError(f"task {index + 1} has no test samples: {source.name}'s test half lacks its classes")
        dealt = [self._deal(index) for index in range(len(self.tasks))]
        self._train = [train for train, _ in dealt]
        self._test = [test for _, test in dealt]

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self.options.clients

    @property
    def heads(self) -> Heads:
        """Which outputs belong to which task."""
        return self.spec.heads

    def normalise(self, x: Tensor) -> Tensor:
        """Turn raw samples into what a model takes."""
        return self.spec.normalise(x)

    def sizes(self, task: int) -> dict[int, int]:
        """Return how many training samples each client has of a task."""
        return {client: self.size(client, task) for client in range(self.clients)}

    def size(self, client: int, task: int) -> int:
        """Return how many training samples a client has of a task."""
        return len(self._train[task][client])

    def train(self, client: int, task: int) -> Samples:
        """Return a client's training samples of a task: the paper's C^i."""
        return self._cut(self.source.train, self._train[task][client], task)

    def test_size(self, client: int, task: int) -> int:
        """Return how many held-out samples a client has of a task."""
        return len(self._test[task][client])

    def test(self, client: int, task: int) -> Samples:
        """Return a client's held-out samples of a task."""
        return self.tests([client], task)

    def tests(self, clients: Sequence[int], task: int) -> Samples:
        """Return the held-out samples of several clients, one client's after another's."""
        return self._cut(self.source.test, np.concatenate([self._test[task][client] for client in clients]), task)

    def _cut(self, split: Split, indices: Indices, task: int) -> Samples:
        chosen = torch.from_numpy(indices)
        x = self.tasks[task].transform(split.x[chosen])
        return Samples(x, split.y[chosen], torch.full((len(chosen),), task))

    def _deal(self, task: int) -> tuple[list[Indices], list[Indices]]:
        """Deal a task's train and test samples to all clients with the same shares."""
        o = self.options
        halves = (self.source.train, self.source.test)
        classes = sorted(self.tasks[task].classes)
        labels = [half.y.numpy() for half in halves]
        chosen = [np.flatnonzero(np.isin(y, classes)) for y in labels]
        rngs = [stream(o.seed, f"deal {name}", task) for name in ("train", "test")]
        if o.partition == "subject":
            train, test = by_subject(halves, chosen, o.clients)
        elif o.partition == "own":
            train, test = ([half] * o.clients for half in chosen)
        elif o.partition == "iid":
            train, test = map(in_turn, labels, chosen, [o.clients] * 2, rngs)
        else:
            sizes = [int((labels[0] == c).sum()) for c in classes]
            shares = draw_shares(sizes, o.clients, o.zeta, o.min_samples, o.seed, task)
            train, test = map(by_shares, labels, chosen, [classes] * 2, [shares] * 2, rngs)
        refuse_poor(train, o.min_samples, task)
        return train, test


def _reduced(source: Source, options: BenchmarkOptions) -> Source:
    """Keep a seeded subset of each class, where the options ask for one."""

    def keep(split: Split, count: int, name: str) -> Split:
        if not count:
            return split
        rng = stream(options.seed, f"subset {name}")
        labels = split.y.numpy()
        parts = [rng.permutation(np.flatnonzero(labels == c))[:count] for c in np.unique(labels)]
        chosen = torch.from_numpy(np.sort(np.concatenate(parts)))
        subject = None if split.subject is None else split.subject[chosen]
        return Split(split.x[chosen], split.y[chosen], subject)

    train = keep(source.train, options.samples_per_class, "train")
    return replace(source, train=train, test=keep(source.test, options.test_per_class, "test"))


def _resized(source: Source, size: int) -> Source:
    """Shrink images to size × size by averaging, where the options ask for it."""
    if not size:
        return source
    if len(source.shape) != 3:
        raise UserError(f"image_size wants images; {source.name} has samples of shape {source.shape}")

    def shrink(split: Split) -> Split:
        pieces = [F.interpolate(x.float(), size=(size, size), mode="area") for x in split.x.split(1000)]
        whole = not split.x.is_floating_point()
        small = torch.cat([(p.round() if whole else p).to(split.x.dtype) for p in pieces])
        return replace(split, x=small)

    return replace(source, train=shrink(source.train), test=shrink(source.test))
