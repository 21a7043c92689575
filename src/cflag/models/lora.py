"""Low-rank adapters (Hu et al., 2022): beside a frozen dense layer or 1×1 convolution, two thin matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cflag.errors import UserError
from cflag.models.options import LoraOptions
from cflag.models.trainable import suggestion


class Lora(nn.Module):
    """y = layer(x) + scale · B A x. B begins at zero, so that the network begins as it was."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, options: LoraOptions) -> None:
        super().__init__()
        self.layer = layer
        self.scale = options.scale
        outputs, inputs = layer.weight.shape[:2]
        self.lora_A = nn.Parameter(layer.weight.new_empty(options.rank, inputs))
        self.lora_B = nn.Parameter(layer.weight.new_empty(outputs, options.rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin anew: as a dense layer does, and at zero."""
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)
        nn.init.zeros_(self.lora_B)

    def forward(self, x: Tensor) -> Tensor:
        """Add the two ways."""
        y: Tensor = self.layer(x)
        if isinstance(self.layer, nn.Linear):
            return y + self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)
        down, across = self.layer.stride
        # Pixels are left out by hand: a strided 1x1 convolution of few channels may corrupt memory (models/layers.py).
        inner = F.conv2d(x[:, :, ::down, ::across], self.lora_A[:, :, None, None])
        return y + self.scale * F.conv2d(inner, self.lora_B[:, :, None, None])

    @property
    def weight(self) -> Tensor:
        """The layer's weight with the adapter in it; also for networks that read it instead of calling the layer."""
        return self.layer.weight + self.scale * (self.lora_B @ self.lora_A).view_as(self.layer.weight)

    @property
    def bias(self) -> Tensor | None:
        """The layer's own bias."""
        return self.layer.bias


def add_adapters(network: nn.Module, options: LoraOptions) -> None:
    """Put adapters beside the frozen layers of a network that the options name."""
    places = [(parent, name, path) for parent, name, path in _places(network) if _is_frozen(parent, name)]
    names = [path for _, _, path in places]
    for pattern in options.layers:
        if not any(fnmatchcase(path, pattern) for path in names):
            there = suggestion(pattern, names) if names else "there is none"
            raise UserError(f"lora.layers: '{pattern}' names no frozen dense layer or 1x1 convolution; {there}")
    made: dict[nn.Module, Lora] = {}  # a layer that stands in two places has one adapter
    for parent, name, path in places:
        if not any(fnmatchcase(path, pattern) for pattern in options.layers):
            continue
        layer = getattr(parent, name)
        if layer not in made:
            made[layer] = Lora(_roomy(layer, path, options.rank), options)
        setattr(parent, name, made[layer])


def _places(network: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield the places in a network where an adapter fits: a parent, a name in it, and the whole name."""
    for above, parent in list(network.named_modules()):
        for name, module in parent._modules.items():
            if _fits(module):
                yield parent, name, f"{above}.{name}" if above else name


def _fits(module: nn.Module | None) -> TypeGuard[nn.Linear | nn.Conv2d]:
    if isinstance(module, nn.Conv2d):
        plain = module.padding in ("same", "valid") or module.padding == (0, 0)
        return module.kernel_size == (1, 1) and module.groups == 1 and plain
    return isinstance(module, nn.Linear)


def _is_frozen(parent: nn.Module, name: str) -> bool:
    return not getattr(parent, name).weight.requires_grad


def _roomy(layer: nn.Linear | nn.Conv2d, path: str, rank: int) -> nn.Linear | nn.Conv2d:
    """Return a layer that is at least as wide as the rank."""
    widest = min(layer.weight.shape[:2])
    if rank > widest:
        raise UserError(
            f"lora.rank = {rank} is more than the {widest} that '{path}' can have; "
            "lower it, or name wider layers in lora.layers"
        )
    return layer


def split_again(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what `merged` returned under the names of a model with adapters, which add nothing any more."""
    names = dict(state)
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Lora):
            before = f"{path}." if path else ""
            for name, value in module.state_dict().items():
                inner = name.removeprefix("layer.")
                adapter = inner == name
                names[f"{before}{name}"] = torch.zeros_like(value) if adapter else names.pop(f"{before}{inner}")
    return names


def merged(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's state with its adapters added to their layers, under the names of the plain network."""
    state: dict[str, Tensor] = dict(model.state_dict())
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Lora):
            before = f"{path}." if path else ""
            for name in list(module.state_dict()):
                value = state.pop(f"{before}{name}")
                if name.startswith("layer."):
                    state[f"{before}{name.removeprefix('layer.')}"] = value
            state[f"{before}weight"] = module.weight.detach()
    return state
