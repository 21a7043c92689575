"""The building blocks of a check: two sides, a tolerance for rounding, and assumptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite, nan

from torch import Tensor

from cflag.theory.round import Round, Trajectory


@dataclass(frozen=True)
class Check:
    """One instance of left ≤ right; `scale` is the size of the terms behind it, which sets the rounding tolerance."""

    left: float
    right: float
    scale: float = 0.0

    @property
    def slack(self) -> float:
        """How much room is left."""
        return self.right - self.left

    @property
    def holds(self) -> bool:
        """Whether the inequality is true up to rounding."""
        return self.slack >= -(1e-9 * max(abs(self.left), abs(self.right)) + 1e-12 * self.scale)

    @property
    def ratio(self) -> float:
        """left / right; not a number where the right side is not positive."""
        return self.left / self.right if self.right > 0 else nan


Checks = Iterator[Check | None]
"""One for each instance; None where the assumptions are not met."""


def identity(gap: Tensor, *parts: Tensor) -> Check:
    """Check that two expressions of one vector agree: their gap is only rounding."""
    return Check(float(gap.norm()), 0.0, sum(float(part.norm()) for part in parts) * 100)


def least_room(left: Tensor, right: Tensor, scale: float) -> Check:
    """Return the tightest of many inequalities, relative to its right side."""
    room = (right - left) / right.clamp(min=1e-300)
    k = int(room.argmin())
    return Check(float(left.flatten()[k]), float(right.flatten()[k]), scale)


def rounding(t: Round) -> float:
    """Return the size of the terms that gradients are sums of, however small the sums are."""
    return t.at.smoothness * (1 + float(t.x.norm()))


def prefix(
    seen: Trajectory, of: Callable[[Round], float], how: Callable[[float, float], float] = lambda a, b: a + b
) -> list[float]:
    """Return the running sum (or minimum, or maximum) of a quantity over the rounds."""
    return list(accumulate((of(t) for t in seen), how))


# Assumptions ----------------------------------------------------------------------------------------------------------


def always(t: Round) -> bool:
    """Nothing is assumed."""
    return True


def plain_rates(t: Round) -> bool:
    """All clients use the plain rates."""
    return t.at.adapt == "off"


def steady_rates(seen: Trajectory) -> bool:
    """All clients use the plain rates, the same in every round."""
    return plain_rates(seen[0]) and len({(t.at.alpha, t.at.beta, t.at.smoothness) for t in seen}) == 1


def beta_below(t: Round, factor: float) -> bool:
    """β ≤ 1 / (factor L E)."""
    return t.at.beta * factor * t.at.smoothness * t.at.steps <= 1 + 1e-12


def drift_holds(t: Round) -> bool:
    """β is small enough for the bound on the drift."""
    return beta_below(t, 4)


def error_holds(t: Round) -> bool:
    """β is small enough for the bound on the gradient error."""
    return beta_below(t, 12)


def growth_holds(t: Round) -> bool:
    """Γ can be bounded by ‖∇g‖²."""
    return plain_rates(t) and error_holds(t) and isfinite(t.r_ratio)


def lemma1_holds(t: Round) -> bool:
    """α < 2/(L(1+m)), with the m of this round."""
    return plain_rates(t) and t.at.alpha * t.at.smoothness * (1 + t.m_ratio) < 2


def by_clients(t: Round) -> bool:
    """Clients choose their own rates."""
    return t.at.adapt in ("average", "worst")
