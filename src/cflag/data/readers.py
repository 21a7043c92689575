"""Readers of the data sets' file formats: files in, NumPy arrays out.

A reader knows a format and nothing about where a data set lies. Whatever is wrong with a file ends in a
`DataError` of one line: the file, what was found, and what was expected.
"""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cflag.errors import DataError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

CIFAR_PIXELS = 3 * 32 * 32
HAR_CLASSES = 6
HAR_STEPS = 128
HAR_SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in ("x", "y", "z"))


# --- what all readers share ------------------------------------------------------------------------------


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
        raise DataError(f"{path}: broken gzip file ({_reason(error)})") from None


def check_labels(path: Path, labels: Ints, first: int, last: int) -> None:
    """Refuse labels outside first..last, naming the first such label and its place (counted from 1)."""
    wrong = np.flatnonzero((labels < first) | (labels > last))
    if len(wrong):
        label, place = labels[wrong[0]], wrong[0] + 1
        raise DataError(f"{path}: label {label} at place {place}, expected {first}..{last}")


def _unreadable(path: Path, error: OSError) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: not found")
    return DataError(f"{path}: cannot be read ({_reason(error)})")


def _reason(error: Exception) -> str:
    """Return a library's complaint as the short half of one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = text.splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a plain text file") from None


# --- MNIST and Fashion-MNIST: idx ------------------------------------------------------------------------


def read_idx(path: Path, dims: int | None = None) -> Bytes:
    """Read an idx file of unsigned bytes, plain or .gz; `dims` is the number of dimensions it must have."""
    content = read_bytes(path)
    shape, start = _idx_shape(path, content, dims)
    _check_idx_size(path, shape, start, len(content))
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def check_idx(path: Path, dims: int | None = None) -> None:
    """Check an idx file's header and size without unpacking the rest of it."""
    size = _size(path)
    try:
        if path.suffix == ".gz":
            head, size = _gzip_head(path, size)
        else:
            with path.open("rb") as file:
                head = file.read(_IDX_HEAD)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({_reason(error)})") from None
    shape, start = _idx_shape(path, head, dims)
    _check_idx_size(path, shape, start, size)


_IDX_HEAD = 4 + 4 * 255  # a header is never longer: the number of dimensions is one byte


def _gzip_head(path: Path, size: int) -> tuple[bytes, int]:
    """Return the first unpacked bytes and, from the last four bytes of the file, the unpacked size."""
    with gzip.open(path) as unpacked:
        head = unpacked.read(_IDX_HEAD)
    with path.open("rb") as file:
        file.seek(max(size - 4, 0))
        (unpacked_size,) = struct.unpack("<I", file.read(4).rjust(4, b"\0"))
    return head, unpacked_size


def _idx_shape(path: Path, content: bytes, dims: int | None) -> tuple[tuple[int, ...], int]:
    """Return the shape the header tells and where the values start."""
    if len(content) < 4:
        raise DataError(f"{path}: holds {len(content)} bytes, too few for an idx header")
    magic = content[:4]
    if magic[:3] != b"\x00\x00\x08" or magic[3] == 0:
        raise DataError(f"{path}: starts with 0x{magic.hex()}, expected 0x000008.. (idx of unsigned bytes)")
    if dims is not None and magic[3] != dims:
        raise DataError(f"{path}: has {magic[3]} dimension(s), expected {dims}")
    start = 4 + 4 * magic[3]
    if len(content) < start:
        raise DataError(f"{path}: holds {len(content)} bytes, expected a header of {start}")
    return struct.unpack(f">{magic[3]}I", content[4:start]), start


def _check_idx_size(path: Path, shape: tuple[int, ...], start: int, size: int) -> None:
    expected = start + math.prod(shape)
    if size != expected:
        told = "x".join(map(str, shape))
        raise DataError(f"{path}: holds {size} bytes, expected {expected} for {told} values")


# --- CIFAR: fixed-size records ---------------------------------------------------------------------------


def read_cifar_records(path: Path, label_bytes: int, records: int) -> tuple[Bytes, Ints]:
    """Read a CIFAR binary file of exactly `records` records: images (n, 3, 32, 32) and their labels.

    A record is one label byte (CIFAR-10) or two (CIFAR-100: coarse, fine; the fine one is used) and 3072
    pixels, plane by plane.
    """
    check_cifar_records(path, label_bytes, records)
    raw = np.frombuffer(read_bytes(path), np.uint8).reshape(records, label_bytes + CIFAR_PIXELS)
    images = raw[:, label_bytes:].reshape(records, 3, 32, 32)
    return images, raw[:, label_bytes - 1].astype(np.int64)


def check_cifar_records(path: Path, label_bytes: int, records: int) -> None:
    """Check that a CIFAR binary file has the size of exactly `records` records."""
    # A file cut between two records would still read well, so its size alone tells.
    size, record = _size(path), label_bytes + CIFAR_PIXELS
    if size != records * record:
        expected = f"{records * record} ({records} records of {record} bytes)"
        raise DataError(f"{path}: holds {size} bytes, expected {expected}")


# --- Tiny-ImageNet: folders of JPEG files ----------------------------------------------------------------


class Listing(NamedTuple):
    """Image files and the label of each."""

    files: list[Path]
    labels: list[int]


def list_tiny_imagenet(folder: Path, classes: int) -> tuple[Listing, Listing]:
    """Return the train and the val images of a Tiny-ImageNet folder, without opening them.

    A label is the place of the class's wnid in wnids.txt, in the order of that file. It is not sorted, so
    these labels differ from those of loaders that number the sorted folders. Train images come class by
    class in the order of their names, val images in the order of val_annotations.txt.
    """
    labels = _wnids(folder / "wnids.txt", classes)
    return _list_train(folder / "train", labels), _list_val(folder / "val", labels)


def read_images(files: Sequence[Path], side: int) -> Bytes:
    """Read square image files as (n, 3, side, side); grey images become RGB."""
    images = np.empty((len(files), 3, side, side), np.uint8)
    for image, file in zip(images, files, strict=True):
        image[:] = _read_image(file, side).transpose(2, 0, 1)
    return images


def _wnids(path: Path, classes: int) -> dict[str, int]:
    wnids = _text(path).split()
    if len(set(wnids)) != len(wnids):
        raise DataError(f"{path}: lists a class twice")
    if len(wnids) != classes:
        raise DataError(f"{path}: lists {len(wnids)} classes, expected {classes}")
    return {wnid: label for label, wnid in enumerate(wnids)}


def _list_train(folder: Path, labels: Mapping[str, int]) -> Listing:
    listing = Listing([], [])
    for wnid, label in labels.items():
        images = folder / wnid / "images"
        files = sorted(images.glob("*.JPEG"))
        if not files:
            raise DataError(f"{images}: holds no .JPEG file, expected at least one")
        listing.files.extend(files)
        listing.labels.extend([label] * len(files))
    return listing


def _list_val(folder: Path, labels: Mapping[str, int]) -> Listing:
    listing = Listing([], [])
    path = folder / "val_annotations.txt"
    for number, line in enumerate(_text(path).splitlines(), 1):
        cells = line.split("\t")
        if len(cells) != 6:
            raise DataError(f"{path}: line {number} has {len(cells)} columns, expected 6")
        if cells[1] not in labels:
            raise DataError(f"{path}: line {number} names class '{cells[1]}', which wnids.txt does not list")
        listing.files.append(folder / "images" / cells[0])
        listing.labels.append(labels[cells[1]])
    shown = set(listing.labels)
    for wnid, label in labels.items():
        if label not in shown:
            raise DataError(f"{path}: lists no image of class '{wnid}', expected at least one")
    missing = next((file for file in listing.files if not file.is_file()), None)
    if missing:
        raise DataError(f"{missing}: not found, but listed in {path.name}")
    return listing


def _read_image(path: Path, side: int) -> Bytes:
    # Imported here as most sources need no image library.
    from PIL import Image

    try:
        with Image.open(path) as image:
            width, height = image.size
            if (width, height) != (side, side):
                raise DataError(f"{path}: is {width}x{height} pixels, expected {side}x{side}")
            return np.asarray(image.convert("RGB"))
    except FileNotFoundError:
        raise DataError(f"{path}: not found") from None
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        IndexError,
        struct.error,
        Image.DecompressionBombError,
    ):
        # Pillow's own words repeat the path or speak of its internals.
        raise DataError(f"{path}: broken or cut image file") from None


# --- UCI HAR: windows of nine signals --------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Windows `x` (n, 9, 128), the activity of each (0..5), and the person's number as in the files."""

    x: Floats
    y: Ints
    subject: Ints


def read_har_folder(folder: Path) -> Windows:
    """Read the official folder 'UCI HAR Dataset': its train half, then its test half."""
    halves = [_read_har_half(folder, half) for half in ("train", "test")]
    return Windows(
        np.concatenate([half.x for half in halves]),
        np.concatenate([half.y for half in halves]),
        np.concatenate([half.subject for half in halves]),
    )


def check_har_folder(folder: Path) -> None:
    """Check that every file of the official folder is there and not empty."""
    for half in ("train", "test"):
        labels, people, signals = _har_files(folder, half)
        for path in (labels, people, *signals):
            if not _size(path):
                raise DataError(f"{path}: is empty")


def read_har_npz(path: Path) -> Windows:
    """Read the compact form: one .npz file with X (n, 9, 128), y (n) and subject (n).

    Labels may count from 0 or from 1; they count from 1 where there is a 6 and no 0.
    """
    arrays = _npz_arrays(path)
    x, y, subject = arrays["X"], arrays["y"], arrays["subject"]
    expected = (y.size, len(HAR_SIGNALS), HAR_STEPS)
    if x.shape != expected or y.ndim != 1 or subject.shape != y.shape or not y.size:
        raise DataError(f"{path}: X is {x.shape}, y {y.shape}, subject {subject.shape}; expected X {expected}")
    if x.dtype.kind != "f" or y.dtype.kind not in "iu" or subject.dtype.kind not in "iu":
        raise DataError(f"{path}: expected X of floating point, y and subject of whole numbers")
    with np.errstate(over="ignore"):
        signals = x.astype(np.float32)
    if not np.isfinite(signals).all():
        raise DataError(f"{path}: X holds values that are not finite")
    labels = y.astype(np.int64)
    base = 1 if HAR_CLASSES in labels and 0 not in labels else 0
    check_labels(path, labels, base, base + HAR_CLASSES - 1)
    return Windows(_signals_first(signals), labels - base, subject.astype(np.int64))


def check_har_npz(path: Path) -> None:
    """Check that a compact file is an archive with the three arrays in it."""
    _size(path)
    try:
        with zipfile.ZipFile(path) as archive:
            found = {Path(name).stem for name in archive.namelist() if name.endswith(".npy")}
    except (OSError, zipfile.BadZipFile) as error:
        raise _broken_npz(path, error) from None
    _check_npz_names(path, found)


def _har_files(folder: Path, half: str) -> tuple[Path, Path, list[Path]]:
    """Return one half's file of labels, file of people, and files of signals."""
    base = folder / half
    signals = [base / "Inertial Signals" / f"{signal}_{half}.txt" for signal in HAR_SIGNALS]
    return base / f"y_{half}.txt", base / f"subject_{half}.txt", signals


def _read_har_half(folder: Path, half: str) -> Windows:
    labels, people, signals = _har_files(folder, half)
    y = _whole_column(labels)
    check_labels(labels, y, 1, HAR_CLASSES)
    subject = _whole_column(people)
    if len(subject) != len(y):
        raise DataError(f"{people}: has {len(subject)} lines, expected {len(y)} as in {labels.name}")
    x = np.empty((len(y), len(signals), HAR_STEPS), np.float32)
    for channel, path in enumerate(signals):
        table = _table(path, HAR_STEPS)
        if len(table) != len(y):
            raise DataError(f"{path}: has {len(table)} lines, expected {len(y)} as in {labels.name}")
        x[:, channel] = table
    return Windows(x, y - 1, subject)


def _table(path: Path, columns: int) -> Floats:
    """Read lines of `columns` numbers each."""
    lines = _text(path).splitlines()
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
    check_har_npz(path)
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
        return DataError(f"{path}: cannot be read ({_reason(error)})")
    return DataError(f"{path}: broken .npz file, or one that holds more than plain numbers")


def _signals_first(x: Floats) -> Floats:
    """Return the windows signal by signal, even where the file has them step by step under that shape.

    Copies of this file exist whose windows were saved as 128 steps of 9 values and only labelled (9, 128),
    which mixes all signals. Signals sampled 50 times a second are smooth, so the right reading is told by
    its much smaller steps in time; without a clear difference the shape is taken at its word.
    """
    by_step = x.reshape(len(x), HAR_STEPS, len(HAR_SIGNALS)).transpose(0, 2, 1)
    rough, smooth = (float(np.abs(np.diff(reading)).mean()) for reading in (x, by_step))
    return np.ascontiguousarray(by_step) if 2 * smooth < rough else x
