"""What a config says of a model, apart from the networks: reading a config needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cflag.errors import UserError


@dataclass(frozen=True)
class ModelOptions:
    """What a user may choose about a built-in model; width 0 means the model's usual one."""

    width: int = 0
    norm: Literal["group", "batch", "none"] = "group"
    stem: Literal["3x3", "7x7"] = "3x3"


@dataclass(frozen=True)
class LoraOptions:
    """Adapters: their rank (0 is none), their scale α / rank, the layers that get one, and what is saved at the end."""

    rank: int = 0
    alpha: float = 0.0
    """0 is the rank: a scale of one."""
    layers: tuple[str, ...] = ("*",)
    """Patterns of names; those of the dense layers and 1×1 convolutions that do not train themselves get adapters."""
    merge: bool = False
    """Add adapters to their layers in the saved model, which then has the plain network's names."""

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        for key in ("rank", "alpha"):
            if getattr(self, key) < 0:
                raise UserError(f"{table}.{key} = {getattr(self, key)} must not be negative")
        if not self.layers:
            raise UserError(f"{table}.layers = [] names no layer; leave it out for all that fit")
        for key, default in (("alpha", 0.0), ("layers", ("*",)), ("merge", False)):
            if not self.rank and getattr(self, key) != default:
                raise UserError(f"{table}.{key} is set, but there are no adapters: set {table}.rank, too")

    @property
    def scale(self) -> float:
        """What the product of the two matrices is multiplied by."""
        return (self.alpha or self.rank) / self.rank
