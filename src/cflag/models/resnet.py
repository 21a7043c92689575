"""ResNet-18 and ResNet-50 (He et al., 2016) with a stem for small images, a norm and a width to choose."""

from __future__ import annotations

from torch import Tensor, nn

from cflag.errors import UserError
from cflag.models.layers import TrimmedConv2d, norm_layer
from cflag.models.options import ModelOptions
from cflag.registry import register


class Residual(nn.Module):
    """A block's layers beside a shortcut: relu(layers(x) + shortcut(x))."""

    def __init__(self, layers: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.shortcut = shortcut
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Add the two ways."""
        y: Tensor = self.relu(self.layers(x) + self.shortcut(x))
        return y


def _conv(inputs: int, outputs: int, kernel: int, norm: str, stride: int = 1) -> list[nn.Module]:
    conv = TrimmedConv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=norm == "none")
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return [conv, norm_layer(norm, outputs)]


def _basic(inputs: int, planes: int, stride: int, norm: str) -> nn.Sequential:
    return nn.Sequential(*_conv(inputs, planes, 3, norm, stride), nn.ReLU(), *_conv(planes, planes, 3, norm))


def _bottleneck(inputs: int, planes: int, stride: int, norm: str) -> nn.Sequential:
    return nn.Sequential(
        *_conv(inputs, planes, 1, norm),
        nn.ReLU(),
        *_conv(planes, planes, 3, norm, stride),
        nn.ReLU(),
        *_conv(planes, 4 * planes, 1, norm),
    )


def _stem(channels: int, width: int, options: ModelOptions) -> list[nn.Module]:
    if options.stem == "3x3":
        return [*_conv(channels, width, 3, options.norm), nn.ReLU()]
    return [
        *_conv(channels, width, 7, options.norm, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]


def _resnet(
    shape: tuple[int, ...], outputs: int, options: ModelOptions, depths: tuple[int, ...], expansion: int
) -> nn.Module:
    if len(shape) != 3:
        raise UserError(f"a ResNet wants images (channels, height, width), not samples of shape {shape}")
    width = options.width or 64
    block = _basic if expansion == 1 else _bottleneck
    layers = _stem(shape[0], width, options)
    inputs = width
    for stage, depth in enumerate(depths):
        planes = width * 2**stage
        for position in range(depth):
            stride = 2 if stage and not position else 1
            wanted = planes * expansion
            same = stride == 1 and inputs == wanted
            shortcut = nn.Identity() if same else nn.Sequential(*_conv(inputs, wanted, 1, options.norm, stride))
            layers.append(Residual(block(inputs, planes, stride, options.norm), shortcut))
            inputs = wanted
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, outputs))


@register("model", "resnet18", "ResNet-18, 3x3 or 7x7 stem (width 64)")
def resnet18(shape: tuple[int, ...], outputs: int, options: ModelOptions) -> nn.Module:
    """ResNet-18: two basic blocks in each of four stages."""
    return _resnet(shape, outputs, options, (2, 2, 2, 2), expansion=1)


@register("model", "resnet50", "ResNet-50, 3x3 or 7x7 stem (width 64)")
def resnet50(shape: tuple[int, ...], outputs: int, options: ModelOptions) -> nn.Module:
    """ResNet-50: 3, 4, 6 and 3 bottleneck blocks."""
    return _resnet(shape, outputs, options, (3, 4, 6, 3), expansion=4)
