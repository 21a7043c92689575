"""What a backbone is, and how its weights are found and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cflag.data.source import Source
from cflag.errors import UserError

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's channels: what most networks are trained with."""


@dataclass(frozen=True)
class BackboneOptions:
    """What a user may choose about a backbone."""

    name: str
    """As the config has it; what comes after a colon is the maker's own affair."""
    size: int = 0
    """How large pictures are shown to it; 0 is its usual size."""
    folder: Path = Path("backbones")
    """Where weights are looked for, in files named like backbones: each machine has its own."""

    @property
    def stem(self) -> str:
        """How its file of weights is called, without an ending."""
        return self.name.replace(":", "-").replace("/", "-")


@dataclass(frozen=True)
class Backbone:
    """A frozen network from pictures, (n, 3, size, size) in [0, 1] less `mean` over `std`, to features, (n, d)."""

    name: str
    module: nn.Module
    size: int
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]

    def digest(self) -> str:
        """Return a hash of all that decides its features: weights, code, size and scaling."""
        summed = hashlib.sha256(f"{self.module} {self.size} {self.mean} {self.std}".encode())
        for key, value in self.module.state_dict().items():
            summed.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
            summed.update(value.detach().cpu().contiguous().numpy().tobytes())
        return summed.hexdigest()

    def prepared(self, x: Tensor) -> Tensor:
        """Return pictures as the network wants them: three channels, its size, its scaling."""
        x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        size = (self.size, self.size)
        if tuple(x.shape[2:]) != size:
            x = F.interpolate(x, size, mode="bilinear", antialias=True)
        mean, std = (torch.tensor(v, device=x.device).view(1, -1, 1, 1) for v in (self.mean, self.std))
        return (x.expand(-1, 3, -1, -1) - mean) / std

    def check_pictures(self, source: Source) -> None:
        """Refuse samples that are no pictures."""
        if len(source.shape) != 3 or source.shape[0] not in (1, 3):
            raise UserError(f"backbone '{self.name}' wants pictures; {source.name} has {source.shape}")
        for split in (source.train, source.test):
            low, high = (0, 1) if split.x.dtype == torch.uint8 else split.x.aminmax()
            if low < 0 or high > 1:
                raise UserError(
                    f"backbone '{self.name}' wants pictures of bytes (uint8), or of numbers from 0 to 1; "
                    f"{source.name} has {split.x.dtype} from {low:g} to {high:g}"
                )


class Pictures(nn.Module):
    """Prepares pictures for a backbone, as the first layer of a model."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.prepared = replace(backbone, module=nn.Identity()).prepared  # not a second copy of the network

    def forward(self, x: Tensor) -> Tensor:
        """Return pictures as the backbone wants them."""
        return self.prepared(x)


SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
BackboneMaker = Callable[[BackboneOptions], Backbone]
"""What is registered as a backbone."""
Translate = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


def own_file(options: BackboneOptions) -> Path | None:
    """Return the user's own file with a backbone's weights, where there is one."""
    files = [options.folder / f"{options.stem}{suffix}" for suffix in SUFFIXES]
    return next((file for file in files if file.is_file()), None)


def missing(options: BackboneOptions, how: str = "") -> UserError:
    """Return the error of a backbone whose weights are nowhere."""
    place = options.folder / f"{options.stem}{SUFFIXES[0]}"
    return UserError(
        f"backbone '{options.name}': its weights are not here; {how}put them at {place} (or .pth, .pt, .bin)"
    )


def load_weights(module: nn.Module, path: Path, sha256: str = "", translate: Translate = dict) -> None:
    """Fill a module with the weights in a file; `sha256` says which file that must be."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{path} is damaged, or another file: its SHA-256 is not {sha256[:8]}…; get it again")
    module.load_state_dict(_fitting(module, translate(_read(path)), path))


def _read(path: Path) -> Mapping[str, Tensor]:
    """Read safetensors, or what torch.save wrote, as tensors alone: nothing in a file is executed."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever is in the file, it is not weights
        raise UserError(f"{path} holds no weights that can be read safely ({type(error).__name__})") from None
    found = found.get("state_dict", found) if isinstance(found, Mapping) else found
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{path} holds no weights: a state_dict is a mapping from names to tensors")
    return found


def _fitting(module: nn.Module, found: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the weights that the module wants; those of a classifier on top of it may be left over."""
    wanted = {key: value for key, value in module.state_dict().items() if not key.endswith("num_batches_tracked")}
    for key, value in wanted.items():
        if key not in found:
            raise UserError(f"{path} holds the weights of another network: '{key}' is not among them")
        if found[key].shape != value.shape:
            shapes = f"{tuple(found[key].shape)} instead of {tuple(value.shape)}"
            raise UserError(f"{path} holds the weights of another network: '{key}' is {shapes}")
        if not bool(found[key].isfinite().all()):
            raise UserError(f"{path} is damaged: '{key}' is not finite")
    return {**module.state_dict(), **{key: found[key] for key in wanted}}


def packaged(package: str, pattern: str) -> Path | None:
    """Return the file with weights that another package brings along, where it is installed."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations or [] if spec else []
    return next((file for folder in folders for file in Path(folder).glob(pattern)), None)
