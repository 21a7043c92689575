"""A NumPy archive of your own."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cflag.data.channels import channels_first
from cflag.data.sources.own import Array, OwnReader, Rows
from cflag.errors import DataError
from cflag.registry import register


@register("source", "npz", "arrays of your own in one file: npz:FILE with x, y and user, task, test, or x_train, ...")
@dataclass(frozen=True, kw_only=True)
class Npz(OwnReader):
    """Reads `x` and `y` (with `user`, `task`, `test`), or `x_train`, `y_train`, `x_test`, `y_test` (`user_train`, ...).

    Bytes are pictures: (n, height, width), channels first or last. All else becomes floating point, of any shape.
    """

    def rows(self, root: Path) -> Rows:
        """Return the arrays as rows."""
        import torch

        path = self.path(root)
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
            raise DataError(f"{path}: cannot be read as NumPy arrays ({error})") from None
        if "x_train" in arrays:
            arrays = _one(arrays, path)
        named = {what: getattr(self.options, what) for what in ("user", "task", "test")}
        label = self.options.label or ("y" if "y" in arrays else "label")
        for key in ("x", label, *(key for key in named.values() if key)):
            if key not in arrays:
                raise DataError(f"{path}: there is no array '{key}'; it has {', '.join(sorted(arrays))}")
        for key in {"x", label, *(key or what for what, key in named.items())} & set(arrays):
            flat = key != "x" and (key != label or self.reading.problem == "classes")
            if len(arrays[key]) != len(arrays["x"]) or (flat and arrays[key].ndim != 1):
                raise DataError(f"{path}: '{key}' has shape {arrays[key].shape}, x has {len(arrays['x'])} samples")
        user, task, test = (arrays.get(key or what) for what, key in named.items())
        user = arrays.get("subject") if user is None else user
        names = tuple(map(str, arrays.get("class_names", ())))
        if names and arrays[label].dtype.kind not in "US":
            arrays[label] = np.array(names)[_within(arrays[label], len(names), path)]
        return Rows(torch.from_numpy(_samples(arrays["x"], path)), arrays[label], user, task, test, names)


def _within(label: Array, count: int, path: Path) -> Array:
    if ((label != np.round(label)) | (label < 0) | (label >= count)).any():
        raise DataError(f"{path}: class_names has {count} names, and labels are not all among 0..{count - 1}")
    return label.astype(np.int64)


def _one(arrays: dict[str, Array], path: Path) -> dict[str, Array]:
    """Join the arrays of both halves, and say which samples are of which."""
    joined = {key: value for key, value in arrays.items() if not key.endswith(("_train", "_test"))}
    for key in [key.removesuffix("_train") for key in arrays if key.endswith("_train")]:
        if f"{key}_test" not in arrays:
            raise DataError(f"{path}: there is {key}_train, and no {key}_test")
        joined[key] = np.concatenate([arrays[f"{key}_train"], arrays[f"{key}_test"]])
    sizes = [len(arrays["x_train"]), len(arrays["x_test"])]
    return joined | {"test": np.repeat([0, 1], sizes)}


def _samples(x: Array, path: Path) -> Array:
    """Return bytes as pictures with their channels first, and all else as floating point."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{path}: x holds {x.dtype}, expected numbers")
    if x.ndim < 2:
        raise DataError(f"{path}: x has shape {x.shape}, expected (samples, ...)")
    if x.dtype != np.uint8 or x.ndim == 2:
        return np.ascontiguousarray(x, dtype=np.float32)
    return channels_first(x)
