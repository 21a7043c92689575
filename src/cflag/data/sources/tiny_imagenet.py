"""Tiny-ImageNet: folders of JPEG files."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cflag.data.sources.base import Arrays, Numbers, Remote, SourceReader, make_source
from cflag.data.sources.files import Bytes, read_text
from cflag.errors import DataError
from cflag.registry import register

if TYPE_CHECKING:
    from cflag.data.source import Source


@register(
    "source", "tiny-imagenet", "Tiny-ImageNet: photos 64x64, colour, 200 classes, 100,000 + 10,000 images, or a subset"
)
@dataclass(frozen=True, kw_only=True)
class TinyImageNet(SourceReader):
    """Reads all images, or a subset with at least one image of every class in train and in val.

    The official test images have no labels; the val images are the test half.
    """

    place: str = "tiny-imagenet-200"
    # Stanford publishes no checksum; this is the one public loaders agree on.
    remotes: tuple[Remote, ...] = (
        Remote(
            "tiny-imagenet-200.zip",
            (
                "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            ),
            "90528d7ca1a48142e341f4ef8d21d0de",
            folder="tiny-imagenet-200",
        ),
    )
    classes: int = 200
    mean: Numbers = (0.4802, 0.4481, 0.3975)
    std: Numbers = (0.2770, 0.2691, 0.2821)
    side: int = 64

    def present(self, root: Path) -> bool:
        """Tell whether the folder is there."""
        return (root / self.place).is_dir()

    def check(self, root: Path) -> None:
        """Check that every class has images, without opening them."""
        list_tiny_imagenet(root / self.place, self.classes)

    def read(self, root: Path) -> Source:
        """Return uint8 images (n, 3, 64, 64)."""
        listings = list_tiny_imagenet(root / self.place, self.classes)
        train, test = (Arrays(read_images(listing.files, self.side), np.array(listing.labels)) for listing in listings)
        return make_source(self.name, train, test, self.classes, self.mean, self.std)


# The format -----------------------------------------------------------------------------------------------------------


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
