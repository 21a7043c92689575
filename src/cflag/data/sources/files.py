"""Reading files: whatever is wrong with one ends in a `DataError` of one line that says what was found and expected."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cflag.errors import DataError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def read_bytes(path: Path) -> bytes:
    """Return a file's content, unpacked where its name ends in .gz."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: broken gzip file ({short_reason(error)})") from None


def check_labels(path: Path, labels: Ints, first: int, last: int) -> None:
    """Refuse labels outside first..last, naming the first such label and its place (counted from 1)."""
    wrong = np.flatnonzero((labels < first) | (labels > last))
    if len(wrong):
        label, place = labels[wrong[0]], wrong[0] + 1
        raise DataError(f"{path}: label {label} at place {place}, expected {first}..{last}")


def short_reason(error: Exception) -> str:
    """Return a library's complaint as the short half of one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = text.splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def file_size(path: Path) -> int:
    """Return a file's size in bytes; a file that cannot be found or read is refused."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def read_text(path: Path) -> str:
    """Return a file's content as text."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a plain text file") from None


def _unreadable(path: Path, error: OSError) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: not found")
    return DataError(f"{path}: cannot be read ({short_reason(error)})")
