"""Measures that fit clients with clocks of their own: for each client on its own held-out samples, and over all.

A client's value is the mean over its tasks, each counting the same; "over all" is the mean over clients, each counting
the same, without those that have no value: a client without held-out samples of a task has none for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflag.account import Counts
from cflag.data.schedules.base import NEVER, Plan
from cflag.problems.base import Scoring
from cflag.problems.classes import Classes
from cflag.problems.score import ACCURACY

CLASSES = Scoring(Classes(), ACCURACY)
"""How tests are read where nobody says otherwise."""

Table = NDArray[np.float64]
"""A number for each client and task; NaN where there is none."""

EACH = ("accuracy_seen", "accuracy_anyone", "learning_accuracy", "forgetting", "forgetting_max", "backward_transfer",
        "forward_transfer", "net_transfer")  # fmt: skip
"""The measures that each client has."""


@dataclass(frozen=True)
class Outcomes:
    """The tests of a run: after which rounds (from 0) they were, and how well each client's samples were answered."""

    rounds: NDArray[np.int64]
    after: Table
    """(tests, clients, tasks): accuracies; NaN where a client tested nothing."""
    initial: Table
    """(clients, tasks): the same of the initial model."""
    plan: Plan
    """Without the tasks that a client has no samples of."""
    sign: float = 1.0
    """−1 where a lower score is better: differences are then taken the other way round."""

    @classmethod
    def of(
        cls, tests: Sequence[Counts], plan: Plan, has: NDArray[np.bool_], by_task: bool, read: Scoring = CLASSES
    ) -> Outcomes:
        """Read all tests of a run, the one of the initial model first; `has` says who has samples of which task.

        Where counts of single clients are not known, all are taken as one that begins a task with the first client
        and leaves it with the last.
        """
        initial, *after = (read.table(counts, by_task) for counts in tests)
        rounds = np.array(sorted(plan.ends)[: len(after)])
        plan = masked(plan, has)
        if len(initial) != len(plan.first):
            never = np.iinfo(np.int64).max
            first = np.where(plan.first < 0, never, plan.first).min(0, keepdims=True)
            plan = Plan(np.where(first == never, NEVER, first), plan.last.max(0, keepdims=True))
        return cls(rounds, np.stack(after), initial, plan, read.score.sign)

    @cached_property
    def last(self) -> NDArray[np.int64]:
        """Return the place of each client's last test: who is gone tests no more."""
        tested = np.array((~np.isnan(self.after)).any(2))
        return np.where(tested.any(0), len(tested) - 1 - tested[::-1].argmax(0), 0)

    @cached_property
    def end(self) -> Table:
        """The accuracies of each client's last test."""
        chosen: Table = self.after[self.last, np.arange(len(self.last))]
        return chosen

    @cached_property
    def until(self) -> NDArray[np.int64]:
        """The round of each client's last test, as a column."""
        return self.rounds[self.last][:, None]

    @cached_property
    def left(self) -> NDArray[np.bool_]:
        """Which tasks each client has left by its last test."""
        return (self.plan.last >= 0) & (self.plan.last <= self.until)

    @cached_property
    def earlier(self) -> NDArray[np.bool_]:
        """The same without the task that it left last."""
        order = np.where(self.left, self.plan.last, NEVER)
        other: NDArray[np.bool_] = np.arange(order.shape[1]) != order.argmax(1)[:, None]
        return self.left & other

    @cached_property
    def learned(self) -> Table:
        """Each client's accuracy on each task right after the round in which it left it."""
        return self._at(self.plan.last, self.left)

    def _at(self, rounds: NDArray[np.int64], where: NDArray[np.bool_]) -> Table:
        """Return each client's accuracy on each task at the last test that is not after a round."""
        place = np.searchsorted(self.rounds, rounds, side="right") - 1
        there = where & (place >= 0)
        clients, tasks = np.indices(place.shape)
        return np.where(there, self.after[np.where(there, place, 0), clients, tasks], np.nan)


def measure(tested: Outcomes, curve: Sequence[float | None], single: bool = True) -> dict[str, Any]:
    """Return all measures: `all`, and for each client where single clients are known; None where there is no value.

    `curve` has the accuracy so far after each round, None where it was not measured.
    """
    clients = each(tested)
    over_all = {name: mean(values) for name, values in clients.items()}
    known = [value for value in curve if value is not None]
    over_all["worst_tenth"] = worst_tenth(clients["accuracy_seen"], tested.sign) if single else None
    over_all["anytime_accuracy"] = fmean(known) if known else None
    return {"all": over_all, "clients": clients if single else {}}


def each(tested: Outcomes) -> dict[str, list[float | None]]:
    """Return every client's own measures."""
    plan, end = tested.plan, tested.end
    begun = (plan.first >= 0) & (plan.first <= tested.until)
    firsts = np.where(plan.first < 0, np.iinfo(np.int64).max, plan.first).min(0)
    before = tested._at(plan.first - 1, begun)
    forgetting = _over_tasks(tested.sign * (tested.learned - end), tested.earlier)
    forward = _over_tasks(tested.sign * (before - tested.initial), begun)
    found = {
        "accuracy_seen": _over_tasks(end, begun),
        "accuracy_anyone": _over_tasks(end, firsts <= tested.until),
        "learning_accuracy": _over_tasks(tested.learned, tested.left),
        "forgetting": forgetting,
        "forgetting_max": _over_tasks(_best(tested) - tested.sign * end, tested.earlier),
        "backward_transfer": 0.0 - forgetting,
        "forward_transfer": forward,
        "net_transfer": forward - forgetting,
    }
    return {name: [None if np.isnan(v) else float(v) for v in found[name]] for name in EACH}


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values there are."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def worst_tenth(values: Sequence[float | None], sign: float = 1.0) -> float | None:
    """Return the mean of the worst tenth of the values there are, at least of one: the lowest; by sign the highest."""
    known = sorted((value for value in values if value is not None), key=lambda value: sign * value)
    return fmean(known[: ceil(len(known) / 10)]) if known else None


def total_transfer(tested: Outcomes, alone: Table) -> float | None:
    """Total transfer as Powder's authors compute it (Piao et al., ICML 2024, src/benchmark_metrics.py).

    `alone` has the accuracy of each client on each task when it learns that task by itself: it takes runs of their own.
    At every milestone: over the tasks that were just left, the mean accuracy above `alone` (forward); plus, over those
    left before, the mean change since they were (backward; 0 at the first). The mean of that over milestones.
    """
    totals = []
    for place, round_ in enumerate(tested.rounds):
        now = tested.after[place]
        just, before = tested.plan.last == round_, (tested.plan.last >= 0) & (tested.plan.last < round_)
        forward, backward = _mean((now - alone)[just]), _mean((now - tested.learned)[before])
        totals.append(tested.sign * ((forward or 0.0) + (backward or 0.0)))
    return fmean(totals) if totals else None


def masked(plan: Plan, has: NDArray[np.bool_]) -> Plan:
    """Return a plan without the tasks that clients sit out, as they have no samples of them."""
    return Plan(np.where(has, plan.first, NEVER), np.where(has, plan.last, NEVER), plan.gone, plan.breaks)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return a plan for a file: rounds from 1, None for never; `gone` from which each client is gone for good.

    `breaks` are absences within a task: client (from 0), first and last round.
    """
    gone = [plan.total] * len(plan.first) if plan.gone is None else plan.gone.tolist()
    return {
        "first": [[None if r < 0 else r + 1 for r in row] for row in plan.first.tolist()],
        "last": [[None if r < 0 else r + 1 for r in row] for row in plan.last.tolist()],
        "gone": [r + 1 if r < plan.total else None for r in gone],
        "breaks": [[client, begin + 1, end + 1] for client, begin, end in plan.breaks],
    }


def plan_from_dict(raw: Mapping[str, Any]) -> Plan:
    """Take back what `plan_to_dict` returned."""
    first, last = (
        np.array([[NEVER if r is None else r - 1 for r in row] for row in raw[k]]) for k in ("first", "last")
    )
    total = int(last.max()) + 1
    breaks = tuple((client, begin - 1, end - 1) for client, begin, end in raw.get("breaks", ()))
    return Plan(first, last, np.array([total if r is None else r - 1 for r in raw["gone"]]), breaks)


def _best(tested: Outcomes) -> Table:
    """Return the best score, times the sign, that each client had on a task after leaving it, before its last test."""
    place = np.arange(len(tested.rounds))[:, None, None]
    within = (tested.rounds[:, None, None] >= tested.plan.last) & (place < tested.last[:, None])
    best: Table = np.where(within & ~np.isnan(tested.after), tested.sign * tested.after, -np.inf).max(0)
    return best


def _over_tasks(values: Table, which: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return each client's mean over these tasks, as far as it has values; NaN where it has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a client without any has no mean
        found: NDArray[np.float64] = np.nanmean(np.where(which & np.isfinite(values), values, np.nan), axis=1)
    return found


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
