"""Local optimizers as transformations of a direction, in the manner of optax: direction in, update out.

They start fresh every round: a client keeps nothing between rounds but its memory, and clients that are asked
rarely do not return with stale moments. Where a method shares moments (C-FLAG-Shared, C-FLAG-Balanced), the server
keeps them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.conversation import Mean


class Optimizer(Protocol):
    """Turns the direction of a step into the step itself (before the learning rate)."""

    def __call__(self, direction: Tensor) -> Tensor:
        """Return the update for the next direction."""
        ...


class SGD:
    """The direction as it is."""

    def __call__(self, direction: Tensor) -> Tensor:
        """Return the direction."""
        return direction


class Momentum:
    """Heavy ball: u ← 0.9 u + direction."""

    def __init__(self, decay: float = 0.9) -> None:
        self.decay = decay
        self.velocity: Tensor | None = None

    def __call__(self, direction: Tensor) -> Tensor:
        """Return the velocity after one more step."""
        past = torch.zeros_like(direction) if self.velocity is None else self.velocity
        self.velocity = self.decay * past + direction
        return self.velocity


class Adam:
    """Adam (Kingma & Ba, 2015) with bias correction and its usual constants; given moments, it goes on from them."""

    def __init__(
        self, decay1: float = 0.9, decay2: float = 0.999, eps: float = 1e-8, *,
        first: Tensor | None = None, second: Tensor | None = None, steps: int = 0,
    ) -> None:  # fmt: skip
        self.decay1, self.decay2, self.eps = decay1, decay2, eps
        self.steps = steps
        self.first = None if first is None else first.clone()
        self.second = None if second is None else second.clone()

    def __call__(self, direction: Tensor) -> Tensor:
        """Return the bias-corrected, rescaled direction."""
        if self.first is None or self.second is None:
            self.first, self.second = torch.zeros_like(direction), torch.zeros_like(direction)
        self.steps += 1
        self.first.lerp_(direction, 1 - self.decay1)
        self.second.mul_(self.decay2).addcmul_(direction, direction, value=1 - self.decay2)
        first = self.first / (1 - self.decay1**self.steps)
        second = self.second / (1 - self.decay2**self.steps)
        return first / (second.sqrt() + self.eps)

    def moments(self) -> dict[str, Tensor]:
        """Return both moments, for someone who goes on from them."""
        return {name: value for name in ("first", "second") if (value := getattr(self, name)) is not None}


def averaged_moments(mean: Mean, taken: int) -> dict[str, Any]:
    """Return the mean of clients' moments as the server keeps and sends them, after so many steps in all."""
    second = mean.second.clamp(min=0)  # as every mean of squares is, unless someone lies
    return {"first": mean.first, "second": second, "taken": taken}


def make_optimizer(name: str) -> Optimizer:
    """Return a fresh optimizer by its name."""
    makers: dict[str, type[Optimizer]] = {"sgd": SGD, "momentum": Momentum, "adam": Adam}
    return makers[name]()
