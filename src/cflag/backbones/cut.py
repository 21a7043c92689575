"""Where a backbone is cut: below its first trained layer pictures go once, ever; what is above is part of the model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor, nn

from cflag.backbones.base import Backbone, Pictures
from cflag.data.source import Source
from cflag.errors import UserError
from cflag.models.lora import add_adapters
from cflag.models.options import LoraOptions
from cflag.models.trainable import HEAD, PICTURES, Joined, choose, keep_statistics, of_head

BODY = "backbone"
"""What a network that cannot be cut is called in a model."""


def only_head(trainable: Sequence[str], lora: LoraOptions) -> bool:
    """Whether all of a backbone stays as it is."""
    return not lora.rank and all(of_head(pattern) for pattern in trainable)


def divide(
    backbone: Backbone, trainable: Sequence[str], lora: LoraOptions, head: nn.Module | None = None
) -> tuple[nn.Module | None, nn.Module]:
    """Choose what trains, put adapters in, and cut the backbone: what is frozen below, None where nothing is; the rest.

    Who only wants what is below needs no head; patterns for it are then left aside.
    """
    if any(of_head(name) for name, _ in backbone.module.named_parameters()):
        raise UserError(f"backbone '{backbone.name}' has a '{HEAD}' of its own: nothing but trainable = 'head' works")
    choose({"": backbone.module}, [pattern for pattern in trainable if not of_head(pattern)])
    if head is not None:
        choose({"": backbone.module, HEAD: head}, trainable)
    if lora.rank:
        add_adapters(backbone.module, lora)
    below, above = _cut(backbone.module)
    keep_statistics(above)
    return below, above


def _cut(network: nn.Module) -> tuple[nn.Sequential | None, nn.Module]:
    """Cut a chain of layers, and the chains in it, below the first layer in which something trains."""
    if not _is_chain(network):
        return None, network
    layers = list(network.named_children())
    first = next(k for k, (_, layer) in enumerate(layers) if _trains(layer))
    name, layer = layers[first]
    below, above = _cut(layer)
    lower = layers[:first] if below is None else [*layers[:first], (name, below)]
    upper = nn.Sequential(OrderedDict([(name, above), *layers[first + 1 :]]))
    return nn.Sequential(OrderedDict(lower)) if lower else None, upper


def _is_chain(network: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether a network does nothing but call its layers one after the other, each of them once."""
    plain = isinstance(network, nn.Sequential) and type(network).forward is nn.Sequential.forward
    hooked = network._forward_hooks or network._forward_pre_hooks
    return plain and not hooked and len(set(network.children())) == len(network._modules)


def _trains(network: nn.Module) -> bool:
    return any(p.requires_grad for p in network.parameters())


def width(backbone: Backbone) -> int:
    """Return how many features a backbone has."""
    shape = (1, 3, backbone.size, backbone.size)
    try:
        with torch.inference_mode():
            found = backbone.module.eval()(torch.zeros(shape))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"backbone '{backbone.name}' does not take pictures of {shape[1:]}: {reason}") from None
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != 1:
        given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"backbone '{backbone.name}' gives {given} for 1 picture; features are (n, d)")
    return found.shape[1]


def join(backbone: Backbone, below: nn.Module | None, above: nn.Module, head: nn.Module) -> Joined:
    """Return the model: pictures prepared, where nothing is below it, the upper part of the backbone, and the head."""
    layers: list[tuple[str, nn.Module]] = [] if below is not None else [(PICTURES, Pictures(backbone))]
    layers += above.named_children() if _is_chain(above) else [(BODY, above)]
    layers.append((HEAD, head))
    names = [name for name, _ in layers]
    for name in (PICTURES, HEAD):
        if names.count(name) > 1:
            raise UserError(f"backbone '{backbone.name}' has a part named '{name}', which the model needs: rename it")
    return Joined(OrderedDict(layers))


@dataclass(frozen=True)
class AsTheyAre:
    """Leaves pictures as they are: samples of a model that begins with the backbone and scales them itself."""

    backbone: Backbone
    origin: str

    def source(self, pictures: Source) -> Source:
        """Return the source as it is, to be scaled by nobody else."""
        self.backbone.check_pictures(pictures)
        return replace(pictures, mean=(0.0,), std=(1.0,), origin=self.origin)

    def encode(self, x: Tensor) -> Tensor:
        """Return the pictures."""
        return x

    once = encode

    def layers(self) -> nn.Module:
        """Return a module that leaves pictures as they are."""
        return nn.Identity()
