"""Pictures of 8 × 8, and backbones for them that take no time: one that can be cut, and the same in one piece."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from cflag import Source, Split, register
from cflag.backbones.base import Backbone, BackboneOptions

passed: list[int] = []
"""How many pictures went through a tiny backbone's first layer, call by call."""


QUICKLY: dict[str, Any] = {
    "scenario": "class", "tasks": 2, "rounds": 2, "clients": 2, "batch": 16, "method": "replay", "replay": {"lr": 0.2}
}  # fmt: skip
"""A run of seconds on `pictures`."""
PARTS: dict[str, dict[str, Any]] = {
    "features": {"model": "linear", "backbone": "chain"},
    "half features": {"model": "linear", "backbone": "chain", "half_features": True},
    "ncm": {"model": "linear", "backbone": "chain", "method": "ncm"},
    "cut": {"model": "linear", "backbone": "chain", "trainable": ["layer2.*", "head"]},
    "in one piece": {"model": "linear", "backbone": "block", "trainable": ["layer2.*", "head"]},
    "lora": {"model": "linear", "backbone": "chain", "lora": {"rank": 2}},
    "merged lora": {"model": "linear", "backbone": "chain", "lora": {"rank": 2, "merge": True}},
    "merged lora, no backbone": {"model": "mlp", "lora": {"rank": 2, "merge": True}},
    "smaller": {"model": "cnn", "width": 4, "image_size": 6},
    "batch norm": {"model": "cnn", "width": 4, "norm": "batch"},
}
"""What may come between a picture and its answer; each goes with `QUICKLY`."""


def pictures(count: int = 120, classes: int = 4) -> Source:
    """Coloured noise, brighter with the class: learnable, and never learned without errors."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(count) % classes
    x = (torch.randint(0, 130, (count, 3, 8, 8), generator=generator) + 30 * y[:, None, None, None]).to(torch.uint8)
    train, test = Split(x[: count // 2], y[: count // 2]), Split(x[count // 2 :], y[count // 2 :])
    return Source("own", train, test, classes, (0.4,), (0.2,), class_names=("ant", "bee", "cow", "dog"))


class Counted(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        passed.append(x.shape[0])
        return super().forward(x)


def chain(seed: int = 0) -> nn.Sequential:
    """A backbone for pictures of 8 × 8: 4 features of batch norms whose statistics are not those of any batch here."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        stem = nn.Sequential(Counted(3, 5, 3, stride=2), nn.BatchNorm2d(5), nn.ReLU())
        layer1 = nn.Sequential(nn.Conv2d(5, 6, 1), nn.BatchNorm2d(6), nn.ReLU())
        layer2 = nn.Sequential(nn.Conv2d(6, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        network = nn.Sequential(OrderedDict(stem=stem, layer1=layer1, layer2=layer2, pool=pool))
        for norm in (stem[1], layer1[1], layer2[1]):
            assert isinstance(norm, nn.BatchNorm2d)
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.normal_(std=0.1)
            norm.running_var.uniform_(0.5, 1.5)
    return network


class Block(nn.Module):
    """The same network, in a form that cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        for name, layer in chain().named_children():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def register_tiny() -> None:
    """Let them be known as "chain" and "block" until the end of the test."""
    for name, make in (("chain", chain), ("block", Block)):

        def maker(options: BackboneOptions, name: str = name, make: Any = make) -> Backbone:
            return Backbone(name, make(), 8, (0.0,) * 3, (0.5,) * 3)

        register("backbone", name)(maker)
