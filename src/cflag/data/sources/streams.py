"""Streams with concept drift from river (extra `cflag[streams]`): a task is a concept, and a source has all it has.

They are made, not downloaded, and the same every time. `scenario = "domain"` lets one concept follow another;
`schedule = "staggered"` lets the drift reach clients one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cflag.data.sources.base import Arrays, make_source
from cflag.errors import UserError
from cflag.registry import register

if TYPE_CHECKING:
    from cflag.data.source import Source

SEED = 1
Row = tuple[Mapping[Any, Any], Any]


@register(
    "source",
    "sea",
    "SEA stream: 3 numbers, 2 classes, 4 concepts of 10,000 samples and 2,500 tests; from river (cflag[streams])",
)
def sea(data_dir: Path) -> Source:
    """Return Street and Kim's concepts (2001) in their order, x₁ + x₂ > 8, 9, 7, 9.5, a tenth of the labels wrong."""
    synth = _synth("sea")
    concepts = [synth.SEA(variant, noise=0.1, seed=SEED + variant) for variant in range(4)]
    spread = 10 / 12**0.5  # the features are uniform between 0 and 10
    return _source("sea", concepts, 2, (10_000, 2_500), ((5.0,), (spread,)))


@register(
    "source",
    "stagger",
    "STAGGER stream: 3 words as 9 bits, 2 classes, 3 concepts of 2,000 and 500; from river (cflag[streams])",
)
def stagger(data_dir: Path) -> Source:
    """Return Schlimmer and Granger's concepts (1986): small and red; green or circle; medium or large."""
    synth = _synth("stagger")
    concepts = [synth.STAGGER(function, seed=SEED + function) for function in range(3)]
    return _source("stagger", concepts, 2, (2_000, 500), ((0.0,), (1.0,)), words=3)


@register(
    "source",
    "led",
    "LED stream: 24 bits, 10 classes, 5 concepts of 4,000 samples and 1,000 tests; from river (cflag[streams])",
)
def led(data_dir: Path) -> Source:
    """Return digits on seven lamps among 17 that mean nothing, a tenth flipped; 0, 1, 3, 5, 7 lamps change places.

    One seed: lamps that changed places stay there when more follow. So concepts take different stretches of it.
    """
    synth, sizes = _synth("led"), (4_000, 1_000)
    streams = [
        synth.LEDDrift(seed=SEED, noise_percentage=0.1, irrelevant_features=True, n_drift_features=moved)
        for moved in (0, 1, 3, 5, 7)
    ]
    concepts = [islice(stream, task * sum(sizes), None) for task, stream in enumerate(streams)]
    return _source("led", concepts, 10, sizes, ((0.0,), (1.0,)))


def _synth(name: str) -> Any:
    try:
        from river.datasets import synth
    except ImportError:
        raise UserError(f"source '{name}' is made by river, which is missing: pip install 'cflag[streams]'") from None
    return synth


def _source(
    name: str,
    concepts: Sequence[Iterable[Row]],
    classes: int,
    sizes: tuple[int, int],
    scale: tuple[tuple[float, ...], tuple[float, ...]],
    words: int = 0,
) -> Source:
    """Take the first samples of each concept for training and the next for tests; `words` become as many bits each."""
    parts = [list(islice(concept, sum(sizes))) for concept in concepts]
    x = np.array([[list(features.values()) for features, _ in rows] for rows in parts])
    y = np.array([[int(label) for _, label in rows] for rows in parts])
    task = np.broadcast_to(np.arange(len(parts))[:, None], y.shape)
    if words:
        x = np.eye(words)[x].reshape(*x.shape[:2], -1)

    def half(part: slice) -> Arrays:
        flat: npt.NDArray[Any] = x[:, part].reshape(-1, x.shape[-1]).astype(np.float32)
        return Arrays(flat, y[:, part].ravel(), task=task[:, part].ravel())

    return make_source(name, half(slice(sizes[0])), half(slice(sizes[0], None)), classes, *scale)
