"""A table of your own, CSV or Parquet: a sample is a row of numbers."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cflag.data.sources.own import Array, OwnReader, Rows
from cflag.errors import DataError, unknown
from cflag.registry import register

EMPTY = ("", "na", "nan", "null", "none")


@register("source", "table", "a table of your own, table:FILE.csv or .parquet, with columns label, user, task, test")
@dataclass(frozen=True, kw_only=True)
class Table(OwnReader):
    """Reads the columns that `[data]` names; what is neither label, user, task nor test is a feature."""

    def rows(self, root: Path) -> Rows:
        """Return the table's rows."""
        import torch

        path, options = self.path(root), self.options
        columns = read_parquet(path) if path.suffix == ".parquet" else read_csv(path)
        for name in (*options.features, *(getattr(options, key) for key in ("label", "user", "task", "test"))):
            if name and name not in columns:
                raise unknown(f"column of {path.name}", name, columns)
        special = {key: getattr(options, key) or key for key in ("label", "user", "task", "test")}
        if special["label"] not in columns:
            raise DataError(f"{path}: there is no column 'label'; name yours: data.label = \"...\"")
        names = options.features or [name for name in columns if name not in special.values()]
        if not names:
            raise DataError(f"{path}: there are no columns but {', '.join(columns)}; a sample needs features")
        x = np.stack([as_column(path, name, columns[name]) for name in names], axis=1)
        user, task, test = (columns.get(special[key]) for key in ("user", "task", "test"))
        label, numbers = columns[special["label"]], torch.from_numpy(x.astype(np.float32))
        return Rows(numbers, label, user, task, test, columns=tuple(names))


def read_csv(path: Path) -> dict[str, Array]:
    """Return a CSV's columns as text, by the names in its first line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file, skipinitialspace=True) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from None
    if not lines:
        raise DataError(f"{path}: is empty")
    head = [name.strip() for name in lines[0]]
    if len(set(head)) < len(head) or not all(head):
        raise DataError(f"{path}: the first line must name every column, each once")
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(head):
            raise DataError(f"{path}, line {number}: {len(line)} cells, expected {len(head)}")
    return {name: np.array([line[k].strip() for line in lines[1:]], dtype=str) for k, name in enumerate(head)}


def read_parquet(path: Path) -> dict[str, Array]:
    """Return a Parquet file's columns."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow, which is missing: pip install 'cflag[tables]'") from None
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error})") from None
    found: Mapping[str, list[object]] = table.to_pydict()
    return {name: np.array(["" if cell is None else cell for cell in cells]) for name, cells in found.items()}


def as_column(path: Path, name: str, column: Array) -> Array:
    """Return a column as numbers; an empty cell is none."""
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    cells = ["nan" if cell.lower() in EMPTY else cell for cell in column.tolist()]
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        wrong = next(row for row, cell in enumerate(cells, 2) if not is_number(cell))
        raise DataError(
            f"{path}, line {wrong}: '{cells[wrong - 2]}' in column '{name}' is no number; a column of words can be "
            "the label, user, task or test, or is left out by data.features = [...]"
        ) from None


def is_number(cell: str) -> bool:
    """Tell whether a cell holds a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True
