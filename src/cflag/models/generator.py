"""A generator: a small network that turns noise into raw samples of a given shape."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

NOISE = 64
"""How many numbers of noise a sample is made of."""


class Generator(nn.Module):
    """Images grow from a quarter of their size by convolutions, other samples come from two dense layers.

    `unit` keeps the values in [0, 1], which is what image bytes are after division by 255.
    """

    def __init__(self, shape: tuple[int, ...], unit: bool) -> None:
        super().__init__()
        self.shape = shape
        self.layers = _image(*shape) if len(shape) == 3 else _dense(prod(shape))
        self.last = nn.Sigmoid() if unit else nn.Identity()

    def forward(self, noise: Tensor) -> Tensor:
        """Turn noise (n, NOISE) into samples (n, *shape)."""
        made: Tensor = self.last(self.layers(noise))
        return made.reshape(-1, *self.shape)


class Crop(nn.Module):
    """Cut maps down to height × width: doubling twice may overshoot by up to three pixels."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        """Keep the upper left part."""
        return x[:, :, : self.height, : self.width]


def _image(channels: int, height: int, width: int) -> nn.Sequential:
    low, breadth = -(-height // 4), -(-width // 4)
    return nn.Sequential(
        nn.Linear(NOISE, 64 * low * breadth),
        nn.Unflatten(1, (64, low, breadth)),
        nn.BatchNorm2d(64),
        *_doubled(64, 32),
        *_doubled(32, 16),
        Crop(height, width),
        nn.Conv2d(16, channels, 3, padding=1),
    )


def _doubled(inputs: int, outputs: int) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return [nn.Upsample(scale_factor=2), conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]


def _dense(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(NOISE, 256), nn.LeakyReLU(0.2), nn.Linear(256, outputs))
