"""ResNet-18 and ResNet-50 with weights of your own, under torchvision's names or ours."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn

from cflag.backbones.base import Backbone, BackboneOptions, load_weights, missing, own_file
from cflag.models.options import ModelOptions
from cflag.models.resnet import resnet18, resnet50
from cflag.registry import register

SIZE = 128
STEM = 4
"""Layers before the first block: convolution, norm, ReLU, pooling."""


def _named(network: nn.Sequential, depths: tuple[int, ...]) -> nn.Sequential:
    """Return a ResNet without its classifier, its layers under torchvision's names for the stages."""
    parts, first = OrderedDict(stem=network[:STEM]), STEM
    for stage, depth in enumerate(depths):
        parts[f"layer{stage + 1}"] = nn.Sequential(*list(network)[first : first + depth])
        first += depth
    parts["pool"] = network[first:-1]
    return nn.Sequential(parts)


def _translated(found: Mapping[str, Tensor], depths: tuple[int, ...]) -> dict[str, Tensor]:
    """Return weights in torchvision's names (layer2.0.conv1, ...), or in those of our model, under the backbone's."""
    blocks = [f"layer{stage + 1}.{k}" for stage, depth in enumerate(depths) for k in range(depth)]
    outer = {"conv1": "stem.0", "bn1": "stem.1", "0": "stem.0", "1": "stem.1"}
    outer |= {str(STEM + k): block for k, block in enumerate(blocks)}
    renamed = {}
    for key, value in found.items():
        block = re.fullmatch(r"(layer\d\.\d+)\.(conv|bn|downsample\.)(\d)\.(\w+)", key)
        if block is None:
            layer, _, what = key.partition(".")
            renamed[f"{outer.get(layer, layer)}.{what}"] = value
        elif block[2] == "downsample.":
            renamed[f"{block[1]}.shortcut.{block[3]}.{block[4]}"] = value
        else:
            inner = 3 * (int(block[3]) - 1) + (block[2] == "bn")
            renamed[f"{block[1]}.layers.{inner}.{block[4]}"] = value
    return renamed


def _make(network: nn.Module, depths: tuple[int, ...], options: BackboneOptions) -> Backbone:
    path = own_file(options)
    if path is None:
        raise missing(options)
    assert isinstance(network, nn.Sequential)
    module = _named(network, depths)
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
