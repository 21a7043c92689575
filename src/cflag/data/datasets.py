"""Map-style data sets, torch's or Hugging Face's, as a source."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cflag.data.channels import channels_first
from cflag.data.place import data_dir_or_default
from cflag.data.store import gathered
from cflag.errors import DataError

NAMES = (("x", "image", "img", "pixel_values", "features"), ("y", "label", "labels", "fine_label"),
         ("subject", "user", "client"), ("task",))  # fmt: skip
"""What the parts of a sample are called in dicts."""
Read = Callable[[Any], tuple[Any, ...]]
SPOTS = 64


def read_through(
    where: str, data: Any, read: Read | None, folder: str | Path | None, memory_bytes: int
) -> tuple[Tensor, list[Tensor]]:
    """Read every sample once; return all `x`, and columns of labels and, where there are any, subjects and tasks."""
    read, folder = read or _parts, data_dir_or_default(folder)
    if isinstance(data, Mapping):
        raise DataError(
            f"{where}: a dict of {', '.join(map(str, data))[:60]}; give one of them for train, one for test"
        )
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise DataError(f"{where}: {type(data).__name__} has no len and no [index]; a stream must be read into one")
    if not len(data):
        raise DataError(f"{where}: has no samples")
    rest: dict[int, Tensor] = {}

    def row(index: int) -> Tensor:
        x, *others = read(data[index])
        rest[index] = torch.tensor([float(part) for part in others if part is not None], dtype=torch.float64)
        return _tensor(x)

    def rest_of(index: int) -> Tensor:
        if index not in rest:
            row(index)
        return rest[index]

    def key() -> str:
        """Samples spread over the data set stand for all of it: to read them all is what the file saves."""
        digest = hashlib.sha256()
        for index in np.linspace(0, len(data) - 1, SPOTS).astype(int):
            digest.update(row(int(index)).numpy().tobytes() + rest[int(index)].numpy().tobytes())
        return digest.hexdigest()

    x = gathered(len(data), row, key, folder, memory_bytes)
    spilled = x.numel() * x.element_size() > memory_bytes
    columns = gathered(len(data), rest_of, key, folder, -1 if spilled else 2**62)
    if not columns.shape[1]:
        raise DataError(f"{where}: every sample must be (x, y), (x, y, subject) or (x, y, subject, task)")
    return x, list(columns.T)


def _parts(sample: Any) -> tuple[Any, ...]:
    """Return (x, y, ...) of a sample that is a tuple or a dict."""
    if isinstance(sample, Mapping):
        found = [next((sample[name] for name in names if name in sample), None) for names in NAMES]
        if found[0] is None or found[1] is None:
            raise DataError(f"a sample has {', '.join(map(str, sample))}; say what x and y are with read=")
        return tuple(found)
    if not isinstance(sample, tuple | list) or not 2 <= len(sample) <= 4:
        raise DataError("a sample is neither (x, y) nor a dict; say what x and y are with read=")
    return tuple(sample)


def _tensor(x: Any) -> Tensor:
    """Return a sample as a tensor: pictures as bytes (channels, height, width), all else as floating point."""
    if not isinstance(x, Tensor | np.ndarray | list | float | int) and hasattr(x, "convert"):  # Pillow's
        pixels = np.array(x if x.mode in ("L", "RGB") else x.convert("RGB"))
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    if isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim in (2, 3):
        x = channels_first(x[None])[0]
    made = torch.as_tensor(np.array(x) if isinstance(x, np.ndarray) else x)
    return made if made.dtype == torch.uint8 else made.float()


def names_of_classes(data: Any) -> tuple[str, ...]:
    """Return what the data set itself calls its classes: `classes` of torchvision, a ClassLabel of Hugging Face."""
    given = getattr(data, "classes", None)
    if isinstance(given, list | tuple):
        return tuple(map(str, given))
    features = getattr(data, "features", None)
    if isinstance(features, Mapping):
        for name in NAMES[1]:
            if names := getattr(features.get(name), "names", None):
                return tuple(map(str, names))
    return ()
