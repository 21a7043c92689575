"""Backbones for pictures of 8 × 8 that take no time: one that can be cut, and the same in one piece."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from cflag import register
from cflag.backbones.base import Backbone, BackboneOptions

passed: list[int] = []
"""How many pictures went through a tiny backbone's first layer, call by call."""


class Counted(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        passed.append(len(x))
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
