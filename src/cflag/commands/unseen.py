"""Samples that a run has never seen, read from files as its source would have read them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflag.data.sources.table import as_column, is_number, read_csv, read_parquet
from cflag.errors import DataError, UserError

if TYPE_CHECKING:
    import numpy.typing as npt

    from cflag.results.model import TrainedModel

    Array = npt.NDArray[Any]

SPECIAL = ("label", "user", "task", "test")


def read_samples(path: Path, model: TrainedModel, config: Mapping[str, Any], note: Callable[[str], None]) -> Array:
    """Return the samples in a file; `config` is the run's, which says how its source was read."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if path.suffix == ".npz":
        return _arrays(path)
    if path.suffix in (".csv", ".parquet"):
        return _table(path, model, config, note)
    return _picture(path, model, config)


def _arrays(path: Path) -> Array:
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            x: Array = arrays["x"]
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as an array x ({error})") from None
    return x if x.dtype == np.uint8 else x.astype(np.float32)


def _table(path: Path, model: TrainedModel, config: Mapping[str, Any], note: Callable[[str], None]) -> Array:
    """Return the rows of a table, each as a sample: of a table with a head the columns that the run learned from."""
    import numpy as np

    shape, dtype = model.sample or (model.spec.shape, model.spec.dtype)
    from_table = str(config.get("source", "")).startswith("table:")
    named = path.suffix == ".parquet" or (from_table and _has_head(path))
    x = _named(path, config["data"] if from_table else {}, model.columns, note) if named else _plain(path)
    if x.ndim != 2 or x.shape[1] != prod(shape):
        columns = x.shape[1] if x.ndim == 2 else 0
        raise DataError(f"{path}: {columns} columns; a sample of this run is {prod(shape)} numbers, {shape}")
    whole = dtype == "uint8" and bool(((x >= 0) & (x <= 255) & (x == x.round())).all())
    return x.astype(np.uint8 if whole else np.float32).reshape(-1, *shape)


def _has_head(path: Path) -> bool:
    return any(not is_number(cell) for row in _rows(path)[:1] for cell in row)


def _rows(path: Path) -> list[list[str]]:
    try:
        return [row for row in csv.reader(path.read_text(encoding="utf-8-sig").splitlines()) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a table ({error})") from None


def _plain(path: Path) -> Array:
    """Return the numbers of a CSV, whatever its columns are called."""
    import numpy as np

    try:
        return np.array(_rows(path)[_has_head(path) :], dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{path}: not a table of numbers ({error})") from None


def _named(path: Path, options: Mapping[str, Any], learned: Sequence[str], note: Callable[[str], None]) -> Array:
    """Return the features of a table with a head: those that the run learned from, in its order.

    Runs of earlier versions did not keep their names: there it is those that `[data]` lists, or all but label, user,
    task and test.
    """
    import numpy as np

    columns = read_parquet(path) if path.suffix == ".parquet" else read_csv(path)
    special = {options.get(key) or key for key in SPECIAL}
    others = [name for name in columns if name not in special]
    names = list(learned or options.get("features", ())) or others
    for name in names:
        if name not in columns:
            have = ", ".join(columns)
            raise DataError(f"{path}: there is no column '{name}', which the run learned from; it has {have[:200]}")
    extra = [name for name in others if learned and name not in learned and not options.get("features")]
    if extra:
        note(f"{path}: not among what the run learned from, and left out: {', '.join(extra)[:200]}")
    if not names:
        raise DataError(f"{path}: there are no columns but {', '.join(columns)}; a sample needs features")
    x: Array = np.stack([as_column(path, name, columns[name]) for name in names], axis=1)
    missing = np.argwhere(~np.isfinite(x))
    if len(missing):
        row, column = missing[0]
        raise DataError(f"{path}: sample {row + 1} has no number in column '{names[column]}'")
    return x


def _picture(path: Path, model: TrainedModel, config: Mapping[str, Any]) -> Array:
    """Return a picture with the run's number of channels, at the size that its source had."""
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    shape = model.sample[0] if model.sample else model.spec.shape if model.takes_one_size else (3,)
    if len(shape) not in (1, 3) or shape[0] not in (1, 3):
        raise UserError(f"{path}: this run's samples, {shape}, are no pictures")
    if str(config.get("source", "")).startswith("pictures:") and len(shape) == 3:
        from cflag.data.sources.pictures import pixels_of

        return pixels_of(path, shape[1], grey=shape[0] == 1)[None]
    try:
        with Image.open(path) as image:
            picture = image.convert("L" if shape[0] == 1 else "RGB")
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a picture, .npz or .csv file ({error})") from None
    if len(shape) == 3 and picture.size != (shape[2], shape[1]):
        picture = picture.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
    pixels = np.array(picture, np.uint8)
    return pixels[None, None] if shape[0] == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))[None]
