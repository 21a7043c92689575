"""`cflag predict`: what a finished run's model says about pictures, arrays and tables."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cflag.errors import UserError

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from cflag.commands.common import Commands
    from cflag.results.model import TrainedModel

    Array = npt.NDArray[Any]
    Answers = Callable[[Array], Iterator[tuple[str, ...]]]

AT_ONCE = 1000
"""Samples of an array or a table that are answered at once."""


def add_predict(commands: Commands) -> None:
    """Add `cflag predict`."""
    predict = commands.add_parser(
        "predict",
        help="use the model of a finished run",
        description="Say what pictures, the samples `x` of .npz files, or the rows of tables are: a class, or "
        "what else the labels of the run were.",
    )
    predict.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    predict.add_argument("files", nargs="+", type=Path, metavar="FILE", help="pictures, .npz, .csv or .parquet")
    predict.add_argument("--task", type=int, metavar="N", help="the task they are of, from 1: one of its classes")
    predict.add_argument("--csv", action="store_true", help="lines with commas instead of a table")
    predict.set_defaults(command=_predict)


def _predict(args: argparse.Namespace) -> None:
    from cflag.results.result import Result

    result = Result.load(args.run)
    model = result.model()
    if args.task is not None and not 1 <= args.task <= len(model.tasks):
        raise UserError(f"--task {args.task}: this run has tasks 1 to {len(model.tasks)}")
    if args.task is None and model.spec.by_task:
        raise UserError(f"this run's tests tell the task of a sample: say which, with --task 1 to {len(model.tasks)}")
    head, answers = _answering(model, "any" if args.task is None else args.task - 1)
    lines = list(_lines(model, args.files, result.config, answers))
    if args.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("file", "sample", *head))
        writer.writerows(lines)
    else:
        _print(("file", "sample", *head), lines)


def _print(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table for people: a class by its name alone, and how sure it is in percent."""
    rows = [list(head), *map(list, lines)]
    if "name" in head:
        rows = [["file", "sample", "class", "probability"]]
        rows += [[file, sample, name, f"{float(sure):.1%}"] for file, sample, _, name, sure in lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        sides = zip(row, widths, "<><>", strict=False)
        print("  ".join(f"{cell:{side}{width}}" for cell, width, side in sides).rstrip())


def _answering(model: TrainedModel, task: int | Literal["any"]) -> tuple[tuple[str, ...], Answers]:
    """Return what the columns of answers are called, and what gives them."""
    from cflag.problems.base import takes

    def classes(x: Array) -> Iterator[tuple[str, ...]]:
        for probability, label in zip(*model.probabilities(x, task).max(1), strict=True):
            yield str(int(label)), model.class_names[int(label)], f"{float(probability):.4f}"

    def others(x: Array) -> Iterator[tuple[str, ...]]:
        for answer in model.predict(x, task):
            yield (_words(model, answer),)

    if takes(model.problem, ["classes"]):
        return ("class", "name", "probability"), classes
    return ("predicted",), others


def _words(model: TrainedModel, answer: Tensor) -> str:
    """Return an answer that is no single class: numbers, the labels that are yes, or a class for each step."""
    if answer.is_floating_point():
        return " ".join(f"{value:.6g}" for value in answer.reshape(-1).tolist())
    yes = answer.nonzero().reshape(-1) if answer.dtype.itemsize == 1 else answer
    return " ".join(model.class_names[int(label)] for label in yes)


def _lines(
    model: TrainedModel, files: Sequence[Path], config: Mapping[str, Any], answers: Answers
) -> Iterator[tuple[str, ...]]:
    from cflag.commands.unseen import read_samples

    for path in files:
        x = read_samples(path, model, config, lambda line: print(f"note: {line}", file=sys.stderr))
        for start in range(0, len(x), AT_ONCE):
            try:
                for place, answer in enumerate(answers(x[start : start + AT_ONCE]), start + 1):
                    yield str(path), str(place), *answer
            except UserError as error:
                raise UserError(f"{path}: {error}") from None
