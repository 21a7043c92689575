"""Who goes to which worker: the heaviest first, each to the one that has the least to do.

A client's weight is what it spent in the last round it took part in, in gradient evaluations: numbers that are the same
on every machine, unlike times. One that was never asked is taken to cost what the others do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cflag.conversation import Cost


class Deal:
    """Deals clients to lanes."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._last: dict[int, int] = {}
        """What each client spent in its last round."""
        self._total = 0
        self._now: dict[int, int] = {}

    def spent(self, number: int, cost: Cost) -> None:
        """Note what a client spent on a question."""
        self._now[number] = self._now.get(number, 0) + cost.current + cost.memory

    def settle(self) -> None:
        """A round is over."""
        self._total += sum(cost - self._last.get(number, 0) for number, cost in self._now.items())
        self._last |= self._now
        self._now = {}

    def lanes(self, bundles: Sequence[Sequence[int]]) -> Mapping[int, int]:
        """Return the lane of each client; those of a bundle go together. Where all cost the same, in turn."""
        usual = self._total / len(self._last) if self._last else 1.0
        costs = [sum(self._last.get(number, usual) for number in bundle) for bundle in bundles]
        loads, lane_of = [0.0] * self._lanes, dict[int, int]()
        for k in sorted(range(len(bundles)), key=costs.__getitem__, reverse=True):
            lane = loads.index(min(loads))
            lane_of |= dict.fromkeys(bundles[k], lane)
            loads[lane] += costs[k]
        return lane_of
