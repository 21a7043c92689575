"""Random streams by name.

Every draw comes from a stream made of (seed, purpose, where), so the order of clients, the number of workers,
the engine and a stop in between cannot change a single number.
"""

from __future__ import annotations

import hashlib

import numpy as np


def key(seed: int, purpose: str, *where: int) -> int:
    """Return the 128-bit name of a stream as a number."""
    name = "/".join([str(seed), purpose, *map(str, where)])
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")


def stream(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """Return the stream of random numbers for one purpose at one place (client, task, round, ...)."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *where)))


def torch_seed(seed: int, purpose: str, *where: int) -> int:
    """Return a seed for torch's own generator, for initial weights and dropout."""
    return key(seed, purpose, *where) % 2**63
