"""One pass over a stream: a sample is seen in one round only (as in Online-FCL, Serra & Buettner, 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cflag.data.options import ScheduleOptions
from cflag.data.schedules.together import Together
from cflag.errors import UserError
from cflag.registry import register


@dataclass(frozen=True)
class OnlineOptions(ScheduleOptions):
    """How many samples a round needs at least: who has few has fewer rounds, and is absent in a task's others."""

    least: int = 10

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        if self.least < 1:
            raise UserError(f"{table}.least = {self.least} must be at least 1")


@register("schedule", "online", "one pass over a stream: each sample is seen in one round only")
class Online(Together):
    """A client's samples of a task come in as many portions as there are rounds, or in fewer, as they lie."""

    Settings: ClassVar[type[ScheduleOptions]] = OnlineOptions
    one_pass = True
    settings: OnlineOptions

    @property
    def streams(self) -> bool:
        """A task's samples are never there all at once; who has few is absent when the others still learn."""
        return True

    def portion(self, size: int, number: int) -> range:
        """The portions differ by one sample at most."""
        count = max(1, min(self.frame.rounds, size // self.settings.least))
        return range(size * number // count, size * (number + 1) // count) if number < count else range(0)
