"""Drift detection: a client notices by its own loss that its samples changed (detectors from river, `cflag[streams]`).

The detector sees the global model's loss on each sample before the sample is learned. A detector is no tensor and
cannot be saved, but after each change it finds it starts anew; so a client keeps the losses since then, at most
`detector_window` of them, and every round feeds them to a fresh detector first. What it says then depends on numbers
that are in the client's state alone, and a restart changes nothing. Up to that many losses it says what river would;
but KSWIN, which looks at its last 100 alone and takes a millisecond for each, gets those, and draws from them anew.
A loss that falls is a change, too, and what learning is for: only one that rises counts as drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from cflag.data.options import ScheduleOptions
from cflag.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

KSWIN_LOOKS_AT = 100
RECENT = 30
"""How many losses are compared with those before to tell whether they rose: as many as KSWIN looks at."""


class Watch:
    """Looks on while a client tests what it is about to learn."""

    def __init__(self, options: ScheduleOptions) -> None:
        self.options = options

    @classmethod
    def of(cls, options: ScheduleOptions) -> Watch | None:
        """Return what watches for drift, where clients are to notice it."""
        return cls(options) if options.boundaries == "detected" else None

    def look(self, kept: Tensor | None, losses: Tensor) -> tuple[Tensor, int | None]:
        """Take in a round's losses after those kept; return what to keep, and at which loss a drift was first seen."""
        window: list[float] = [] if kept is None else kept.tolist()
        detector, noticed = self._detector(), None
        for loss in window:
            detector.update(loss)
        for place, loss in enumerate(losses.tolist()):
            detector.update(loss)
            window.append(loss)
            if detector.drift_detected:
                if noticed is None and _rose(window):
                    noticed = place
                detector, window = self._detector(), []
        most = KSWIN_LOOKS_AT if self.options.detector == "kswin" else self.options.detector_window
        return torch.tensor(window[-most:], dtype=losses.dtype), noticed

    def _detector(self) -> Any:
        try:
            from river import drift  # takes seconds, so only where it is needed
        except ImportError:
            raise UserError(
                "schedule.boundaries = 'detected' needs river on every client: pip install 'cflag[streams]'"
            ) from None
        kinds: dict[str, tuple[Any, str, dict[str, Any]]] = {
            "adwin": (drift.ADWIN, "delta", {}),
            "kswin": (drift.KSWIN, "alpha", {"seed": 0, "window_size": KSWIN_LOOKS_AT}),
            "page-hinkley": (drift.PageHinkley, "threshold", {"mode": "up"}),
        }
        kind, key, more = kinds[self.options.detector]
        given = self.options.detector_threshold
        return kind(**more, **({key: given} if given else {}))


def _rose(window: Sequence[float]) -> bool:
    """Whether the last losses are higher than those before."""
    before = window[:-RECENT]
    return not before or fmean(window[-RECENT:]) > fmean(before)
