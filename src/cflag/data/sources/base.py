"""What all sources share: the reader, the files it can download, and arrays that become a `Source`.

`cflag data list` asks every reader for its state, so none may import torch before it reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cflag.data.options import DataOptions
from cflag.errors import UserError

if TYPE_CHECKING:
    from cflag.data.source import Source, Split

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Remote:
    """A file to download: its place below the data folder, its addresses in the order they are tried.

    Where `folder` is given the file is an archive, of which that folder is unpacked. Without an `md5` only
    reading the unpacked files tells whether they are whole.
    """

    file: str
    urls: tuple[str, ...]
    md5: str | None
    folder: str = ""


@dataclass(frozen=True)
class Reading:
    """How a source of your own is read."""

    options: DataOptions = field(default_factory=DataOptions)
    partial: bool = False
    """Whether this is one client's part alone, so that nothing may be concluded from it about everybody's."""
    confined: bool = False
    """Whether nothing outside of the data folder may be read, since a server elsewhere names the place."""
    problem: str = "classes"
    """What labels are: `cflag list problems`."""


@dataclass(frozen=True, kw_only=True)
class SourceReader(ABC):
    """Reads a data set: its name, its place in the data folder, and what can be downloaded."""

    name: str
    place: str = ""
    remotes: tuple[Remote, ...] = ()

    @abstractmethod
    def present(self, root: Path) -> bool:
        """Tell whether any of the files are in the data folder `root`."""

    @abstractmethod
    def check(self, root: Path) -> None:
        """Check that all files are there with the right sizes, without reading them through."""

    @abstractmethod
    def read(self, root: Path) -> Source:
        """Read everything."""

    def advice(self) -> str:
        """Return what to do when the files are missing or damaged."""
        return (
            f"run 'cflag data get {self.name}', or point --data-dir or CFLAG_DATA "
            f"at the folder that contains '{self.place}'"
        )


@dataclass(frozen=True, kw_only=True)
class FunctionReader(SourceReader):
    """Calls a plain function that was registered as a source; it counts as present, whatever it needs."""

    function: Callable[[Path], Source]

    def present(self, root: Path) -> bool:
        """Return True."""
        return True

    def check(self, root: Path) -> None:
        """Have nothing to check."""

    def read(self, root: Path) -> Source:
        """Return what the function makes of the data folder."""
        from cflag.data.source import Source

        source = self.function(root)
        if not isinstance(source, Source):
            raise UserError(f"source '{self.name}': its function returned {source!r:.60}, expected a cflag.Source")
        return source

    def advice(self) -> str:
        """Return where to look: the function alone knows what it needs."""
        return f"see the code that registers source '{self.name}'"


class Arrays(NamedTuple):
    """One half of a data set: samples, their labels and, where known, their people and their tasks."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    subject: npt.NDArray[Any] | None = None
    task: npt.NDArray[Any] | None = None


def make_source(name: str, train: Arrays, test: Arrays, classes: int, mean: Numbers, std: Numbers) -> Source:
    """Turn arrays into a source; `mean` and `std` are those of the train half, images on the scale 0..1."""
    from cflag.data.source import Source

    return Source(name, _split(train, f"{name}: train"), _split(test, f"{name}: test"), classes, mean, std)


def _split(arrays: Arrays, where: str) -> Split:
    import torch

    from cflag.data.source import Split
    from cflag.problems.base import whole

    y = whole(torch.from_numpy(np.ascontiguousarray(arrays.y)), f"{where} labels")
    subject, task = (None if a is None else torch.from_numpy(a.astype(np.int64)) for a in arrays[2:])
    return Split(torch.from_numpy(np.ascontiguousarray(arrays.x)), y, subject, task=task)
