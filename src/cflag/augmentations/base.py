"""What varies samples while they are learned from, and never when they are stored or tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from cflag import registry
from cflag.errors import UserError, one_line

if TYPE_CHECKING:
    from torch import Tensor

Augmentation = Callable[["Tensor", np.random.Generator], "Tensor"]
"""What is registered: samples (n, ...) in, as many of the same shape out. Images are between 0 and 1."""
AMOUNTS = ("crop", "flip", "jitter", "erase", "noise")
"""The keys that name an augmentation of ours and its amount, in the order in which they act; 0 is off."""
OF_PICTURES = ("crop", "flip", "erase")
USUAL: dict[str, dict[str, Any]] = {
    "cifar10": {"crop": 4, "flip": 0.5},
    "cifar100": {"crop": 4, "flip": 0.5},
    "tiny-imagenet": {"crop": 8, "flip": 0.5},
    "fashion-mnist": {"crop": 2, "flip": 0.5},
    "mnist": {"crop": 2},
    "digits": {"crop": 1},
    "har": {"jitter": 0.1, "noise": 0.05},
}
"""What people commonly do with each source: nobody mirrors digits."""


@dataclass(frozen=True)
class AugmentOptions:
    """How samples are varied while they are learned from; by default not at all. Tests never are."""

    usual: bool = False
    """What is usual for the source, where it is known; the keys below go before it."""
    crop: int = 0
    """Pictures are moved by up to so many pixels, black coming in from outside."""
    flip: float = 0.0
    """The probability that a picture is mirrored, left to right."""
    jitter: float = 0.0
    """Each channel is multiplied by a number between 1 − jitter and 1 + jitter."""
    erase: int = 0
    """A square of so many pixels a side becomes black (cutout)."""
    noise: float = 0.0
    """The standard deviation of normal noise; images are between 0 and 1."""
    own: tuple[str, ...] = ()
    """Registered augmentations of your own, after all others."""

    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "crop": (0, 1024), "flip": (0, 1), "jitter": (0, 1), "erase": (0, 4096), "noise": (0, 1000)
    }  # fmt: skip

    @property
    def on(self) -> bool:
        """Whether anything is varied."""
        return self.usual or bool(self.own) or any(getattr(self, name) for name in AMOUNTS)

    def for_source(self, source: str) -> AugmentOptions:
        """Return the options with what is usual for a source filled in."""
        if not self.usual:
            return self
        if source not in USUAL:
            raise UserError(
                f"augment.usual: nobody knows what is usual for source '{source}'; name what you want, as in "
                "augment.crop = 2"
            )
        found = {name: amount for name, amount in USUAL[source].items() if not getattr(self, name)}
        return replace(self, usual=False, **found)

    @property
    def names(self) -> tuple[str, ...]:
        """What varies samples, in the order in which it acts."""
        return (*(name for name in AMOUNTS if getattr(self, name)), *self.own)


class Augment:
    """Varies samples, one augmentation after the other, with the random numbers that it is given."""

    def __init__(self, options: AugmentOptions) -> None:
        self.steps: list[tuple[str, Augmentation]] = []
        for name in options.names:
            part: Any = registry.get("augmentation", name)
            self.steps.append((name, part if name in options.own else partial(part, amount=getattr(options, name))))

    def __call__(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Return raw samples varied, images between 0 and 1 then."""
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        for name, step in self.steps:
            varied = step(x, rng)
            if not isinstance(varied, torch.Tensor) or varied.shape != x.shape or varied.dtype != x.dtype:
                given = (
                    f"{varied.dtype} {tuple(varied.shape)}" if isinstance(varied, torch.Tensor) else repr(varied)[:40]
                )
                raise UserError(f"augmentation '{name}' returned {given} for {x.dtype} {tuple(x.shape)}: keep both")
            x = varied
        return x

    def try_on(self, x: Tensor) -> None:
        """Refuse samples that the augmentations cannot vary, before anything is learned."""
        try:
            self(x, np.random.default_rng(0))
        except UserError:
            raise
        except Exception as error:  # a function of the user's own
            names = ", ".join(name for name, _ in self.steps)
            raise UserError(f"augmentations {names}: {type(error).__name__}: {one_line(error)}") from error
