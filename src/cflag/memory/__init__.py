"""Replay memories: what a client keeps of earlier tasks. Samples in a memory never leave the client."""

from __future__ import annotations

from cflag.registry import Registry

MEMORIES = Registry(
    "memory",
    {
        "ring": ("cflag.memory.ring:Ring", "class-balanced ring buffer: per_task samples of each task"),
        "reservoir": ("cflag.memory.reservoir:Reservoir", "a uniform sample of all that was ever seen"),
        "none": ("cflag.memory.base:NoMemory", "keeps nothing"),
    },
)
