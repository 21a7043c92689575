"""Images at another size than their source has them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cflag.data.source import Source
from cflag.errors import UserError

MOST_BYTES = 16 * 10**9
"""What images may take in memory when they are resized: a hundred times CIFAR10."""


def at_size(source: Source, size: int) -> Source:
    """Shrink images to size × size by averaging, where the options ask for it."""
    if not size:
        return source
    if len(source.shape) != 3:
        raise UserError(f"image_size wants images; {source.name} has samples of shape {source.shape}")

    count = len(source.train) + len(source.test)
    room = count * source.shape[0] * size * size * source.train.x.element_size()
    if room > MOST_BYTES:
        raise UserError(
            f"image_size = {size}: {count:,} images of that size take {room / 1e9:,.0f} GB, more than "
            f"{MOST_BYTES / 1e9:,.0f}; make it smaller, or use fewer samples_per_class"
        )
    train, test = (replace(split, x=resized(split.x, size)) for split in (source.train, source.test))
    return replace(source, train=train, test=test)


def resized(x: Tensor, size: int) -> Tensor:
    """Return images of size × size pixels, by averaging."""
    layer = Resize(size)
    return torch.cat([layer(piece) for piece in x.split(1000)])


class Resize(nn.Module):
    """Averages images to size × size pixels, as the first layer of a model."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Return the images in the type they have."""
        found = F.interpolate(x.float(), size=(self.size, self.size), mode="area")
        return (found if x.is_floating_point() else found.round()).to(x.dtype)
