"""What all models share: their options, and the normalisation layer chosen by name."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from torch import Tensor, nn
from torch.nn import functional as F

from cflag.models.options import ModelOptions


def norm_layer(norm: str, channels: int, dims: int = 2) -> nn.Module:
    """Return the normalisation of `channels` feature maps; groups are 8 where that divides, else fewer."""
    if norm == "batch":
        return nn.BatchNorm2d(channels) if dims == 2 else nn.BatchNorm1d(channels)
    if norm == "group":
        return nn.GroupNorm(gcd(8, channels), channels)
    return nn.Identity()


ModelMaker = Callable[[tuple[int, ...], int, ModelOptions], nn.Module]
"""What is registered as a model: from a sample's shape and the number of outputs to a network."""


def channels_last(maker: ModelMaker) -> ModelMaker:
    """Mark a model whose convolutions are faster with channels last, by a third for our CNN.

    ResNets on small images are slower with it; and a strided 1x1 convolution of fewer than 16 channels then corrupts
    memory (uxlfoundation/oneDNN#6035).
    """
    setattr(maker, "channels_last", True)  # noqa: B010 (a function has no such attribute, says mypy)
    return maker


class TrimmedConv2d(nn.Conv2d):
    """A convolution that leaves out the taps which see nothing but padding.

    On maps of 1x1, where a ResNet's last stage is for small images, only the middle one of nine taps sees anything; on
    maps of 2x2 with stride 2, four do. The others cost as much and have a gradient of zero.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Convolve as nn.Conv2d does."""
        if self.kernel_size == (3, 3) and self.padding == (1, 1):
            if x.shape[2:] == (1, 1):
                return F.conv2d(x, self.weight[:, :, 1:2, 1:2], self.bias, self.stride)
            if x.shape[2:] == (2, 2) == self.stride:
                return F.conv2d(x, self.weight[:, :, 1:, 1:], self.bias, self.stride)
        y: Tensor = super().forward(x)
        return y
