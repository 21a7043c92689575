"""Random streams by name.

Every draw comes from a stream made of (seed, purpose, where), so the order of clients, the number of workers,
the engine and a stop in between cannot change a single number.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.random import Generator, Philox
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray


class _Key(ISeedSequence):
    """A generator's key as it is. `Philox(key=...)` has the same stream, but asks the system for a seed first."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Return the key, which is as long as Philox wants it."""
        return self._words


def _name(seed: int, purpose: str, where: tuple[int, ...]) -> bytes:
    """Return the 128-bit name of a stream."""
    name = "/".join([str(seed), purpose, *map(str, where)])
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def key(seed: int, purpose: str, *where: int) -> int:
    """Return the 128-bit name of a stream as a number."""
    return int.from_bytes(_name(seed, purpose, where), "little")


def stream(seed: int, purpose: str, *where: int) -> Generator:
    """Return the stream of random numbers for one purpose at one place (client, task, round, ...)."""
    name: Any = _Key(np.frombuffer(_name(seed, purpose, where), "<u8"))  # numpy takes any ISeedSequence, its stubs one
    return Generator(Philox(name))


def torch_seed(seed: int, purpose: str, *where: int) -> int:
    """Return a seed for torch's own generator, for initial weights and dropout."""
    return key(seed, purpose, *where) % 2**63
