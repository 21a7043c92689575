"""UCI HAR: windows of nine phone signals, as the official folder or as one compact file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cflag.data.sources.base import Arrays, Remote, SourceReader, make_source
from cflag.data.sources.files import Ints, check_labels, file_size, read_text, short_reason
from cflag.errors import DataError
from cflag.registry import register

if TYPE_CHECKING:
    from cflag.data.source import Source

Floats = npt.NDArray[np.float32]

CLASSES = 6
STEPS = 128
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in ("x", "y", "z"))


@register("source", "har", "UCI HAR: phone signals, 9 x 128 steps, 6 activities, 30 people, 10,299 windows")
@dataclass(frozen=True, kw_only=True)
class Har(SourceReader):
    """Reads the official folder or, where that is not there, the compact file."""

    place: str = "UCI HAR Dataset"
    compact: str = "uci-har.npz"
    # UCI publishes no checksum, and these copies are packed differently, so they are checked by reading them.
    remotes: tuple[Remote, ...] = (
        Remote(
            "UCI HAR Dataset.zip",
            (
                "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
                "https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",
                "https://d396qusza40orc.cloudfront.net/getdata%2Fprojectfiles%2FUCI%20HAR%20Dataset.zip",
            ),
            None,
            folder="UCI HAR Dataset",
        ),
    )

    def present(self, root: Path) -> bool:
        """Tell whether one of the two forms is there."""
        return (root / self.place).is_dir() or (root / self.compact).is_file()

    def check(self, root: Path) -> None:
        """Check that the files are there and not empty."""
        if self._has_folder(root):
            check_folder(root / self.place)
        else:
            check_npz(root / self.compact)

    def read(self, root: Path) -> Source:
        """Return float32 windows (n, 9, 128) sorted by person, activity and time; people count from 0.

        The official halves share no person, so they are joined and split anew by `recorded_split`.
        """
        windows = read_folder(root / self.place) if self._has_folder(root) else read_npz(root / self.compact)
        _, person = np.unique(windows.subject, return_inverse=True)
        train, test = recorded_split(windows.x, windows.y, person)
        seen = windows.x[train].astype(np.float64)
        deviation = seen.std(axis=(0, 2))
        return make_source(
            self.name,
            Arrays(windows.x[train], windows.y[train], person[train]),
            Arrays(windows.x[test], windows.y[test], person[test]),
            CLASSES,
            tuple(seen.mean(axis=(0, 2)).tolist()),
            # A signal that never changes cannot be scaled; it is only shifted.
            tuple(np.where(deviation > 0, deviation, 1.0).tolist()),
        )

    def _has_folder(self, root: Path) -> bool:
        if not self.present(root):
            raise DataError(f"{root}: neither '{self.place}' nor {self.compact} found")
        return (root / self.place).is_dir()


# Files to windows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Windows `x` (n, 9, 128), the activity of each (0..5), and the person's number as in the files."""

    x: Floats
    y: Ints
    subject: Ints


def read_folder(folder: Path) -> Windows:
    """Read the official folder 'UCI HAR Dataset': its train half, then its test half."""
    halves = [_read_half(folder, half) for half in ("train", "test")]
    return Windows(
        np.concatenate([half.x for half in halves]),
        np.concatenate([half.y for half in halves]),
        np.concatenate([half.subject for half in halves]),
    )


def check_folder(folder: Path) -> None:
    """Check that every file of the official folder is there and not empty."""
    for half in ("train", "test"):
        labels, people, signals = _files(folder, half)
        for path in (labels, people, *signals):
            if not file_size(path):
                raise DataError(f"{path}: is empty")


def read_npz(path: Path) -> Windows:
    """Read the compact form: one .npz file with X (n, 9, 128), y (n) and subject (n).

    Labels may count from 0 or from 1; they count from 1 where there is a 6 and no 0.
    """
    arrays = _npz_arrays(path)
    x, y, subject = arrays["X"], arrays["y"], arrays["subject"]
    expected = (y.size, len(SIGNALS), STEPS)
    if x.shape != expected or y.ndim != 1 or subject.shape != y.shape or not y.size:
        raise DataError(f"{path}: X is {x.shape}, y {y.shape}, subject {subject.shape}; expected X {expected}")
    if x.dtype.kind != "f" or y.dtype.kind not in "iu" or subject.dtype.kind not in "iu":
        raise DataError(f"{path}: expected X of floating point, y and subject of whole numbers")
    with np.errstate(over="ignore"):
        signals = x.astype(np.float32)
    if not np.isfinite(signals).all():
        raise DataError(f"{path}: X holds values that are not finite")
    labels = y.astype(np.int64)
    base = 1 if CLASSES in labels and 0 not in labels else 0
    check_labels(path, labels, base, base + CLASSES - 1)
    return Windows(_signals_first(signals), labels - base, subject.astype(np.int64))


def check_npz(path: Path) -> None:
    """Check that a compact file is an archive with the three arrays in it."""
    file_size(path)
    try:
        with zipfile.ZipFile(path) as archive:
            found = {Path(name).stem for name in archive.namelist() if name.endswith(".npy")}
    except (OSError, zipfile.BadZipFile) as error:
        raise _broken_npz(path, error) from None
    _check_npz_names(path, found)


def _files(folder: Path, half: str) -> tuple[Path, Path, list[Path]]:
    """Return one half's file of labels, file of people, and files of signals."""
    base = folder / half
    signals = [base / "Inertial Signals" / f"{signal}_{half}.txt" for signal in SIGNALS]
    return base / f"y_{half}.txt", base / f"subject_{half}.txt", signals


def _read_half(folder: Path, half: str) -> Windows:
    labels, people, signals = _files(folder, half)
    y = _whole_column(labels)
    check_labels(labels, y, 1, CLASSES)
    subject = _whole_column(people)
    if len(subject) != len(y):
        raise DataError(f"{people}: has {len(subject)} lines, expected {len(y)} as in {labels.name}")
    x = np.empty((len(y), len(signals), STEPS), np.float32)
    for channel, path in enumerate(signals):
        table = _table(path, STEPS)
        if len(table) != len(y):
            raise DataError(f"{path}: has {len(table)} lines, expected {len(y)} as in {labels.name}")
        x[:, channel] = table
    return Windows(x, y - 1, subject)


def _table(path: Path, columns: int) -> Floats:
    """Read lines of `columns` numbers each."""
    lines = read_text(path).splitlines()
    if not lines:
        raise DataError(f"{path}: is empty")
    for number, line in enumerate(lines, 1):
        found = len(line.split())
        if found != columns:
            raise DataError(f"{path}: line {number} has {found} columns, expected {columns}")
    try:
        table = np.loadtxt(lines, dtype=np.float32, comments=None, ndmin=2)
    except ValueError:
        raise DataError(f"{path}: line {_first_wordy(lines)} holds something that is not a number") from None
    strange = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if len(strange):
        raise DataError(f"{path}: line {strange[0] + 1} holds a value that is not finite")
    return table


def _first_wordy(lines: Sequence[str]) -> int:
    """Return the number of the first line that holds something else than numbers."""
    for number, line in enumerate(lines, 1):
        try:
            [float(cell) for cell in line.split()]
        except ValueError:
            return number
    return len(lines)


def _whole_column(path: Path) -> Ints:
    column = _table(path, 1)[:, 0]
    with np.errstate(invalid="ignore"):
        whole = column.astype(np.int64)
    wrong = np.flatnonzero(whole != column)
    if len(wrong):
        raise DataError(f"{path}: line {wrong[0] + 1} holds {column[wrong[0]]}, expected a whole number")
    return whole


def _npz_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    check_npz(path)
    try:
        # Without pickle a file can hold numbers only, and reading it runs nothing.
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in _NPZ_NAMES}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, MemoryError) as error:
        raise _broken_npz(path, error) from None


_NPZ_NAMES = ("X", "y", "subject")


def _check_npz_names(path: Path, found: set[str]) -> None:
    missing = [name for name in _NPZ_NAMES if name not in found]
    if missing:
        raise DataError(f"{path}: has no array {', '.join(missing)}; expected {', '.join(_NPZ_NAMES)}")


def _broken_npz(path: Path, error: Exception) -> DataError:
    if isinstance(error, OSError) and error.strerror:
        return DataError(f"{path}: cannot be read ({short_reason(error)})")
    return DataError(f"{path}: broken .npz file, or one that holds more than plain numbers")


def _signals_first(x: Floats) -> Floats:
    """Return the windows signal by signal, even where the file has them step by step under that shape.

    Copies of this file exist whose windows were saved as 128 steps of 9 values and only labelled (9, 128),
    which mixes all signals. Signals sampled 50 times a second are smooth, so the right reading is told by
    its much smaller steps in time; without a clear difference the shape is taken at its word.
    """
    by_step = x.reshape(len(x), STEPS, len(SIGNALS)).transpose(0, 2, 1)
    rough, smooth = (float(np.abs(np.diff(reading)).mean()) for reading in (x, by_step))
    return np.ascontiguousarray(by_step) if 2 * smooth < rough else x


# Windows to train and test --------------------------------------------------------------------------------------------


def recorded_split(x: Floats, y: Ints, person: Ints) -> tuple[list[int], list[int]]:
    """Return the places of the train and of the test windows.

    Of each person's windows of each activity the last 20 % in time are test windows (at least one where there
    are two). Each window shares half of its samples with the next, so a random split would put halves of most
    test windows into train; here only the pair at the cut can share samples.
    """
    train: list[int] = []
    test: list[int] = []
    for who, what in np.unique(np.stack([person, y], axis=1), axis=0):
        group = np.flatnonzero((person == who) & (y == what))
        ordered = [int(group[place]) for place in recorded_order(x[group])]
        count = max(1, len(ordered) // 5) if len(ordered) > 1 else 0
        train += ordered[: len(ordered) - count]
        test += ordered[len(ordered) - count :]
    return train, test


def recorded_order(x: Floats) -> list[int]:
    """Return the order in time of one person's windows (n, signals, steps) of one activity.

    The official files are in that order already and stay so. Copies exist that are shuffled; as a window's
    second half is the first half of the next one, number by number, their recordings can be put together
    again. Which recording comes first then follows from the file.
    """
    half = x.shape[2] // 2
    heads, tails = ([part.tobytes() for part in cut] for cut in (x[:, :, :half], x[:, :, half:]))
    # Halves that occur twice (a phone lying still) tell nothing and link nothing.
    place = {head: number for number, head in enumerate(heads) if heads.count(head) == 1}
    following = {n: place[tail] for n, tail in enumerate(tails) if tail in place and tails.count(tail) == 1}
    followed = set(following.values())
    starts = [number for number in range(len(x)) if number not in followed]
    order: list[int] = []
    placed: set[int] = set()
    for start in [*starts, *range(len(x))]:
        current: int | None = start
        while current is not None and current not in placed:
            order.append(current)
            placed.add(current)
            current = following.get(current)
    return order
