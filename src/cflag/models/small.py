"""The small models: an MLP, a CNN for images, a CNN for series."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cflag.errors import UserError
from cflag.models.layers import channels_last, norm_layer
from cflag.models.options import ModelOptions
from cflag.registry import register


@register("model", "linear", "softmax regression: one dense layer")
def linear(shape: tuple[int, ...], outputs: int, options: ModelOptions) -> nn.Module:
    """One dense layer over the flattened sample, from zero: the loss is convex, and the paper's L can be known."""
    layer = nn.Linear(prod(shape), outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


class Cosine(nn.Module):
    """s · cos(x, w_c) for each class c: no class wins by the length of its weights, however much later it came."""

    def __init__(self, inputs: int, outputs: int, scale: float = 16.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(outputs, inputs), a=5**0.5))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled cosines, (n, classes)."""
        return self.scale * F.linear(F.normalize(x), F.normalize(self.weight))


@register("model", "cosine", "scaled cosines between a sample and one vector per class")
def cosine(shape: tuple[int, ...], outputs: int, options: ModelOptions) -> nn.Module:
    """One vector per class, compared by angle alone."""
    return nn.Sequential(nn.Flatten(), Cosine(prod(shape), outputs))


@register("model", "mlp", "two hidden layers (width 64)")
def mlp(shape: tuple[int, ...], outputs: int, options: ModelOptions) -> nn.Module:
    """Two hidden layers over the flattened sample."""
    width = options.width or 64
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


def _halved(size: int) -> int:
    return (size + 1) // 2


@channels_last
@register("model", "cnn", "three 3x3 convolutions and a dense layer (width 32)")
def cnn(shape: tuple[int, ...], outputs: int, options: ModelOptions) -> nn.Module:
    """Three 3x3 convolutions, each followed by a halving of the image, and one dense layer."""
    if len(shape) != 3:
        raise UserError(f"model 'cnn' wants images (channels, height, width), not samples of shape {shape}")
    width = options.width or 32
    layers: list[nn.Module] = []
    channels, height, breadth = shape
    for out in (width, 2 * width, 2 * width):
        layers += [
            nn.Conv2d(channels, out, 3, padding=1),
            norm_layer(options.norm, out),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.ReLU(),  # after the halving: the same values and gradients, on a quarter of them
        ]
        channels, height, breadth = out, _halved(height), _halved(breadth)
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(channels * height * breadth, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, outputs),
    )


@register("model", "cnn1d", "three 1-D convolutions for series (width 32)")
def cnn1d(shape: tuple[int, ...], outputs: int, options: ModelOptions) -> nn.Module:
    """Three convolutions over time, averaged over what is left of it."""
    if len(shape) != 2:
        raise UserError(f"model 'cnn1d' wants series (channels, length), not samples of shape {shape}")
    width = options.width or 32
    layers: list[nn.Module] = []
    channels = shape[0]
    for out in (width, 2 * width, 2 * width):
        layers += [
            nn.Conv1d(channels, out, 5, padding=2),
            norm_layer(options.norm, out, dims=1),
            nn.MaxPool1d(2, ceil_mode=True),
            nn.ReLU(),
        ]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, outputs))
