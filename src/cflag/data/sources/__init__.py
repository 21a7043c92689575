"""The sources by name: where each data set's files lie, and how they become a `Source`.

Names and descriptions are told without loading torch or scikit-learn, which take seconds.
"""

from __future__ import annotations

import os
import tomllib
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from cflag.data import har, readers
from cflag.errors import DataError, unknown

if TYPE_CHECKING:
    from cflag.data.source import Source, Split

Numbers = tuple[float, ...]


def names() -> list[str]:
    """Return the names of all sources."""
    return list(SOURCES)


def describe(name: str) -> str:
    """Return one line about a source."""
    return find(name).about


def load(name: str, data_dir: Path | None = None) -> Source:
    """Load a source from the data folder; whatever is wrong with its files is told in one line."""
    entry, root = find(name), data_dir_or_default(data_dir)
    try:
        return entry.read(root)
    except DataError as error:
        raise DataError(f"{error}; {entry.advice()}") from None


def find(name: str) -> Entry:
    """Return the registered source of that name."""
    if name not in SOURCES:
        raise unknown("source", name, SOURCES)
    return SOURCES[name]


def data_dir_or_default(given: str | Path | None) -> Path:
    """Return the data folder: as given, else the environment's CFLAG_DATA, else the user's cache folder."""
    chosen = given or os.environ.get("CFLAG_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("cflag"))


@dataclass(frozen=True)
class Entry(ABC):
    """A source that can be loaded: its name, one line about it, and its place in the data folder."""

    name: str
    about: str
    place: str
    built_in: ClassVar[bool] = False

    @abstractmethod
    def present(self, root: Path) -> bool:
        """Tell whether any of the files are in the data folder `root`."""

    @abstractmethod
    def check(self, root: Path) -> None:
        """Check that all files are there with the right sizes, without reading them through."""

    @abstractmethod
    def read(self, root: Path) -> Source:
        """Read everything."""

    def advice(self) -> str:
        """Return what to do when the files are missing or damaged."""
        return (
            f"run 'cflag data get {self.name}', or point --data-dir or CFLAG_DATA "
            f"at the folder that contains '{self.place}'"
        )


# --- built in --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits(Entry):
    """The 8x8 digits that come with scikit-learn."""

    built_in = True

    def present(self, root: Path) -> bool:
        """Always there."""
        return True

    def check(self, root: Path) -> None:
        """Have nothing to check."""

    def read(self, root: Path) -> Source:
        """Return uint8 images (n, 1, 8, 8); every fifth sample of each class is a test sample."""
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        # 0..16 to 0..255 in whole numbers, so that no rounding differs between machines.
        pixels = (images.astype(np.int64) * 255 // 16).astype(np.uint8).reshape(-1, 1, 8, 8)
        test = _every_fifth(labels)
        return _source(
            self.name,
            _split(pixels[~test], labels[~test]),
            _split(pixels[test], labels[test]),
            classes=10,
            mean=(0.3043,),
            std=(0.3761,),
        )


def _every_fifth(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mark the fifth, tenth, ... sample of every class."""
    marked = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        marked[np.flatnonzero(labels == label)[4::5]] = True
    return marked


# --- images in files -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IdxImages(Entry):
    """MNIST and what shares its format: four idx files, plain or .gz, in one of several folders."""

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
                readers.check_idx(self._locate(root, file), dims)

    def read(self, root: Path) -> Source:
        """Return uint8 images (n, 1, 28, 28)."""
        train, test = self._half(root, "train"), self._half(root, "t10k")
        return _source(self.name, train, test, self.classes, self.mean, self.std)

    def _half(self, root: Path, half: str) -> Split:
        image_path, label_path = (self._locate(root, file) for file in _idx_names(half))
        images = readers.read_idx(image_path, 3)
        height, width = images.shape[1:]
        if (height, width) != (self.side, self.side):
            raise DataError(f"{image_path}: images are {width}x{height}, expected {self.side}x{self.side}")
        labels = readers.read_idx(label_path, 1).astype(np.int64)
        if len(labels) != len(images):
            raise DataError(f"{label_path}: holds {len(labels)} labels, expected {len(images)} as in {image_path.name}")
        readers.check_labels(label_path, labels, 0, self.classes - 1)
        return _split(images[:, None], labels)

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


@dataclass(frozen=True)
class Cifar(Entry):
    """CIFAR-10 and CIFAR-100 in binary form; `records` is the exact number in a train and in a test file."""

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
                readers.check_cifar_records(root / self.place / file, self.label_bytes, records)

    def read(self, root: Path) -> Source:
        """Return uint8 images (n, 3, 32, 32)."""
        train, test = (
            self._half(root, files, records)
            for files, records in zip((self.train, self.test), self.records, strict=True)
        )
        return _source(self.name, train, test, self.classes, self.mean, self.std)

    def _half(self, root: Path, files: Sequence[str], records: int) -> Split:
        images, labels = [], []
        for file in files:
            path = root / self.place / file
            x, y = readers.read_cifar_records(path, self.label_bytes, records)
            readers.check_labels(path, y, 0, self.classes - 1)
            images.append(x)
            labels.append(y)
        return _split(np.concatenate(images), np.concatenate(labels))


@dataclass(frozen=True)
class TinyImageNet(Entry):
    """Tiny-ImageNet's folders, or a subset with at least one image of every class in train and in val.

    The official test images have no labels; the val images are the test half.
    """

    classes: int
    mean: Numbers
    std: Numbers
    side: int = 64

    def present(self, root: Path) -> bool:
        """Tell whether the folder is there."""
        return (root / self.place).is_dir()

    def check(self, root: Path) -> None:
        """Check that every class has images, without opening them."""
        readers.list_tiny_imagenet(root / self.place, self.classes)

    def read(self, root: Path) -> Source:
        """Return uint8 images (n, 3, 64, 64)."""
        listings = readers.list_tiny_imagenet(root / self.place, self.classes)
        train, test = (
            _split(readers.read_images(listing.files, self.side), np.array(listing.labels)) for listing in listings
        )
        return _source(self.name, train, test, self.classes, self.mean, self.std)


# --- signals ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Har(Entry):
    """UCI HAR: windows of nine phone signals, as the official folder or as one compact file."""

    compact: str = "uci-har.npz"

    def present(self, root: Path) -> bool:
        """Tell whether one of the two forms is there."""
        return (root / self.place).is_dir() or (root / self.compact).is_file()

    def check(self, root: Path) -> None:
        """Check that the files are there and not empty."""
        if self._has_folder(root):
            har.check_folder(root / self.place)
        else:
            har.check_npz(root / self.compact)

    def read(self, root: Path) -> Source:
        """Return float32 windows (n, 9, 128) sorted by person, activity and time; people count from 0.

        The official halves share no person, so they are joined and split anew by `har.recorded_split`.
        """
        windows = har.read_folder(root / self.place) if self._has_folder(root) else har.read_npz(root / self.compact)
        _, person = np.unique(windows.subject, return_inverse=True)
        train, test = har.recorded_split(windows.x, windows.y, person)
        seen = windows.x[train].astype(np.float64)
        deviation = seen.std(axis=(0, 2))
        return _source(
            self.name,
            _split(windows.x[train], windows.y[train], person[train]),
            _split(windows.x[test], windows.y[test], person[test]),
            har.CLASSES,
            tuple(seen.mean(axis=(0, 2)).tolist()),
            # A signal that never changes cannot be scaled; it is only shifted.
            tuple(np.where(deviation > 0, deviation, 1.0).tolist()),
        )

    def _has_folder(self, root: Path) -> bool:
        if not self.present(root):
            raise DataError(f"{root}: neither '{self.place}' nor {self.compact} found")
        return (root / self.place).is_dir()


# --- your own --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Folder(Entry):
    """Arrays of your own: train.npz and test.npz with `x` and `y` (and `subject`), described in source.toml."""

    def present(self, root: Path) -> bool:
        """Tell whether the description is there."""
        return (root / "source.toml").is_file()

    def check(self, root: Path) -> None:
        """Check that all three files are there."""
        for name in ("source.toml", "train.npz", "test.npz"):
            if not (root / name).is_file():
                raise DataError(f"{root / name}: there is no such file")

    def read(self, root: Path) -> Source:
        """Read the arrays as they are: uint8 images (n, channels, height, width), or floating point of any shape."""
        self.check(root)
        path = root / "source.toml"
        try:
            about = tomllib.loads(path.read_text(encoding="utf-8"))
            mean, std = (tuple(map(float, about.get(key, [value]))) for key, value in (("mean", 0), ("std", 1)))
            halves = [self._half(root / f"{name}.npz") for name in ("train", "test")]
            return _source(str(about["name"]), halves[0], halves[1], int(about["classes"]), mean, std)
        except KeyError as error:
            raise DataError(f"{path}: '{error.args[0]}' is missing") from None
        except (tomllib.TOMLDecodeError, TypeError, ValueError) as error:
            raise DataError(f"{path}: {error}") from None

    def advice(self) -> str:
        """Return what to do when the files are missing or damaged."""
        return "point --data-dir, or a client's --data, at a folder as docs/deploy.md describes it"

    @staticmethod
    def _half(path: Path) -> Split:
        try:
            with np.load(path, allow_pickle=False) as arrays:
                x, y = arrays["x"], arrays["y"]
                subject = arrays.get("subject")
        except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: cannot be read as arrays x and y ({error})") from None
        whole = x if x.dtype == np.uint8 else x.astype(np.float32)
        return _split(whole, y, subject)


# --- arrays to tensors -----------------------------------------------------------------------------------


def _split(x: npt.NDArray[Any], y: npt.NDArray[Any], subject: npt.NDArray[Any] | None = None) -> Split:
    import torch

    from cflag.data.source import Split

    people = None if subject is None else torch.from_numpy(subject.astype(np.int64))
    return Split(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)), people)


def _source(name: str, train: Split, test: Split, classes: int, mean: Numbers, std: Numbers) -> Source:
    from cflag.data.source import Source

    return Source(name, train, test, classes, mean, std)


# --- the registry ----------------------------------------------------------------------------------------

# Means and deviations are those of the train images on the scale 0..1, as published and commonly used.
_ENTRIES: tuple[Entry, ...] = (
    Digits("digits", "handwritten digits 8x8, grey, 10 classes, 1,797 images; built in", ""),
    IdxImages(
        "mnist",
        "MNIST: handwritten digits 28x28, grey, 10 classes, 60,000 + 10,000 images",
        "mnist",
        folders=("mnist", "MNIST/raw"),
        mean=(0.1307,),
        std=(0.3081,),
    ),
    IdxImages(
        "fashion-mnist",
        "Fashion-MNIST: clothes 28x28, grey, 10 classes, 60,000 + 10,000 images",
        "fashion-mnist",
        folders=("fashion-mnist", "FashionMNIST/raw"),
        mean=(0.2860,),
        std=(0.3530,),
    ),
    Cifar(
        "cifar10",
        "CIFAR-10: photos 32x32, colour, 10 classes, 50,000 + 10,000 images",
        "cifar-10-batches-bin",
        train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test=("test_batch.bin",),
        label_bytes=1,
        records=(10_000, 10_000),
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    Cifar(
        "cifar100",
        "CIFAR-100: photos 32x32, colour, 100 classes, 50,000 + 10,000 images",
        "cifar-100-binary",
        train=("train.bin",),
        test=("test.bin",),
        label_bytes=2,
        records=(50_000, 10_000),
        classes=100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
    TinyImageNet(
        "tiny-imagenet",
        "Tiny-ImageNet: photos 64x64, colour, 200 classes, 100,000 + 10,000 images, or a subset",
        "tiny-imagenet-200",
        classes=200,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
    ),
    Har(
        "har",
        "UCI HAR: phone signals, 9 x 128 steps, 6 activities, 30 people, 10,299 windows",
        "UCI HAR Dataset",
    ),
    Folder("folder", "arrays of your own in the data folder: source.toml, train.npz, test.npz", ""),
)

SOURCES: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
