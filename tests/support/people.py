"""A data set of people, small and all of its samples different, so that each can be looked for by its bytes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PEOPLE = 8
CLASSES = 4
SETTINGS: dict[str, Any] = {
    "source": "folder", "scenario": "class", "class_order": "natural", "tasks": 2, "rounds": 2, "clients": 2,
    "partition": "subject", "model": "mlp", "width": 8, "batch": 16, "epochs": 1.0, "workers": 1,
    "memory": {"per_task": 60, "sample": 30},
}  # fmt: skip


class People:
    """Images of 36 pixels of a few people, as a data folder: person p's are seen by client p modulo the clients."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(5)
        folder.mkdir(parents=True)
        self.folder = folder
        self.x: NDArray[Any] = rng.integers(0, 256, (320, 1, 6, 6), dtype=np.uint8)
        self.y = np.arange(320) % CLASSES
        self.subject = np.arange(320) // CLASSES % PEOPLE
        np.savez(folder / "train.npz", x=self.x, y=self.y, subject=self.subject)
        tests = rng.integers(0, 256, (64, 1, 6, 6), dtype=np.uint8)
        subject = np.arange(64) // CLASSES % PEOPLE
        np.savez(folder / "test.npz", x=tests, y=np.arange(64) % CLASSES, subject=subject)
        (folder / "source.toml").write_text(f'name = "people"\nclasses = {CLASSES}\n')

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Return the settings of a run on these data."""
        return {**SETTINGS, "data_dir": str(self.folder), **changes}

    def of(self, subject: int, task: int) -> list[bytes]:
        """Return the bytes of a person's training samples of a task, from 0."""
        mine = (self.subject == subject) & (self.y // 2 == task)
        return [x.tobytes() for x in self.x[mine]]


def found(folder: Path, needles: list[bytes]) -> set[tuple[str, int]]:
    """Return in which files of a folder some bytes are, and which: file and number. A run may be at work there."""
    contents = {}
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError, IsADirectoryError):
            contents[str(path.relative_to(folder))] = path.read_bytes()
    return {(name, k) for name, text in contents.items() for k, needle in enumerate(needles) if needle in text}
