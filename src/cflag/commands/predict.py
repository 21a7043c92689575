"""`cflag predict`: what a finished run's model says about pictures, arrays and tables."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cflag.errors import DataError, UserError

if TYPE_CHECKING:
    import numpy.typing as npt

    from cflag.commands.common import Commands
    from cflag.results.model import TrainedModel

    Array = npt.NDArray[Any]

HEAD = ("file", "sample", "class", "name", "probability")
AT_ONCE = 1000
"""Samples of an array or a table that are answered at once."""


def add_predict(commands: Commands) -> None:
    """Add `cflag predict`."""
    predict = commands.add_parser(
        "predict",
        help="use the model of a finished run",
        description="Say which class pictures, the samples `x` of .npz files, or the rows of .csv files are of.",
    )
    predict.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    predict.add_argument("files", nargs="+", type=Path, metavar="FILE", help="pictures, .npz or .csv")
    predict.add_argument("--task", type=int, metavar="N", help="the task they are of, from 1: one of its classes")
    predict.add_argument("--csv", action="store_true", help="lines with commas instead of a table")
    predict.set_defaults(command=_predict)


def _predict(args: argparse.Namespace) -> None:
    from cflag.problems.base import takes
    from cflag.results.result import Result

    model = Result.load(args.run).model() if (args.run / "result.json").is_file() else _unfinished(args.run)
    if not takes(model.problem, ["classes"]):
        raise UserError("this run's labels are no single classes; use its model from Python: Result.load(...).model()")
    if args.task is not None and not 1 <= args.task <= len(model.tasks):
        raise UserError(f"--task {args.task}: this run has tasks 1 to {len(model.tasks)}")
    if args.task is None and model.spec.by_task:
        raise UserError(f"this run's tests tell the task of a sample: say which, with --task 1 to {len(model.tasks)}")
    lines = list(_lines(model, args.files, "any" if args.task is None else args.task - 1))
    if args.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(HEAD)
        writer.writerows(lines)
        return
    width = max(len(str(path)) for path in args.files)
    label = max(6, *map(len, model.class_names))
    print(f"{'file':<{width}}  sample  {'class':<{label}}  probability")
    for file, sample, _, name, probability in lines:
        print(f"{file:<{width}}  {sample:>6}  {name:<{label}}  {float(probability):>10.1%}")


def _unfinished(run: Path) -> TrainedModel:
    raise UserError(f"{run} holds no finished run: there is no result.json in it")


def _lines(
    model: TrainedModel, files: list[Path], task: int | Literal["any"]
) -> Iterator[tuple[str, str, str, str, str]]:
    for path in files:
        x = _read(path, model)
        for start in range(0, len(x), AT_ONCE):
            try:
                found = model.probabilities(x[start : start + AT_ONCE], task)
            except UserError as error:
                raise UserError(f"{path}: {error}") from None
            for place, (probability, label) in enumerate(zip(*found.max(1), strict=True), start + 1):
                name = model.class_names[int(label)]
                yield str(path), str(place), str(int(label)), name, f"{float(probability):.4f}"


def _read(path: Path, model: TrainedModel) -> Array:
    """Return the samples in a file, as the run's source would have had them."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if path.suffix == ".npz":
        return _arrays(path)
    return _table(path, model) if path.suffix == ".csv" else _picture(path, model)


def _arrays(path: Path) -> Array:
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            x: Array = arrays["x"]
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as an array x ({error})") from None
    return x if x.dtype == np.uint8 else x.astype(np.float32)


def _table(path: Path, model: TrainedModel) -> Array:
    """Return the rows of a table of numbers, each as a sample; a first row that is no numbers is its head."""
    import numpy as np

    shape, dtype = model.sample or (model.spec.shape, model.spec.dtype)
    try:
        rows = [row for row in csv.reader(path.read_text(encoding="utf-8").splitlines()) if row]
        if rows and not _is_number(rows[0][0]):
            rows = rows[1:]
        x = np.array(rows, dtype=np.float64)
    except (ValueError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a table of numbers ({error})") from None
    if x.ndim != 2 or x.shape[1] != prod(shape):
        columns = x.shape[1] if x.ndim == 2 else 0
        raise DataError(f"{path}: {columns} columns; a sample of this run is {prod(shape)} numbers, {shape}")
    whole = dtype == "uint8" and bool(((x >= 0) & (x <= 255) & (x == x.round())).all())
    return x.astype(np.uint8 if whole else np.float32).reshape(-1, *shape)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _picture(path: Path, model: TrainedModel) -> Array:
    """Return a picture with the run's number of channels, at the size that its source had."""
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    shape = model.sample[0] if model.sample else model.spec.shape if model.takes_one_size else (3,)
    if len(shape) not in (1, 3) or shape[0] not in (1, 3):
        raise UserError(f"{path}: this run's samples, {shape}, are no pictures")
    try:
        with Image.open(path) as image:
            picture = image.convert("L" if shape[0] == 1 else "RGB")
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a picture, .npz or .csv file ({error})") from None
    if len(shape) == 3 and picture.size != (shape[2], shape[1]):
        picture = picture.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
    pixels = np.array(picture, np.uint8)
    return pixels[None, None] if shape[0] == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))[None]
