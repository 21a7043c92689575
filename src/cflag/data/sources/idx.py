"""MNIST and what shares its format, idx."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cflag.data.sources.base import Arrays, Numbers, Remote, SourceReader, make_source
from cflag.data.sources.files import Bytes, check_labels, file_size, read_bytes, short_reason
from cflag.errors import DataError
from cflag.registry import register

if TYPE_CHECKING:
    from cflag.data.source import Source


@dataclass(frozen=True, kw_only=True)
class IdxImages(SourceReader):
    """Four idx files, plain or .gz, in one of several folders."""

    folders: tuple[str, ...]
    mean: Numbers
    std: Numbers
    classes: int = 10
    side: int = 28

    def present(self, root: Path) -> bool:
        """Tell whether any of the four files is there."""
        return any(self._found(root, file) for half in ("train", "t10k") for file in _idx_names(half))

    def check(self, root: Path) -> None:
        """Check header and size of the four files."""
        for half in ("train", "t10k"):
            for file, dims in zip(_idx_names(half), (3, 1), strict=True):
                check_idx(self._locate(root, file), dims)

    def read(self, root: Path) -> Source:
        """Return uint8 images (n, 1, 28, 28)."""
        train, test = self._half(root, "train"), self._half(root, "t10k")
        return make_source(self.name, train, test, self.classes, self.mean, self.std)

    def _half(self, root: Path, half: str) -> Arrays:
        image_path, label_path = (self._locate(root, file) for file in _idx_names(half))
        images = read_idx(image_path, 3)
        height, width = images.shape[1:]
        if (height, width) != (self.side, self.side):
            raise DataError(f"{image_path}: images are {width}x{height}, expected {self.side}x{self.side}")
        labels = read_idx(label_path, 1).astype(np.int64)
        if len(labels) != len(images):
            raise DataError(f"{label_path}: holds {len(labels)} labels, expected {len(images)} as in {image_path.name}")
        check_labels(label_path, labels, 0, self.classes - 1)
        return Arrays(images[:, None], labels)

    def _found(self, root: Path, file: str) -> Path | None:
        # The .gz in the first folder goes first, as a fresh download lands there and must win.
        candidates = [root / folder / (file + end) for folder in self.folders for end in (".gz", "")]
        return next((path for path in candidates if path.is_file()), None)

    def _locate(self, root: Path, file: str) -> Path:
        found = self._found(root, file)
        if found is None:
            places = " or ".join(self.folders)
            raise DataError(f"{root}: {file} (plain or .gz) not found in {places}")
        return found


def _idx_names(half: str) -> tuple[str, str]:
    """Return the names of the images' and the labels' file."""
    return f"{half}-images-idx3-ubyte", f"{half}-labels-idx1-ubyte"


# The format -----------------------------------------------------------------------------------------------------------


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


# The data sets --------------------------------------------------------------------------------------------------------


def _remotes(place: str, bases: tuple[str, ...], md5: dict[str, str]) -> tuple[Remote, ...]:
    return tuple(
        Remote(f"{place}/{file}", tuple(base + file for base in bases), checksum) for file, checksum in md5.items()
    )


# MNIST's own page answers no downloads any more, so it is asked last. It published no checksums; these are the ones
# torchvision checks.
register("source", "mnist", "MNIST: handwritten digits 28x28, grey, 10 classes, 60,000 + 10,000 images")(
    IdxImages(
        name="mnist",
        place="mnist",
        folders=("mnist", "MNIST/raw"),
        mean=(0.1307,),
        std=(0.3081,),
        remotes=_remotes(
            "mnist",
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "http://yann.lecun.com/exdb/mnist/",
            ),
            {
                "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
            },
        ),
    )
)

# Addresses and checksums as in the readme of Fashion-MNIST's repository, which holds the files too.
register("source", "fashion-mnist", "Fashion-MNIST: clothes 28x28, grey, 10 classes, 60,000 + 10,000 images")(
    IdxImages(
        name="fashion-mnist",
        place="fashion-mnist",
        folders=("fashion-mnist", "FashionMNIST/raw"),
        mean=(0.2860,),
        std=(0.3530,),
        remotes=_remotes(
            "fashion-mnist",
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ),
            {
                "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
            },
        ),
    )
)
