"""A benchmark: source + scenario + partition + seed. It deals every task to the clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cflag import registry
from cflag.data.heads import Heads
from cflag.data.notes import about_classes, about_labels, about_tests
from cflag.data.options import BenchmarkOptions
from cflag.data.partitions.base import Deal, Dealt, Half, Indices, Partition, has_own_data
from cflag.data.resize import at_size
from cflag.data.samples import Samples
from cflag.data.scenarios.base import TaskSequence
from cflag.data.schedules.base import NEVER, Classes, make_schedule
from cflag.data.source import Source, Split
from cflag.data.spec import Spec
from cflag.errors import UserError
from cflag.problems.base import find, takes
from cflag.rng import stream

ClassCounts = list[dict[int, list[int]]]
"""For each task its classes, and for each class the training samples that clients 0, 1, ... have of it."""


class Features(Protocol):
    """What pictures go through before they are dealt."""

    def source(self, pictures: Source) -> Source:
        """Return the source with features in the place of pictures."""
        ...

    def encode(self, x: Tensor) -> Tensor:
        """Return the features of pictures, as `source` has them."""
        ...

    def once(self, x: Tensor) -> Tensor:
        """Return the same of pictures that will not come again."""
        ...

    def layers(self) -> nn.Module:
        """Return the same as a module, to be a part of another."""
        ...


class Benchmark:
    """Who gets which samples of which task; only indices are kept, samples are cut out when asked for."""

    def __init__(self, source: Source, options: BenchmarkOptions, features: Features | None = None) -> None:
        self.options = options
        self.raw = source.shape, str(source.train.x.dtype).removeprefix("torch.")
        """The shape and dtype of a sample as the source has it, before it is resized or goes through a backbone."""
        self.problem = find(options.problem)
        if not takes(self.problem, [source.problem]):
            raise UserError(
                f"{source.name} has labels for problem = '{source.problem}', not for '{options.problem}': "
                f"set problem = '{source.problem}'"
            )
        source = self._reduced(source)
        self.source = source = features.source(source) if features else at_size(source, options.image_size)
        if options.validation:
            self.source = source = _held_out(source, options)
        self._features = features if self.has_pictures else None  # a whole network
        sequence: TaskSequence = registry.get("scenario", options.scenario)(source, options)
        self.tasks = sequence.tasks
        if options.task_classes and options.scenario not in ("task", "class"):
            raise UserError(f"tasks as lists of classes go with scenario 'task' or 'class', not '{options.scenario}'")
        if len(self.tasks) != options.tasks:
            made = len(self.tasks)
            name = options.scenario
            raise UserError(f"scenario '{name}' makes {made} tasks, not {options.tasks}; set tasks = {made}")
        self.schedule = make_schedule(options)
        if sequence.by_task and not self.schedule.told:
            raise UserError(
                f"scenario '{options.scenario}' tells the task of every sample, which schedule.boundaries = "
                f"'{options.schedule.boundaries}' does not: use 'class', 'domain' or another"
            )
        pools = tuple(task.classes for task in self.tasks)
        self.spec = Spec(
            shape=source.shape,
            dtype=str(source.train.x.dtype).removeprefix("torch."),
            classes=source.classes,
            mean=source.mean,
            std=source.std,
            tasks=self.schedule.classes(pools),
            by_task=sequence.by_task,
            clients=options.clients,
            origin=source.origin,
            class_names=source.class_names,
            label=tuple(source.train.y.shape[1:]),
            label_mean=source.label_mean,
            label_std=source.label_std,
            columns=source.columns,
        )
        if not (self.problem.splits or self.heads.shared):
            raise UserError(
                f"scenario '{options.scenario}': with problem = '{options.problem}' tasks share all outputs"
            )
        self._partition: Partition = registry.get("partition", options.partition)
        self._refuse_untested()
        if self.schedule.deals:
            self._refuse_partition(pools)
        labels = (self._groups(source.train, source), self._groups(source.test, source))
        self._halves = tuple(
            replace(h, y=torch.from_numpy(g)) for h, g in zip((source.train, source.test), labels, strict=True)
        )
        dealt = self.schedule.deal(self._deal, labels, pools)
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

    @cached_property
    def has(self) -> NDArray[np.bool_]:
        """Which clients have training samples of which tasks, (clients, tasks)."""
        return self.all_sizes > 0

    @cached_property
    def all_sizes(self) -> NDArray[np.int64]:
        """How many training samples each client has of each task, (clients, tasks)."""
        return np.array([[len(mine) for mine in dealt] for dealt in self._train], np.int64).T

    def size(self, client: int, task: int) -> int:
        """Return how many training samples a client has of a task."""
        return len(self._train[task][client])

    def labels(self, client: int, task: int) -> Tensor:
        """Return the classes that a client has training samples of in a task."""
        labels: Tensor = self.source.train.y[torch.from_numpy(self._train[task][client])]
        return torch.tensor(sorted(set(labels.tolist())))

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
        x, y, subject, picture = (  # in a third of the time that split.x[chosen] takes
            None if t is None else t.index_select(0, chosen) for t in (split.x, split.y, split.subject, split.picture)
        )
        assert x is not None
        assert y is not None
        tasks = torch.full((len(indices),), task)
        return Samples(self.tasks[task].transform(x), self.spec.targets(y), tasks, subject=subject, picture=picture)

    @property
    def has_pictures(self) -> bool:
        """Whether samples have the pictures beside them that their features were made of."""
        return self.source.train.picture is not None

    def encoded(self, stored: Samples) -> Samples:
        """Return pictures that a memory stored as the samples they were: with features, as their task has them."""
        assert self._features is not None
        x = self._features.encode(stored.x)
        for task in stored.of_task:
            x[stored.task == task] = self.tasks[task].transform(x[stored.task == task])
        return replace(stored, x=x, picture=stored.x)

    def class_counts(self) -> ClassCounts:
        """Count the training samples of each task, class and client; nothing where samples have no single class."""
        if not takes(self.problem, ["classes"]):
            return []
        labels, classes = self.source.train.y.numpy(), self.source.classes
        counted: ClassCounts = []
        for classes_of, parts in zip(self.spec.tasks, self._train, strict=True):
            owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
            cells = labels[np.concatenate(parts)] * len(parts) + owner
            counts = np.bincount(cells, minlength=classes * len(parts)).reshape(classes, len(parts))
            counted.append({label: counts[label].tolist() for label in classes_of})
        return counted

    def notes(self) -> list[str]:
        """Return what people may want to know of who got what: who is not tested, what is known beforehand."""
        said = about_labels(self.source)
        if takes(self.problem, ["classes"]) and not has_own_data(self._partition):  # what one lacks another may have
            said += about_classes(self.source, {label for task in self.spec.tasks for label in task})
        sizes = [[len(part) for part in parts] for parts in self._test] if self.schedule.together else []
        return said + about_tests(sizes, [len(task.classes) for task in self.tasks] if self.spec.by_task else [])

    def _refuse_untested(self) -> None:
        """Say so where a task has no test samples."""
        if has_own_data(self._partition):  # what one client lacks another may have
            return
        for index in range(len(self.tasks)):
            if not len(self._members(self.source.test, index)):
                name = self.source.name
                raise UserError(f"task {index + 1} has no test samples: {name}'s test half lacks its classes")

    def _refuse_partition(self, pools: Classes) -> None:
        """Say so where a schedule that deals by classes meets tasks that share them, or a partition of its own."""
        kind, labels = self.options.schedule.kind, [label for pool in pools for label in pool]
        if len(set(labels)) < len(labels):
            raise UserError(f"schedule '{kind}' wants tasks of different classes: scenario 'task' or 'class'")
        if self.options.partition != BenchmarkOptions.partition:
            raise UserError(f"schedule '{kind}' deals samples itself: leave partition = '{BenchmarkOptions.partition}'")

    def _groups(self, split: Split, source: Source) -> Indices:
        """Return what partitions deal by: the class of each sample, or what its problem has in place of it."""
        return self.problem.groups(split.y, source.train.y)

    def _reduced(self, source: Source) -> Source:
        """Keep a seeded subset of each class, and of each task where samples say theirs, if the options ask for one."""

        def keep(split: Split, count: int, name: str) -> Split:
            if not count:
                return split
            labels = self._groups(split, source)
            groups = labels if split.task is None else labels + (labels.max() + 1) * split.task.numpy()
            owner = np.zeros_like(labels) if split.owner is None else split.owner.numpy()
            parts = []
            for client in np.unique(owner):  # each as on a machine of its own
                rng, mine = stream(self.options.seed, f"subset {name}"), owner == client
                of = [np.flatnonzero((groups == group) & mine) for group in np.unique(groups[mine])]
                parts += [rng.permutation(group)[:count] for group in of]
            return split.chosen(torch.from_numpy(np.sort(np.concatenate(parts))))

        train = keep(source.train, self.options.samples_per_class, "train")
        return replace(source, train=train, test=keep(source.test, self.options.test_per_class, "test"))

    def _members(self, split: Split, task: int) -> Indices:
        """Return which samples are a task's: those that say so, or those of its classes."""
        if self.tasks[task].marked:
            assert split.task is not None
            return np.flatnonzero(split.task.numpy() == task)
        return np.flatnonzero(self.problem.belongs(split.y, self.tasks[task].classes))

    def _deal(self, task: int) -> Dealt:
        """Deal a task's train and test samples to all clients."""

        def half(name: Literal["train", "test"], split: Split, labelled: Split) -> Half:
            return Half(name, labelled, self._members(split, task))

        train = half("train", self.source.train, self._halves[0])
        test = half("test", self.source.test, self._halves[1])
        classes = sorted(self.tasks[task].classes)
        if not takes(self.problem, ["classes"]):
            classes = np.unique(np.concatenate([train.labels, test.labels])).tolist()
        among = self._among(task)
        deal = Deal(train, test, tuple(classes), task, replace(self.options, clients=len(among)))
        mine, held_out = self._partition(deal)
        dealt = _checked(mine, deal, train), _checked(held_out, deal, test)
        _refuse_poor(dealt[0], self.options.min_samples, task)
        if not any(map(len, dealt[0])) and not has_own_data(self._partition):  # what one client lacks another may have
            raise UserError(f"nobody has training samples of task {task + 1}")
        return _placed(dealt[0], among, self.clients), _placed(dealt[1], among, self.clients)

    def _among(self, task: int) -> Sequence[int]:
        """Return the clients that a task is dealt to: those who ever get it, where the partition can do that."""
        if self.schedule.together or not hasattr(self._partition, "alike"):
            return range(self.clients)
        among: list[int] = np.flatnonzero(self.schedule.plan.first[:, task] != NEVER).tolist()
        return among


def _placed(parts: Sequence[Indices], among: Sequence[int], clients: int) -> list[Indices]:
    """Return the parts of all clients, with nothing for those that a task is not dealt to."""
    placed = [np.zeros(0, np.int64)] * clients
    for client, part in zip(among, parts, strict=True):
        placed[client] = part
    return placed


def _checked(parts: Sequence[Indices], deal: Deal, half: Half) -> list[Indices]:
    """Return the clients' parts of one half; refuse what would silently train on the wrong samples."""
    indices = [np.asarray(part, np.int64) for part in parts]
    where = f"partition '{deal.options.partition}': task {deal.task + 1} has"
    if len(indices) != deal.options.clients:
        raise UserError(f"{where} {len(indices)} {half.name} parts for {deal.options.clients} clients")
    belongs = np.zeros(len(half.split), np.bool_)
    belongs[half.indices] = True
    if not all(belongs[part].all() for part in indices):
        raise UserError(f"{where} {half.name} samples of other tasks; deal values of `indices`, not positions in it")
    return indices


def _refuse_poor(dealt: Sequence[Indices], minimum: int, task: int) -> None:
    """Say so where a client got fewer samples than its minimum; one that has none, and may, sits the task out."""
    poorest = min(range(len(dealt)), key=lambda c: len(dealt[c]))
    if 1 < minimum > len(dealt[poorest]):
        raise UserError(
            f"client {poorest} has {len(dealt[poorest])} samples of task {task + 1}, fewer than "
            f"min_samples = {minimum}; use fewer clients or a smaller min_samples (with 1 or 0, who has none sits out)"
        )


def _held_out(source: Source, options: BenchmarkOptions) -> Source:
    """Test on a seeded share of the training samples, and train on the others: the test half stays unseen.

    The share is that of each class of each task and subject; one sample alone stays for training.
    """
    train, rng = source.train, stream(options.seed, "validation")
    marks = [mark.numpy() for mark in (train.task, train.subject) if mark is not None]
    if train.y.dim() == 1 and not train.y.is_floating_point():
        marks.append(train.y.numpy())
    every = np.stack(marks, 1) if marks else np.zeros((len(train), 1), np.int64)
    group = np.unique(every, axis=0, return_inverse=True)[1].reshape(-1)
    chosen = np.zeros(len(train), np.bool_)
    for members in (np.flatnonzero(group == g) for g in range(int(group.max()) + 1)):
        if len(members) > 1:
            chosen[rng.permutation(members)[: max(1, round(options.validation * len(members)))]] = True
    kept, held_out = (train.chosen(torch.from_numpy(np.flatnonzero(mask))) for mask in (~chosen, chosen))
    return replace(source, train=kept, test=held_out)
