"""Scenarios: how a source becomes a sequence of tasks.

`task` and `class` split the classes, in a seeded order, into tasks of (nearly) equal size; they differ only in
which outputs may answer (see `learning.heads`). `permuted` and `rotated` keep all classes and change the images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cflag.data.source import Source
from cflag.errors import UserError
from cflag.rng import stream


@dataclass(frozen=True)
class Task:
    """One task: its classes (as output numbers) and what happens to its inputs."""

    classes: tuple[int, ...]
    transform: Callable[[Tensor], Tensor]


def make_tasks(source: Source, scenario: str, tasks: int, class_order: str, seed: int) -> list[Task]:
    """Turn a source into its sequence of tasks."""
    if scenario in ("task", "class"):
        return _split_classes(source, tasks, class_order, seed)
    everything = tuple(range(source.classes))
    change = _permutation if scenario == "permuted" else _rotation
    return [Task(everything, change(source, tasks, index, seed)) for index in range(tasks)]


def _split_classes(source: Source, tasks: int, class_order: str, seed: int) -> list[Task]:
    if tasks > source.classes:
        raise UserError(f"tasks = {tasks} is more than the {source.classes} classes of {source.name}")
    order = np.arange(source.classes)
    if class_order == "seeded":
        order = stream(seed, "class order").permutation(order)
    return [Task(tuple(int(c) for c in part), lambda x: x) for part in np.array_split(order, tasks)]


def _permutation(source: Source, tasks: int, index: int, seed: int) -> Callable[[Tensor], Tensor]:
    """Task 0 sees the inputs as they are, each later task its own fixed shuffle of them."""
    size = int(np.prod(source.shape))
    order = stream(seed, "permutation", index).permutation(size) if index else np.arange(size)
    chosen = torch.from_numpy(order)
    return lambda x: x.flatten(1)[:, chosen].reshape(x.shape)


def _rotation(source: Source, tasks: int, index: int, seed: int) -> Callable[[Tensor], Tensor]:
    """Task 0 is upright, the others are spread evenly up to a half turn."""
    if len(source.shape) != 3:
        raise UserError(f"scenario 'rotated' wants images; {source.name} has samples of shape {source.shape}")
    angle = np.pi * index / max(tasks - 1, 1)
    turn = torch.tensor([[np.cos(angle), -np.sin(angle), 0.0], [np.sin(angle), np.cos(angle), 0.0]])

    def rotate(x: Tensor) -> Tensor:
        if not index:
            return x
        grid = F.affine_grid(turn.float().expand(len(x), 2, 3), list(x.shape), align_corners=False)
        turned = F.grid_sample(x.float(), grid, align_corners=False)
        return (turned if x.is_floating_point() else turned.round()).to(x.dtype)

    return rotate
