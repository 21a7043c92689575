"""Readers of the data sets' file formats: files in, NumPy arrays out.

A reader knows a format and nothing about where a data set lies. Whatever is wrong with a file ends in a
`DataError` of one line: the file, what was found, and what was expected.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cflag.errors import DataError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

CIFAR_PIXELS = 3 * 32 * 32


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


# --- MNIST and Fashion-MNIST: idx ------------------------------------------------------------------------


def read_idx(path: Path, dims: int | None = None) -> Bytes:
    """Read an idx file of unsigned bytes, plain or .gz; `dims` is the number of dimensions it must have."""
    content = read_bytes(path)
    shape, start = _idx_shape(path, content, dims)
    _check_idx_size(path, shape, start, len(content))
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def check_idx(path: Path, dims: int | None = None) -> None:
    """Check an idx file's header and size without unpacking the rest of it."""
    size = file_size(path)
    try:
        if path.suffix == ".gz":
            head, size = _gzip_head(path, size)
        else:
            with path.open("rb") as file:
                head = file.read(_IDX_HEAD)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({short_reason(error)})") from None
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
    size, record = file_size(path), label_bytes + CIFAR_PIXELS
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
    wnids = read_text(path).split()
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
    for number, line in enumerate(read_text(path).splitlines(), 1):
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
