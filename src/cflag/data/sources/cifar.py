"""CIFAR-10 and CIFAR-100 in binary form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cflag.data.sources.base import Arrays, Numbers, Remote, SourceReader, make_source
from cflag.data.sources.files import Bytes, Ints, check_labels, file_size, read_bytes
from cflag.errors import DataError
from cflag.registry import register

if TYPE_CHECKING:
    from cflag.data.source import Source

CIFAR_PIXELS = 3 * 32 * 32


@dataclass(frozen=True, kw_only=True)
class Cifar(SourceReader):
    """Files of fixed-size records; `records` is the exact number of them in a train and in a test file."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int
    records: tuple[int, int]
    classes: int
    mean: Numbers
    std: Numbers

    def present(self, root: Path) -> bool:
        """Tell whether any of the files is there."""
        return any((root / self.place / file).is_file() for file in self.train + self.test)

    def check(self, root: Path) -> None:
        """Check the sizes of all files."""
        for files, records in zip((self.train, self.test), self.records, strict=True):
            for file in files:
                check_cifar_records(root / self.place / file, self.label_bytes, records)

    def read(self, root: Path) -> Source:
        """Return uint8 images (n, 3, 32, 32)."""
        train, test = (
            self._half(root, files, records)
            for files, records in zip((self.train, self.test), self.records, strict=True)
        )
        return make_source(self.name, train, test, self.classes, self.mean, self.std)

    def _half(self, root: Path, files: Sequence[str], records: int) -> Arrays:
        images, labels = [], []
        for file in files:
            path = root / self.place / file
            x, y = read_cifar_records(path, self.label_bytes, records)
            check_labels(path, y, 0, self.classes - 1)
            images.append(x)
            labels.append(y)
        return Arrays(np.concatenate(images), np.concatenate(labels))


# The format -----------------------------------------------------------------------------------------------------------


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


# The data sets --------------------------------------------------------------------------------------------------------


def _remotes(name: str, md5: str, folder: str) -> tuple[Remote, ...]:
    """Return CIFAR's archive; checksums are those of its page, which has moved to the second address."""
    file = f"{name}-binary.tar.gz"
    urls = (f"https://www.cs.toronto.edu/~kriz/{file}", f"https://cave.cs.toronto.edu/kriz/{file}")
    return (Remote(file, urls, md5, folder),)


register("source", "cifar10", "CIFAR-10: photos 32x32, colour, 10 classes, 50,000 + 10,000 images")(
    Cifar(
        name="cifar10",
        place="cifar-10-batches-bin",
        train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test=("test_batch.bin",),
        label_bytes=1,
        records=(10_000, 10_000),
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        remotes=_remotes("cifar-10", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),
    )
)

register("source", "cifar100", "CIFAR-100: photos 32x32, colour, 100 classes, 50,000 + 10,000 images")(
    Cifar(
        name="cifar100",
        place="cifar-100-binary",
        train=("train.bin",),
        test=("test.bin",),
        label_bytes=2,
        records=(50_000, 10_000),
        classes=100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        remotes=_remotes("cifar-100", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),
    )
)
