"""Two sets of pictures that no default was chosen on, drawn when they are asked for: a plugin.

    cflag run examples/unseen/strokes.toml --methods cflag-tracked,replay,cflag

`strokes` has 15 classes of five strokes; `glyphs` 110 letters of five alphabets in 20 hands, which are its people. A
hand has a font of matplotlib's or of this machine (ours had Debian's fonts-dejavu and fonts-freefont-ttf), so these
pictures differ where fonts do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from fontTools.ttLib import TTFont
from PIL import Image, ImageDraw, ImageFont

from cflag import Source, Split, register

LETTERS = [*"abcdefghijklmnopqrstuv", *"αβγδεζηθικλμνξπρστυφχψ", *"бвгджзийклмнптфцчшщыюя",
           *(chr(0x561 + k) for k in range(22)), *(chr(0x10D0 + k) for k in range(22))]  # fmt: skip
FOLDERS = (Path("/usr/share/fonts"), Path(matplotlib.get_data_path()))

Pixels = np.ndarray[Any, Any]
Drawn = tuple[Pixels, int, int, bool]
"""A picture, its class, its person, and whether it is held out."""


def as_source(name: str, drawn: Iterator[Drawn]) -> Source:
    """Return drawn pictures as a source."""
    pixels, labels, people, held_out = zip(*drawn, strict=True)
    x, y, who = torch.from_numpy(np.stack(pixels)).unsqueeze(1), torch.tensor(labels), torch.tensor(people)
    test = torch.tensor(held_out)
    learned, kept = (Split(x[chosen], y[chosen], subject=who[chosen]) for chosen in (~test, test))
    scaled = learned.x.double() / 255
    return Source(name, learned, kept, int(y.max()) + 1, (float(scaled.mean()),), (float(scaled.std()),))


def draw_strokes(train: int = 200, test: int = 40) -> Iterator[Drawn]:
    """Five points are a class's own; a picture moves them, and joins them by lines of its own width and grey."""
    rng = np.random.default_rng(5)
    for label in range(15):
        points = rng.uniform(16, 96, (5, 2))
        for k in range(train + test):
            picture = Image.new("L", (112, 112))
            pen = ImageDraw.Draw(picture)
            moved = points + rng.normal(0, 7, points.shape) + rng.normal(0, 6, 2)
            for a, b in pairwise(moved):
                pen.line([*a, *b], fill=255, width=int(rng.integers(6, 14)))
            small = np.asarray(picture, np.float64).reshape(28, 4, 28, 4).mean((1, 3))
            noisy = small * rng.uniform(0.5, 1) + rng.normal(0, 25, (28, 28))
            yield noisy.clip(0, 255).astype(np.uint8), label, 0, k >= train


def fonts() -> list[Path]:
    """Return the fonts that have all letters, by name."""
    found = {path.name: path for folder in FOLDERS for path in folder.rglob("*.[to]tf")}
    real = [found[name] for name in sorted(found) if not name.startswith("LastResort")]  # which has boxes for letters
    return [path for path in real if _has_all_letters(path)]


def _has_all_letters(path: Path) -> bool:
    with TTFont(path, lazy=True) as font:
        return {ord(letter) for letter in LETTERS} <= set(font.getBestCmap() or {})


def draw_glyphs(writers: int = 20, train: int = 6, test: int = 3) -> Iterator[Drawn]:
    """A writer is a font, a size, a slant and a width; every letter is turned and moved a little."""
    rng, found = np.random.default_rng(2026), fonts()
    for writer in range(writers):
        slant, size, bold = rng.uniform(-0.35, 0.35), int(rng.integers(26, 35)), int(rng.integers(0, 2))
        width = rng.uniform(0.75, 1.15)
        font = ImageFont.truetype(str(found[writer * len(found) // writers]), size)
        for label, letter in enumerate(LETTERS):
            for k in range(train + test):
                page = Image.new("L", (56, 56))
                stroke = bold if size > 29 else 0
                ImageDraw.Draw(page).text((28, 28), letter, font=font, fill=255, anchor="mm", stroke_width=stroke)
                hand = _hand(rng, slant, width)
                page = page.transform((56, 56), Image.Transform.AFFINE, hand, Image.Resampling.BILINEAR)
                small = page.crop((10, 8, 48, 46)).resize((28, 28), Image.Resampling.BOX)
                noisy = np.asarray(small, np.float64) + rng.normal(0, 12, (28, 28))
                yield noisy.clip(0, 255).astype(np.uint8), label, writer, k >= train


def _hand(rng: np.random.Generator, slant: float, width: float) -> tuple[float, ...]:
    """Return how one letter is turned, sheared, stretched and moved, as PIL wants it."""
    angle, shear = rng.normal(0, 5) * np.pi / 180, slant + rng.normal(0, 0.08)
    across, along = width * rng.uniform(0.9, 1.1), rng.uniform(0.9, 1.1)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    map_ = turn @ np.array([[1 / across, shear], [0, 1 / along]])
    shift = np.array([28, 28]) - map_ @ (np.array([28, 28]) + rng.normal(0, 1.2, 2))
    return tuple(float(v) for v in (map_[0, 0], map_[0, 1], shift[0], map_[1, 0], map_[1, 1], shift[1]))


@register("source", "strokes", "15 classes of five strokes, grey 28x28, drawn")
def strokes(data_dir: Path) -> Source:
    """Draw the strokes."""
    return as_source("strokes", draw_strokes())


@register("source", "glyphs", "110 letters of five alphabets in 20 fonts, grey 28x28, drawn")
def glyphs(data_dir: Path) -> Source:
    """Draw the letters."""
    return as_source("glyphs", draw_glyphs())
