"""A folder of pictures of your own, by class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cflag.data.sources.own import Array, OwnReader, Rows
from cflag.data.sources.table import read_csv
from cflag.errors import DataError
from cflag.registry import register

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
LIST = "pictures.csv"
USUAL_SIZE = 32
GREY = ("1", "L", "LA", "I;16", "I", "F")


@dataclass(frozen=True)
class _Found:
    """A picture's file, its class, and the half it lies in, if there are halves."""

    file: Path
    label: str
    test: bool | None


@dataclass(frozen=True)
class _Pixels:
    """Pictures that are read when they are asked for: where all of them do not fit into memory, into a file."""

    files: tuple[Path, ...]
    size: int
    grey: bool
    root: Path
    memory_bytes: int

    def at(self, chosen: Array) -> Tensor:
        """Return some of them as bytes."""
        import torch

        from cflag.data.store import gathered

        files, channels = [self.files[k] for k in chosen.tolist()], 1 if self.grey else 3

        def row(index: int) -> Tensor:
            return torch.from_numpy(pixels_of(files[index], self.size, self.grey))

        def key() -> str:
            about = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
            return hashlib.sha256(f"{about} {self.size} {self.grey}".encode()).hexdigest()

        if not files:
            return torch.zeros((0, channels, self.size, self.size), dtype=torch.uint8)
        fits = len(self.files) * channels * self.size**2 <= self.memory_bytes
        return gathered(len(files), row, key, self.root, self.memory_bytes if fits else -1)

    def readable(self) -> tuple[Array, _Pixels, tuple[str, ...]]:
        """Return the places of pictures that are whole, these alone, and the files that end too early."""
        broken = []
        for place, file in enumerate(self.files):
            try:
                pixels_of(file, self.size, self.grey)
            except DataError:
                broken.append(place)
        kept = np.setdiff1d(np.arange(len(self.files)), broken)
        files = tuple(self.files[k] for k in kept.tolist())
        return kept, replace(self, files=files), tuple(str(self.files[k]) for k in broken)


@register("source", "pictures", "a folder of pictures of your own: pictures:DIR with CLASS/*.png, or train/ and test/")
@dataclass(frozen=True, kw_only=True)
class Pictures(OwnReader):
    """Reads DIR/CLASS/*.png, or DIR/train/CLASS/*.png and DIR/test/CLASS/*.png.

    DIR/pictures.csv may say more of each `file`: its `user`, `task` and `test`. All pictures get one size: the shorter
    side is scaled to it, and of the longer one the middle is kept.
    """

    def rows(self, root: Path) -> Rows:
        """Return the pictures, to be read as bytes, in the order of their names."""
        folder = self.path(root)
        names, found = _files(folder)
        size, grey, unreadable = self._format([one.file for one in found])
        bad = set(unreadable)
        good = [one for one in found if one.file not in bad]
        user, task, test = self._columns(folder, good)
        x = _Pixels(tuple(one.file for one in good), size, grey, root, self.options.memory_bytes)
        label = np.array([one.label for one in good], dtype=str)
        return Rows(x, label, user, task, test, names, tuple(map(str, unreadable)))

    def _format(self, files: Sequence[Path]) -> tuple[int, bool, list[Path]]:
        """Return the size and whether all are grey, from what files begin with; and which cannot be read."""
        from PIL import Image

        sizes, modes, unreadable = set(), set(), []
        for file in files:
            try:
                with Image.open(file) as picture:
                    sizes.add(picture.size)
                    modes.add(picture.mode)
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
                unreadable.append(file)
        (width, height) = next(iter(sizes)) if len(sizes) == 1 else (0, 1)
        own = width if width == height and not self.reading.partial else USUAL_SIZE
        grey = modes <= set(GREY) and not self.reading.partial
        colour = self.options.colour
        return self.options.size or own, grey if colour == "auto" else colour == "grey", unreadable

    def _columns(self, folder: Path, found: Sequence[_Found]) -> tuple[Array | None, Array | None, Array | None]:
        """Return whose pictures are, of which task and for which half."""
        test = np.array([one.test for one in found]) if found and found[0].test is not None else None
        prefix = np.array([one.file.name.split("_")[0] for one in found], dtype=str)
        by_prefix = self.options.user == "prefix"
        if not (folder / LIST).is_file():
            for key in ("task", "test", *(() if by_prefix else ("user",))):
                if getattr(self.options, key):
                    raise DataError(f"data.{key} names a column, and there is no {folder / LIST}")
            return (prefix if by_prefix else None), None, test
        table = read_csv(folder / LIST)
        if "file" not in table:
            raise DataError(f"{folder / LIST}: there is no column 'file'")
        place = {name: row for row, name in enumerate(table["file"].tolist())}
        names = [one.file.relative_to(folder).as_posix() for one in found]
        for name in names:
            if name not in place:
                raise DataError(f"{folder / LIST}: there is no line for {name}")
        order = np.array([place[name] for name in names], np.int64)

        def column(key: str) -> Array | None:
            given = getattr(self.options, key)
            if given and given not in table:
                raise DataError(f"{folder / LIST}: there is no column '{given}', only {', '.join(table)}")
            return table[given or key][order] if (given or key) in table else None

        said = column("test") if test is None else test
        return (prefix if by_prefix else column("user")), column("task"), said


def _files(folder: Path) -> tuple[tuple[str, ...], list[_Found]]:
    """Return the classes, which are folders, and all pictures."""
    if not folder.is_dir():
        raise DataError(f"{folder}: is not a folder")
    halves: list[tuple[Path, bool | None]] = [(folder, None)]
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        halves = [(folder / "train", False), (folder / "test", True)]
    classes = [(one, test) for half, test in halves for one in sorted(half.iterdir()) if _is_class(one)]
    if not classes:
        raise DataError(f"{folder}: expected a folder for each class, with its pictures in it")
    found = [
        _Found(file, one.name, test)
        for one, test in classes
        for file in sorted(one.rglob("*"))
        if file.suffix.lower() in ENDINGS and not file.name.startswith(".")
    ]
    return tuple(sorted({one.name for one, _ in classes})), found


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".") and path.name not in ("samples", "features", "backbones")


def pixels_of(file: Path, size: int, grey: bool) -> Array:
    """Return a picture as bytes (channels, size, size), upright, its middle square."""
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as picture:
            square = _square(ImageOps.exif_transpose(picture), size, grey)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{file}: cannot be read as a picture ({error})") from None
    pixels = np.array(square)
    return np.ascontiguousarray(pixels[None] if grey else pixels.transpose(2, 0, 1))


def _square(picture: Image, size: int, grey: bool) -> Image:
    """Lay a picture on white where it is transparent, and scale and crop it."""
    from PIL import Image, ImageOps

    if picture.mode in ("LA", "RGBA", "PA") or "transparency" in picture.info:
        seen = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    if picture.mode.startswith("I"):  # sixteen bits
        picture = Image.fromarray((np.asarray(picture).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    return ImageOps.fit(picture.convert("L" if grey else "RGB"), (size, size), Image.Resampling.BILINEAR)
