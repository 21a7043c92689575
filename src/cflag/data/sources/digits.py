"""The 8x8 digits that come with scikit-learn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cflag.data.sources.base import Arrays, make_source
from cflag.registry import register

if TYPE_CHECKING:
    from cflag.data.source import Source


@register("source", "digits", "handwritten digits 8x8, grey, 10 classes, 1,797 images; built in")
def digits(data_dir: Path) -> Source:
    """Return uint8 images (n, 1, 8, 8); every fifth sample of each class is a test sample."""
    table = _table()
    images, labels = table[:, :-1], table[:, -1]
    # 0..16 to 0..255 in whole numbers, so that no rounding differs between machines.
    pixels = (images * 255 // 16).astype(np.uint8).reshape(-1, 1, 8, 8)
    test = _every_fifth(labels)
    halves = (Arrays(pixels[~test], labels[~test]), Arrays(pixels[test], labels[test]))
    return make_source("digits", *halves, classes=10, mean=(0.3043,), std=(0.3761,))


def _table() -> npt.NDArray[np.int64]:
    """Return a row for each sample: its 64 pixels, 0 to 16, and its label.

    Read from where scikit-learn has it: importing scikit-learn takes as long as half a run. Where a version has it
    elsewhere, it is asked.
    """
    spec = find_spec("sklearn")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for file in (Path(folder, "datasets", "data", "digits.csv.gz") for folder in folders):
        if file.is_file():
            return np.loadtxt(file, np.int64, delimiter=",")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return np.column_stack([images, labels]).astype(np.int64)


def _every_fifth(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mark the fifth, tenth, ... sample of every class."""
    marked = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        marked[np.flatnonzero(labels == label)[4::5]] = True
    return marked
