"""Arrays of your own: train.npz and test.npz with `x` and `y` (and `subject`, `task`), described in source.toml."""

from __future__ import annotations

import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cflag.data.sources.base import Arrays, SourceReader, make_source
from cflag.errors import DataError
from cflag.registry import register

if TYPE_CHECKING:
    from cflag.data.source import Source


@register("source", "folder", "arrays of your own in the data folder: source.toml, train.npz, test.npz")
@dataclass(frozen=True, kw_only=True)
class Folder(SourceReader):
    """Reads the arrays of the data folder itself."""

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
            return make_source(str(about["name"]), halves[0], halves[1], int(about["classes"]), mean, std)
        except KeyError as error:
            raise DataError(f"{path}: '{error.args[0]}' is missing") from None
        except (tomllib.TOMLDecodeError, TypeError, ValueError) as error:
            raise DataError(f"{path}: {error}") from None

    def advice(self) -> str:
        """Return what to do when the files are missing or damaged."""
        return "point --data-dir, or a client's --data, at a folder as docs/deploy.md describes it"

    @staticmethod
    def _half(path: Path) -> Arrays:
        try:
            with np.load(path, allow_pickle=False) as arrays:
                x, y = arrays["x"], arrays["y"]
                subject, task = arrays.get("subject"), arrays.get("task")
        except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: cannot be read as arrays x and y ({error})") from None
        whole = x if x.dtype == np.uint8 else x.astype(np.float32)
        return Arrays(whole, y, subject, task)
