"""All classes in every task, but each task shuffles the inputs in its own way."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cflag.data.options import BenchmarkOptions
from cflag.data.scenarios.base import Task, TaskSequence
from cflag.data.source import Source
from cflag.registry import register
from cflag.rng import stream


@register("scenario", "permuted", "every task has all classes, with its inputs shuffled in its own fixed way")
def permuted(source: Source, options: BenchmarkOptions) -> TaskSequence:
    """Task 0 sees the inputs as they are, each later task its own fixed shuffle of them."""
    everything = tuple(range(source.classes))
    rngs = [stream(options.seed, "permutation", task) for task in range(1, options.tasks)]
    shuffled = [Task(everything, _shuffle(rng.permutation(prod(source.shape)))) for rng in rngs]
    return TaskSequence((Task(everything), *shuffled), by_task=False)


def _shuffle(order: NDArray[np.int64]) -> Callable[[Tensor], Tensor]:
    chosen = torch.from_numpy(order)
    return lambda x: x.flatten(1)[:, chosen].reshape(x.shape)
