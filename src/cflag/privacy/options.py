"""The settings of private runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cflag.errors import UserError


@dataclass(frozen=True)
class PrivacyOptions:
    """Whose privacy, how much one of them may contribute, how much noise hides it, and when a run stops."""

    unit: Literal["off", "sample", "client"] = "off"
    """Whose presence is hidden: nobody's, one training sample's (DP-SGD at the client), or one client's (its whole
    answers)."""
    clip: float = 1.0
    """The largest norm of a sample's gradient, or of each part of a client's answer; what is longer is shortened."""
    noise: float = 1.0
    """The noise multiplier z: the standard deviation of the noise over the most that one unit can change a sum."""
    epsilon: float = 0.0
    """The budget: a question that would bring ε above it is not asked any more; 0 means none."""
    delta: float = 1e-5
    """δ: how likely the bound ε may fail."""
    held_out: Literal["public", "noised"] = "public"
    """Whether held-out samples are nobody's secret, so that their right answers are counted as they are, or are
    protected with as much noise as everything else."""
    repeatable_noise: bool = False
    """Draw the noise from the seed. For tests and studies: whoever knows the seed can subtract it, so it protects
    nobody."""

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        for name in ("clip", "noise"):
            if not getattr(self, name) > 0:
                raise UserError(f"{table}.{name} = {getattr(self, name)} must be positive")
            if not 1e-6 <= getattr(self, name) <= 1e6:  # squares of others are no numbers to count with
                raise UserError(f"{table}.{name} = {getattr(self, name)} must lie between 1e-6 and 1e6")
        if self.epsilon < 0:
            raise UserError(f"{table}.epsilon = {self.epsilon} must be a budget, or 0 for none")
        if not 0 < self.delta < 1:
            raise UserError(f"{table}.delta = {self.delta} must lie between 0 and 1")

    @property
    def on(self) -> bool:
        """Whether anything is protected."""
        return self.unit != "off"
