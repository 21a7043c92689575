"""What all models share: their options, and the normalisation layer chosen by name."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Literal

from torch import nn


@dataclass(frozen=True)
class ModelOptions:
    """What a user may choose about a built-in model; width 0 means the model's usual one."""

    width: int = 0
    norm: Literal["group", "batch", "none"] = "group"
    stem: Literal["3x3", "7x7"] = "3x3"


def norm_layer(norm: str, channels: int, dims: int = 2) -> nn.Module:
    """Return the normalisation of `channels` feature maps; groups are 8 where that divides, else fewer."""
    if norm == "batch":
        return nn.BatchNorm2d(channels) if dims == 2 else nn.BatchNorm1d(channels)
    if norm == "group":
        return nn.GroupNorm(gcd(8, channels), channels)
    return nn.Identity()
