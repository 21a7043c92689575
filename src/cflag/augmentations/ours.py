"""Our augmentations. Each draws one number, or a few, for every sample, so that none depends on the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from cflag.errors import UserError
from cflag.registry import register


@register("augmentation", "crop", "moves pictures by up to `crop` pixels in each direction, black coming in")
def crop(x: Tensor, rng: np.random.Generator, amount: int = 4) -> Tensor:
    """Cut a window of the old size out of each picture with a black margin."""
    count, channels, height, width = _pictures("crop", x)
    down, right = (_each(rng.integers(0, 2 * amount + 1, count), x.device) for _ in range(2))
    rows = (down[:, None] + torch.arange(height, device=x.device))[:, None, :, None]
    columns = (right[:, None] + torch.arange(width, device=x.device))[:, None, None, :]
    samples, layers = (torch.arange(n, device=x.device) for n in (count, channels))
    return F.pad(x, [amount] * 4)[samples[:, None, None, None], layers[None, :, None, None], rows, columns]


@register("augmentation", "flip", "mirrors pictures, left to right, with probability `flip`")
def flip(x: Tensor, rng: np.random.Generator, amount: float = 0.5) -> Tensor:
    """Mirror some of the pictures."""
    count = _pictures("flip", x)[0]
    mirrored = _each(rng.random(count) < amount, x.device)
    return torch.where(mirrored[:, None, None, None], x.flip(3), x)


@register("augmentation", "jitter", "multiplies each channel by a number between 1 - `jitter` and 1 + `jitter`")
def jitter(x: Tensor, rng: np.random.Generator, amount: float = 0.2) -> Tensor:
    """Make channels of pictures brighter or darker, those of signals stronger or weaker."""
    channels = x.shape[1] if x.dim() > 2 else 1
    factors = _each(rng.uniform(1 - amount, 1 + amount, (len(x), channels)), x.device).to(x.dtype)
    return x * factors.view(len(x), channels, *[1] * (x.dim() - 2))


@register("augmentation", "erase", "makes a square of `erase` pixels a side black (cutout)")
def erase(x: Tensor, rng: np.random.Generator, amount: int = 8) -> Tensor:
    """Make a square black whose middle is anywhere in the picture, so that some of it may lie outside."""
    count, _, height, width = _pictures("erase", x)
    top, left = (_each(rng.integers(0, side, count) - amount // 2, x.device) for side in (height, width))
    rows, columns = (torch.arange(side, device=x.device)[None] for side in (height, width))
    down = (rows >= top[:, None]) & (rows < top[:, None] + amount)
    across = (columns >= left[:, None]) & (columns < left[:, None] + amount)
    return x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0.0)


@register("augmentation", "noise", "adds normal noise of standard deviation `noise`")
def noise(x: Tensor, rng: np.random.Generator, amount: float = 0.05) -> Tensor:
    """Add noise to every number."""
    return x + amount * _each(rng.standard_normal(tuple(x.shape), np.float32), x.device).to(x.dtype)


def _pictures(name: str, x: Tensor) -> tuple[int, int, int, int]:
    """Return the shape of pictures; refuse what is none."""
    if x.dim() != 4:
        raise UserError(f"augment.{name} wants pictures; these samples have shape {tuple(x.shape[1:])}")
    count, channels, height, width = x.shape
    return count, channels, height, width


def _each(drawn: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return what was drawn for each sample, beside the samples."""
    return torch.from_numpy(drawn).to(device)
