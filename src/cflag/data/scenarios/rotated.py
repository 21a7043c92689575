"""All classes in every task, but each task turns the images by its own angle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cflag.data.options import BenchmarkOptions
from cflag.data.scenarios.base import Task, TaskSequence
from cflag.data.source import Source
from cflag.errors import UserError
from cflag.registry import register


@register("scenario", "rotated", "every task has all classes, with its images turned by its own angle")
def rotated(source: Source, options: BenchmarkOptions) -> TaskSequence:
    """Task 0 is upright, the others are spread evenly up to a half turn."""
    if len(source.shape) != 3:
        raise UserError(f"scenario 'rotated' wants images; {source.name} has samples of shape {source.shape}")
    everything = tuple(range(source.classes))
    angles = [np.pi * task / (options.tasks - 1) for task in range(1, options.tasks)]
    turned = [Task(everything, _rotation(angle)) for angle in angles]
    return TaskSequence((Task(everything), *turned), by_task=False)


def _rotation(angle: float) -> Callable[[Tensor], Tensor]:
    turn = torch.tensor([[np.cos(angle), -np.sin(angle), 0.0], [np.sin(angle), np.cos(angle), 0.0]])

    def rotate(x: Tensor) -> Tensor:
        grid = F.affine_grid(turn.float().expand(len(x), 2, 3), list(x.shape), align_corners=False)
        turned = F.grid_sample(x.float(), grid, align_corners=False)
        return (turned if x.is_floating_point() else turned.round()).to(x.dtype)

    return rotate
