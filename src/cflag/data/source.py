"""A source is a data set: samples with labels, train and test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cflag.data.channels import channels_first
from cflag.data.scale import LabelScale, scale_of
from cflag.errors import DataError
from cflag.problems.base import find, takes, whole

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    Given = Tensor | npt.NDArray[Any]


@dataclass(frozen=True)
class Split:
    """One half of a source: `x` is (n, ...), `y` holds n labels, `subject` (where known) n people.

    What a label is depends on the source's problem: a class, a number or a row of them, a class for every step.
    """

    x: Tensor
    y: Tensor
    subject: Tensor | None = None
    picture: Tensor | None = None
    """What features in `x` were made of, where memories are to keep that."""
    task: Tensor | None = None
    """Which task each sample is of, from 0, where the source says so."""
    owner: Tensor | None = None
    """Which client's own folder each sample is from, with `partition = "own"` on one machine."""

    def __len__(self) -> int:
        return len(self.y)

    def chosen(self, index: Tensor) -> Split:
        """Return some of the samples."""
        return Split(**{name: t[index] for name, t in vars(self).items() if t is not None})


@dataclass(frozen=True)
class Source:
    """A data set in memory.

    Images are uint8 (n, channels, height, width) and stay so until a batch is used; then they are divided by
    255 and normalised per channel with `mean` and `std`. Anything else is floating point and only normalised.
    """

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    origin: str = ""
    """Of features, the digest of the backbone that made them."""
    class_names: tuple[str, ...] = ()
    """What classes 0, 1, ... are called, where known."""
    problem: str = "classes"
    """What its labels are: `cflag list problems`. `classes` is then the number of outputs that a model needs."""
    label_mean: tuple[float, ...] = (0.0,)
    """What is taken from numbers to predict, each its own or one for all, before a model learns them."""
    label_std: tuple[float, ...] = (1.0,)
    """What they are divided by; answers and scores are in the labels' own unit all the same."""
    columns: tuple[str, ...] = ()
    """What the numbers of a sample are called, where it is a row of a table."""

    def __post_init__(self) -> None:
        problem = find(self.problem)
        self._check_scale()
        if self.columns and self.shape != (len(self.columns),):
            raise DataError(f"{self.name}: {len(self.columns)} names of columns for samples of shape {self.shape}")
        if self.class_names and len(self.class_names) != self.classes:
            raise DataError(f"{self.name}: {len(self.class_names)} class names for {self.classes} classes")
        for half, split in (("train", self.train), ("test", self.test)):
            where = f"{self.name}: {half}"
            if len(split.x) != len(split.y) or not len(split.y):
                raise DataError(f"{where} has {len(split.x)} samples and {len(split.y)} labels")
            labels = problem.labels(split.y, where)
            _check_tensors(where, split)
            problem.check_range(labels, self.classes, where)
            if labels is not split.y:  # in the type that the loss takes
                object.__setattr__(self, half, replace(split, y=labels))
        if self.train.y.shape[1:] != self.test.y.shape[1:]:
            shapes = tuple(self.train.y.shape[1:]), tuple(self.test.y.shape[1:])
            raise DataError(f"{self.name}: labels have shape {shapes[0]} in train and {shapes[1]} in test")

    def _check_scale(self) -> None:
        """Refuse a scale of labels that are no numbers, or that does not fit them."""
        if self.label_mean == (0.0,) and self.label_std == (1.0,):
            return
        if not takes(find(self.problem), ["regression"]):
            raise DataError(f"{self.name}: label_mean and label_std are for numbers to predict, problem = 'regression'")
        if any(len(part) not in (1, self.classes) for part in (self.label_mean, self.label_std)):
            raise DataError(f"{self.name}: label_mean and label_std want one number, or one for each of {self.classes}")
        if not all(map(isfinite, (*self.label_mean, *self.label_std))) or min(self.label_std) <= 0:
            raise DataError(f"{self.name}: label_mean must be finite numbers, label_std positive ones")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @classmethod
    def from_tensors(
        cls,
        train: tuple[Given, Given],
        test: tuple[Given, Given],
        name: str = "custom",
        tasks: tuple[Given, Given] | None = None,
        *,
        subjects: tuple[Given, Given] | None = None,
        class_names: Sequence[str] = (),
        problem: str = "classes",
        label_scale: LabelScale = "own",
    ) -> Source:
        """Make a source of your own tensors or arrays: (x, y) for train and for test, labels 0..classes-1.

        `tasks` are the tasks of the train and of the test samples, from 0; `subjects` the people they are of, any
        whole numbers. Where a class has no sample, `class_names` must say that it exists. With another `problem`,
        labels are what that says: `problem = "regression"` takes numbers. A model learns them as they
        are; with `label_scale = "train"`, or a mean and a standard deviation, by those of the train half, or by these.
        """
        pairs = [_pair(half, name) for half in (train, test)]
        kind = find(problem)
        y = [kind.labels(part[1], f"{name}: {half}") for part, half in zip(pairs, ("train", "test"), strict=True)]
        classes = len(class_names) or _outputs(problem, y, name)

        def numbers(given: tuple[Given, Given] | None, what: str) -> list[Tensor | None]:
            if given is None:
                return [None, None]
            both = zip(map(_tensor, given), ("train", "test"), strict=True)
            return [whole(part, f"{name}: {half} {what}") for part, half in both]

        people, ids = numbers(subjects, "subjects"), numbers(tasks, "tasks")
        halves = [Split(h[0], y[k], people[k], task=ids[k]) for k, h in enumerate(pairs)]
        mean, std = scale_of(label_scale, y[0])
        return cls(name, halves[0], halves[1], classes, class_names=tuple(class_names), problem=problem,
                   label_mean=mean, label_std=std)  # fmt: skip

    @classmethod
    def from_datasets(
        cls,
        train: Any,
        test: Any,
        name: str = "custom",
        *,
        read: Callable[[Any], tuple[Any, ...]] | None = None,
        class_names: Sequence[str] = (),
        folder: str | Path | None = None,
        memory_bytes: int = 2**31,
    ) -> Source:
        """Make a source of two data sets with `len` and `[index]`, as torch's and Hugging Face's are.

        A sample is (x, y), (x, y, subject), (x, y, subject, task), or a dict of these; or `read` makes that of it. Each
        is read once. Above `memory_bytes` in all they are written to a file in `folder`, the data folder by default,
        and mapped from there.
        """
        from cflag.data.datasets import names_of_classes, read_through

        halves = []
        for half, data in (("train", train), ("test", test)):
            x, columns = read_through(f"{name}: {half}", data, read, folder, memory_bytes // 2)
            kinds = zip(("labels", "subjects", "tasks"), columns, strict=False)
            y, subject, task = (*(whole(column, f"{name}: {half} {what}") for what, column in kinds), None, None)[:3]
            assert y is not None
            halves.append(Split(x, y, subject, task=task))
        names = tuple(class_names) or names_of_classes(train)
        classes = len(names) or count_classes(torch.cat([split.y for split in halves]), name)
        return cls(name, halves[0], halves[1], classes, class_names=names)


def _tensor(given: Given) -> Tensor:
    """Return an array of the user's as a tensor of bytes, whole numbers or floating-point ones."""
    if isinstance(given, torch.Tensor):
        return given
    if given.dtype.kind not in "biuf":
        raise DataError(f"an array holds {given.dtype}, expected numbers; give classes as 0, 1, ... and class_names")
    kind = np.float32 if given.dtype.kind == "f" else np.uint8 if given.dtype == np.uint8 else np.int64
    return torch.from_numpy(np.ascontiguousarray(given, kind))


def _pair(half: tuple[Given, Given], name: str) -> tuple[Tensor, Tensor]:
    """Return the samples and labels of a half as tensors."""
    if len(half) != 2 or not all(isinstance(part, torch.Tensor | np.ndarray) for part in half):
        raise DataError(f"{name}: give (x, y) as two tensors, or arrays, for train and for test")
    x, y = map(_tensor, half)
    if isinstance(half[0], np.ndarray):
        x = torch.from_numpy(channels_first(x.numpy())) if x.dtype == torch.uint8 and x.dim() > 2 else x.float()
    if not y.numel():
        raise DataError(f"{name}: there are no labels; give some for train and for test")
    return x, y


def _outputs(problem: str, y: Sequence[Tensor], name: str) -> int:
    """Return how many outputs labels need; of plain classes none may be skipped."""
    return count_classes(torch.cat(list(y)), name) if problem == "classes" else find(problem).outputs(y)


def count_classes(labels: Tensor, name: str) -> int:
    """Return how many classes labels 0, 1, ... are of; a number that is skipped is refused."""
    found = set(labels.unique().tolist())
    classes = max(found, default=-1) + 1
    missing = [label for label in range(min(classes, len(found) + 1)) if label not in found]
    if missing and min(found) >= 0:
        raise DataError(
            f"{name}: no sample has label {missing[0]}, though some have {classes - 1}; number the classes from 0 "
            "without gaps, or name all of them (class_names, or data.classes)"
        )
    return classes


def joined(parts: Sequence[Source]) -> Source:
    """Join the sources of clients 0, 1, ... into one that knows whose samples are whose."""
    first = parts[0]
    for number, part in enumerate(parts):
        for key in ("classes", "columns", "mean", "std", "label_mean", "label_std", "shape", "class_names"):
            if getattr(part, key) != getattr(first, key):
                raise DataError(
                    f"client {number} has {key} {getattr(part, key)}, client 0 has {getattr(first, key)}; "
                    "all clients must agree"
                )

    def half(name: str) -> Split:
        splits = [getattr(part, name) for part in parts]
        owner = torch.cat([torch.full((len(split),), number) for number, split in enumerate(splits)])
        keys = [key for key in vars(splits[0]) if all(getattr(split, key) is not None for split in splits)]
        return Split(**{key: torch.cat([getattr(split, key) for split in splits]) for key in keys}, owner=owner)

    return replace(first, train=half("train"), test=half("test"))


def _check_tensors(where: str, split: Split) -> None:
    """Refuse what would only fail, or silently go wrong, somewhere deep in training."""
    if split.task is not None and (split.task.shape != split.y.shape[:1] or bool((split.task < 0).any())):
        raise DataError(f"{where} tasks have shape {tuple(split.task.shape)}, expected a number from 0 per sample")
    if split.subject is not None and split.subject.shape != split.y.shape[:1]:
        raise DataError(f"{where} subjects have shape {tuple(split.subject.shape)}, expected a number per sample")
    if split.x.is_floating_point() and len(split.x):
        parts = [torch.isfinite(x).flatten(1).all(1) for x in split.x.reshape(len(split.x), -1).split(1000)]
        wrong = (~torch.cat(parts)).nonzero()
        if len(wrong):
            raise DataError(
                f"{where} samples hold values that are not finite: {len(wrong)} of {len(split.x)}, "
                f"the first at place {int(wrong[0])}"
            )
