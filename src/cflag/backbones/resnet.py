"""ResNet-18 and ResNet-50 with weights of your own, under torchvision's names or ours."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

from cflag.backbones.base import Backbone, BackboneOptions, load_weights, missing, own_file
from cflag.models.layers import ModelOptions
from cflag.models.resnet import resnet18, resnet50
from cflag.registry import register

SIZE = 128
STEM = 4
"""Layers before the first block: convolution, norm, ReLU, pooling."""


def _translated(found: Mapping[str, Tensor], depths: tuple[int, ...]) -> dict[str, Tensor]:
    """Return weights in torchvision's names (layer2.0.conv1, ...) under ours, which count all blocks."""
    before = [STEM + sum(depths[:stage]) for stage in range(len(depths))]
    renamed = {}
    for key, value in found.items():
        block = re.fullmatch(r"layer(\d)\.(\d+)\.(conv|bn|downsample\.)(\d)\.(\w+)", key)
        if block is None:
            outer = {"conv1": "0", "bn1": "1"}
            layer, _, what = key.partition(".")
            renamed[f"{outer.get(layer, layer)}.{what}"] = value
            continue
        place = before[int(block[1]) - 1] + int(block[2])
        if block[3] == "downsample.":
            renamed[f"{place}.shortcut.{block[4]}.{block[5]}"] = value
        else:
            inner = 3 * (int(block[4]) - 1) + (block[3] == "bn")
            renamed[f"{place}.layers.{inner}.{block[5]}"] = value
    return renamed


def _make(network: nn.Module, depths: tuple[int, ...], options: BackboneOptions) -> Backbone:
    path = own_file(options)
    if path is None:
        raise missing(options)
    assert isinstance(network, nn.Sequential)
    module = network[:-1]  # without the classifier
    load_weights(module, path, translate=lambda found: _translated(found, depths))
    return Backbone(options.name, module, options.size or SIZE)


@register("backbone", "resnet18", "512 features; weights: your own file, in torchvision's names")
def backbone18(options: BackboneOptions) -> Backbone:
    """ResNet-18 without its classifier."""
    return _make(resnet18((3, 224, 224), 1, ModelOptions(norm="batch", stem="7x7")), (2, 2, 2, 2), options)


@register("backbone", "resnet50", "2048 features; weights: your own file, in torchvision's names")
def backbone50(options: BackboneOptions) -> Backbone:
    """ResNet-50 without its classifier."""
    return _make(resnet50((3, 224, 224), 1, ModelOptions(norm="batch", stem="7x7")), (3, 4, 6, 3), options)
