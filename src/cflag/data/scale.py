"""How samples and numbers to predict are scaled: by the mean and standard deviation of what is learned from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

Numbers = tuple[float, ...]
LabelScale = Literal["own", "train"] | tuple[float | Sequence[float], float | Sequence[float]]
"""How numbers to predict are learned: as they are, by the train half's statistics, or by this mean and deviation."""


def statistics(x: Tensor) -> tuple[Numbers, Numbers]:
    """Return the mean and standard deviation of each channel or feature, bytes on the scale 0..1; 1 for constants."""
    total, squares, count = torch.zeros(x.shape[1]).double(), torch.zeros(x.shape[1]).double(), 0
    scale = 1.0 if x.is_floating_point() else 255.0
    shift = x[:1000].double().flatten(2).mean((0, 2)) if x.dim() > 2 else x[:1000].double().mean(0)
    for part in x.split(1000):
        values = (part.double().reshape(len(part), x.shape[1], -1) - shift[:, None]).transpose(0, 1).flatten(1)
        total, squares, count = total + values.sum(1), squares + values.square().sum(1), count + values.shape[1]
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt() / scale
    return tuple(((mean + shift) / scale).tolist()), tuple(torch.where(std > 1e-8, std, 1.0).tolist())


def scale_of(given: LabelScale, train: Tensor) -> tuple[Numbers, Numbers]:
    """Return the mean and standard deviation by which the numbers to predict are learned."""
    if given == "own":
        return (0.0,), (1.0,)
    if given == "train":
        return statistics(train.double().reshape(len(train), -1))
    mean, std = (tuple(part) if isinstance(part, Sequence) else (float(part),) for part in given)
    return mean, std
