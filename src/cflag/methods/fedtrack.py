"""FedTrack: gradient tracking with incrementally aggregated gradients (Mitra et al., 2021), without a memory.

It is C-FLAG's round with m = 0 and fixed rates, and that is how it is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cflag.learning.rates import CFlagSettings
from cflag.methods.base import LocalOptions, require_positive
from cflag.methods.cflag import CFlag
from cflag.methods.space import Rate, SearchSpace
from cflag.registry import register


@dataclass(frozen=True)
class FedTrackSettings:
    """The rate β of the local steps, and how components are visited."""

    beta: float = 0.05
    order: Literal["cyclic", "shuffled", "random"] = "shuffled"

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        require_positive(table, self, "beta")


@register("method", "fedtrack")
class FedTrack(CFlag):
    """The delayed-gradient round without memory."""

    Settings = FedTrackSettings
    uses_memory = False
    search_space: ClassVar[SearchSpace] = {"beta": Rate()}

    @classmethod
    def space(cls, settings: Any) -> SearchSpace:
        """Its rate, whatever C-FLAG has."""
        return cls.search_space

    def __init__(self, settings: FedTrackSettings, local: LocalOptions) -> None:
        super().__init__(CFlagSettings(beta=settings.beta, order=settings.order, adapt="off"), local)
