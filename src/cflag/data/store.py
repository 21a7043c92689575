"""Samples in memory, or, where they are too many, in a file that is mapped: the system reads what is used of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from cflag.errors import DataError

Row = Callable[[int], Tensor]
FOLDER = "samples"
"""Below the data folder."""


def gathered(count: int, row: Row, key: Callable[[], str], folder: Path, memory_bytes: int) -> Tensor:
    """Return rows 0, 1, ... as one tensor: in memory up to `memory_bytes`, else in a file of `folder` named by `key`.

    The file is written once, whole or not at all; a later call with the same key maps it without reading a row.
    """
    first = row(0)
    size = count * first.numel() * first.element_size()
    if size <= memory_bytes:
        made = torch.empty((count, *first.shape), dtype=first.dtype)
        _fill(made, row)
        return made
    name = hashlib.sha256(f"{key()} {count} {tuple(first.shape)} {first.dtype}".encode()).hexdigest()[:24]
    path = folder / FOLDER / f"{name}.bin"
    if not path.is_file() or path.stat().st_size != size:
        _write(path, count, row, size)
    return _mapped(path, (count, *first.shape), first.dtype)


def _write(path: Path, count: int, row: Row, size: int) -> None:
    """Write all rows into a file beside the one that is wanted, then give it its name."""
    new = path.with_suffix(f".{os.getpid()}.new")
    first = row(0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new.open("wb") as file:
            file.truncate(size)
        _fill(_mapped(new, (count, *first.shape), first.dtype, shared=True), row, f"writing samples to {path}")
        new.rename(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        new.unlink(missing_ok=True)


def _mapped(path: Path, shape: Sequence[int], dtype: torch.dtype, shared: bool = False) -> Tensor:
    return torch.from_file(str(path), shared=shared, size=prod(shape), dtype=dtype).reshape(*shape)


def _fill(made: Tensor, row: Row, about: str = "reading samples") -> None:
    """Fill in every row, with a bar on a terminal where there are many."""
    console = Console(stderr=True)
    quiet = len(made) < 5000 or not console.is_terminal
    for index in track(range(len(made)), about, console=console, transient=True, disable=quiet):
        one = row(index)
        if one.shape != made.shape[1:]:
            raise DataError(f"sample {index} has shape {tuple(one.shape)}, the first has {tuple(made.shape[1:])}")
        made[index] = one
