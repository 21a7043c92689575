"""What data of your own have in common: labels by name or number, people, tasks, what is held out, how it is scaled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from cflag.data.options import DataOptions
from cflag.data.sources.base import Numbers, Reading, SourceReader
from cflag.errors import DataError
from cflag.rng import stream

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.data.source import Source

Array = npt.NDArray[Any]
OUT = {"1": True, "true": True, "yes": True, "test": True, "0": False, "false": False, "no": False, "train": False}


class Unread(Protocol):
    """Samples that are still in their files."""

    def at(self, chosen: Array) -> Tensor:
        """Read some of them; above the memory there is for them, into a file that is mapped."""
        ...

    def readable(self) -> tuple[Array, Unread, tuple[str, ...]]:
        """Try to read each; return the places of those that can be, these alone, and the files of the others."""
        ...


@dataclass(frozen=True)
class Rows:
    """Samples as they were found: one row each, with the words that stand for its class, person, task and half."""

    x: Tensor | Unread
    label: Array
    user: Array | None = None
    task: Array | None = None
    test: Array | None = None
    class_names: tuple[str, ...] = ()
    """Where the place itself lists the classes, also those without samples."""
    unreadable: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """What the numbers of a row are called, in a table."""

    def __len__(self) -> int:
        return len(self.label)

    def at(self, chosen: Array) -> Tensor:
        """Return the samples of some rows."""
        import torch

        return self.x[torch.from_numpy(chosen)] if isinstance(self.x, torch.Tensor) else self.x.at(chosen)

    def readable(self) -> Rows:
        """Return the rows whose samples can be read, with the names of the others."""
        import torch

        if isinstance(self.x, torch.Tensor):
            return self
        kept, x, broken = self.x.readable()
        user, task, test = (None if part is None else part[kept] for part in (self.user, self.task, self.test))
        names = (*self.unreadable, *broken)
        return Rows(x, self.label[kept], user, task, test, self.class_names, names, self.columns)


@dataclass(frozen=True, kw_only=True)
class OwnReader(SourceReader):
    """Reads data of your own from a place that the source's name has: KIND:PLACE, below the data folder or absolute."""

    reading: Reading = field(default_factory=Reading)

    @property
    def options(self) -> DataOptions:
        """How to read."""
        return self.reading.options

    def path(self, root: Path) -> Path:
        """Return the place; one that a server elsewhere names must be in the data folder."""
        path = root / Path(self.place).expanduser()
        if self.reading.confined and not path.resolve().is_relative_to(root.resolve()):
            raise DataError(f"source '{self.name}' is not in this client's data folder {root}")
        return path

    def present(self, root: Path) -> bool:
        """Tell whether the place is there."""
        return bool(self.place) and self.path(root).exists()

    def check(self, root: Path) -> None:
        """Check that the place is there."""
        if not self.path(root).exists():
            raise DataError(f"{self.path(root)}: not found")

    @abstractmethod
    def rows(self, root: Path) -> Rows:
        """Return what is there, odd or not."""

    def read(self, root: Path) -> Source:
        """Read everything, and refuse what cannot be learned from."""
        self.check(root)
        rows = self.rows(root)
        for file in rows.unreadable[:1]:
            raise DataError(f"{file}: cannot be read as a picture ({len(rows.unreadable)} of {len(rows)} cannot)")
        if not len(rows):
            raise DataError(f"{self.path(root)}: there are no samples")
        return as_source(self.path(root).stem, rows, self.reading)

    def advice(self) -> str:
        """Return what to do."""
        return f"'cflag data check {self.name}' says what is there, docs/your-data.md what is expected"


def as_source(name: str, rows: Rows, reading: Reading) -> Source:
    """Number classes, people and tasks, hold samples out and scale them."""
    import torch

    from cflag.data.source import Source, Split

    options = reading.options
    counted = reading.problem == "classes"
    y, names, classes = _numbered_classes(name, rows, reading) if counted else _measured(name, rows, reading)
    user = None if rows.user is None else _numbered(rows.user)
    task = None if rows.task is None else _numbered_tasks(name, rows.task, reading)
    group = y if counted else np.zeros(len(y), np.int64)  # what shares are held out of
    test = _held_out(group, user, task, options.held_out) if rows.test is None else _marked(name, rows.test)

    def half(mask: npt.NDArray[np.bool_], what: str) -> Split:
        places = np.flatnonzero(mask)
        if not len(places):
            raise DataError(f"{name}: no sample is for {what}; see data.held_out and data.test")
        x, chosen = rows.at(places), torch.from_numpy(places)
        parts = (None if part is None else torch.from_numpy(part)[chosen] for part in (y, user, task))
        label, subject, of_task = parts
        assert label is not None
        return Split(x, label, subject, task=of_task)

    train = half(~test, "training")
    mean, std = _scale(name, train.x, reading)
    label_mean, label_std = _label_scale(name, train.y, reading)
    return Source(name, train, half(test, "tests"), classes, mean, std, class_names=names, problem=reading.problem,
                  label_mean=label_mean, label_std=label_std, columns=rows.columns)  # fmt: skip


def words(values: Array) -> Array:
    """Return labels and the like as text; whole numbers look like such, whatever they were written as."""
    if values.dtype.kind in "biu":
        return values.astype(np.int64).astype(str)
    text = np.array([str(value).strip() for value in values.tolist()], dtype=str)
    numbers = as_numbers(text)
    if numbers is None or not (numbers == np.round(numbers)).all() or (np.abs(numbers) > 2**53).any():
        return text
    return numbers.astype(np.int64).astype(str)


def as_numbers(text: Array) -> npt.NDArray[np.float64] | None:
    """Return words as numbers, None where one of them is none."""
    try:
        return text.astype(np.float64)
    except ValueError:
        return None


def in_order(found: Array) -> list[str]:
    """Return different words, sorted; numbers by size."""
    numbers, unique = as_numbers(np.unique(found)), np.unique(found)
    return [str(word) for word in (unique if numbers is None else unique[np.argsort(numbers, kind="stable")])]


def _numbered_classes(name: str, rows: Rows, reading: Reading) -> tuple[Array, tuple[str, ...], int]:
    """Return the number of each sample's class, the names of classes where they have any, and how many there are."""
    given, label = reading.options.classes, words(rows.label)
    if isinstance(given, tuple):
        return _positions(f"{name}: class", label, given, "data.classes"), given, len(given)
    numbers = as_numbers(label)
    if numbers is None or rows.class_names:
        if reading.partial:
            raise DataError(
                f"{name}: one client alone does not know all classes; name them in order: data.classes = [...]"
            )
        names = rows.class_names or tuple(in_order(label))
        if given and given != len(names):
            raise DataError(f"{name}: data.classes = {given}, but there are {len(names)}: {', '.join(names)[:60]}")
        return _positions(f"{name}: class", label, names, "the folders"), names, len(names)
    import torch

    from cflag.data.source import count_classes
    from cflag.problems.base import whole_classes

    y = whole_classes(torch.from_numpy(numbers), f"{name}:")
    if reading.partial and not given:
        raise DataError(f"{name}: one client alone does not know how many classes there are: set data.classes")
    return y.numpy(), (), given or count_classes(y, name)


def _measured(name: str, rows: Rows, reading: Reading) -> tuple[Array, tuple[str, ...], int]:
    """Return labels that are no single classes, as their problem has them, and how many outputs they need."""
    import torch

    from cflag.problems.base import find

    problem = find(reading.problem)
    numbers = rows.label if rows.label.dtype.kind in "biuf" else as_numbers(words(rows.label))
    if numbers is None:
        raise DataError(f"{name}: labels are words, and problem = '{reading.problem}' wants numbers")
    if numbers.dtype.kind == "f":  # as models answer
        numbers = numbers.astype(np.float32)
    y = problem.labels(torch.from_numpy(np.ascontiguousarray(numbers)), f"{name}:")
    return y.numpy(), (), problem.outputs([y])


def _positions(what: str, found: Array, names: Sequence[str], where: str) -> Array:
    place = {word: number for number, word in enumerate(names)}
    for word in np.unique(found):
        if word not in place:
            raise DataError(f"{what} '{word}' is not in {where}: {', '.join(names)[:60]}")
    return np.array([place[word] for word in found.tolist()], np.int64)


def _numbered(found: Array) -> Array:
    """Return whole numbers as they are, and words as their places among all, sorted."""
    text = words(found)
    numbers = as_numbers(text)
    if numbers is not None and (numbers == np.round(numbers)).all():
        return numbers.astype(np.int64)
    return _positions("", text, in_order(text), "")


def _numbered_tasks(name: str, found: Array, reading: Reading) -> Array:
    """Return each sample's task, from 0, in the order that is given, or sorted."""
    text = words(found)
    if reading.options.tasks:
        return _positions(f"{name}: task", text, reading.options.tasks, "data.tasks")
    if reading.partial:
        raise DataError(f"{name}: one client alone does not know all tasks; name them in order: data.tasks = [...]")
    return _positions("", text, in_order(text), "")


def _marked(name: str, found: Array) -> npt.NDArray[np.bool_]:
    """Return which samples are held out, as their column says it."""
    text = [word.lower() for word in words(found).tolist()]
    for word in text:
        if word not in OUT:
            raise DataError(f"{name}: '{word}' does not say whether a sample is for tests: write test or train, 1 or 0")
    return np.array([OUT[word] for word in text], np.bool_)


def _held_out(y: Array, user: Array | None, task: Array | None, share: float) -> npt.NDArray[np.bool_]:
    """Hold out a share of the samples of each class, person and task; which, is the same every time."""
    from cflag.data.partitions.rounding import rounded

    keys = np.stack([y, *(part for part in (user, task) if part is not None)], axis=1)
    groups, of = np.unique(keys, axis=0, return_inverse=True)
    counts = rounded(np.bincount(of.ravel(), minlength=len(groups)), np.tile([share, 1 - share], (len(groups), 1)))
    rng, test = stream(0, "held out"), np.zeros(len(y), np.bool_)
    members = np.split(np.argsort(of.ravel(), kind="stable"), np.cumsum(counts.sum(1))[:-1])
    for mine, (out, _) in zip(members, counts, strict=True):
        test[rng.permutation(mine)[:out]] = True
    return test


def _scale(name: str, x: Tensor, reading: Reading) -> tuple[Numbers, Numbers]:
    """Return mean and standard deviation: as given, or of the training samples, where they are everybody's."""
    from cflag.data.scale import statistics

    pictures = x.dtype.is_floating_point is False
    known: tuple[Numbers, Numbers] = ((0.5,), (0.25,)) if pictures else ((0.0,), (1.0,))
    options = reading.options
    if not (options.mean and options.std) and not reading.partial:
        known = statistics(x)
    mean, std = options.mean or known[0], options.std or known[1]
    if any(len(part) not in (1, x.shape[1]) for part in (mean, std)):
        raise DataError(f"{name}: data.mean and data.std want one number, or one for each of {x.shape[1]}")
    return mean, std


def _label_scale(name: str, y: Tensor, reading: Reading) -> tuple[Numbers, Numbers]:
    """Return mean and standard deviation of numbers to predict: as given, or of everybody's training labels."""
    from cflag.data.scale import statistics
    from cflag.problems.base import find, takes

    given = reading.options.label_mean, reading.options.label_std
    known: tuple[Numbers, Numbers] = (0.0,), (1.0,)
    if takes(find(reading.problem), ["regression"]):
        known = known if reading.partial or all(given) else statistics(y.reshape(len(y), -1))
    elif any(given):
        raise DataError(f"{name}: data.label_mean and data.label_std are for numbers to predict: problem = regression")
    return given[0] or known[0], given[1] or known[1]
