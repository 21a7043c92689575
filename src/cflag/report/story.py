"""What happened, in a few sentences: who leads, by how much and how sure that is, who forgets least, at what cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import hypot
from statistics import fmean

from cflag.problems.score import Score, common
from cflag.results.intervals import critical, interval, standard_error, welch
from cflag.results.result import Result

Groups = dict[str, list[Result]]
"""The runs of each method, in the order in which methods appear."""
Quantity = Callable[[Result], float]


@dataclass(frozen=True)
class Lead:
    """How far a method's mean is above another's."""

    other: str
    by: float
    within: float | None
    """Half the width of the 95 % interval of that; None where there is none, as with one seed."""

    @property
    def sure(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.within is not None and self.by > self.within


def lead(one: Sequence[Result], other: Sequence[Result], of: Quantity) -> Lead:
    """Compare two methods: seed by seed where they have the same seeds, which make the same data and order of tasks."""
    left, right = ({r.seed: of(r) for r in runs} for runs in (one, other))
    name = other[0].method
    if left.keys() == right.keys() and len(left) == len(one) == len(other):
        return Lead(name, *interval([left[seed] - right[seed] for seed in left]))
    values, others = [of(r) for r in one], [of(r) for r in other]
    by = fmean(values) - fmean(others)
    error, other_error = standard_error(values), standard_error(others)
    if error is None or other_error is None:
        return Lead(name, by, None)
    freedom = welch(error, len(values) - 1, other_error, len(others) - 1)
    return Lead(name, by, critical(freedom) * hypot(error, other_error))


def ranked(groups: Groups, of: Quantity) -> list[str]:
    """Return the methods, the one with the highest mean first."""
    return sorted(groups, key=lambda method: -fmean(of(r) for r in groups[method]))


def leads(groups: Groups, of: Quantity) -> list[Lead]:
    """Return how far the best method is above each other, the next one first."""
    best, *others = ranked(groups, of)
    return [lead(groups[best], groups[method], of) for method in others]


def _score_of(result: Result) -> float:
    return result.score.sign * result.average_score


def gradients(result: Result) -> float:
    """How many gradients a run evaluated, those of the memory among them."""
    return result.costs["gradients_current"] + result.costs["gradients_memory"]


def traffic(result: Result) -> float:
    """How many bytes a run sent, both ways."""
    return result.costs["bytes_up"] + result.costs["bytes_down"]


def leader(groups: Groups) -> str:
    """Return the method with the best mean score."""
    return ranked(groups, _score_of)[0]


def short(value: float) -> str:
    """Return a large number in three digits: 23.4 k, 1.2 M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{float(f'{value / size:.3g}'):g} {letter}"
    return f"{value:.3g}"


def story(groups: Groups) -> str:
    """Say what happened in runs of one benchmark."""
    score = common([r.score for runs in groups.values() for r in runs])
    said = [_who_leads(groups, score)]
    if next(iter(groups.values()))[0].config["tasks"] > 1:
        said.append(_who_forgets(groups, score))
    return " ".join([*said, _what_it_costs(groups)])


def stories(benchmarks: Iterable[Groups]) -> str:
    """Say who leads how often in several benchmarks, and how often that is sure."""
    first: Counter[str] = Counter()
    sure: Counter[str] = Counter()
    for groups in benchmarks:
        first[leader(groups)] += 1
        sure[leader(groups)] += all(each.sure for each in leads(groups, _score_of)) and len(groups) > 1
    who = [f"{method} has the best mean score in {count} (beyond the spread over seeds in {sure[method]})"
           for method, count in first.most_common()]  # fmt: skip
    return f"Of {first.total()} benchmarks, {_list(who)}."


def _who_leads(groups: Groups, score: Score) -> str:
    best = leader(groups)
    seeds = len(groups[best])
    mean, within = interval([r.average_score for r in groups[best]])
    if len(groups) == 1:
        sure = f" ± {score.shown(within)} (95 % interval, {seeds} seeds)" if within is not None else " (one seed)"
        return f"{best} ends with {score.text} {score.said(mean)}{sure}."
    found = leads(groups, _score_of)
    first = found[0]
    if first.by == 0:
        return f"{best} and {first.other} have the same {score.text}, {score.said(mean)}."
    by = f"{_points(score, first.by)} {'above' if score.higher else 'below'} {first.other}"
    if first.within is None:
        return f"{best} has the best {score.text}, {score.said(mean)}, {by}; one seed does not say how sure that is."
    by += f" (95 % interval {_range(score, first)}, {seeds} seeds)"
    unsure = [each.other for each in found if not each.sure]
    if not unsure:
        return f"{best} leads with {score.text} {score.said(mean)}, {by}."
    whom = f"from {_list(unsure)} it cannot be told apart: " if len(found) > 1 else ""
    return (
        f"{best} has the best {score.text} on average, {score.said(mean)}, {by}; "
        f"{whom}the difference is within the spread over seeds."
    )


def _who_forgets(groups: Groups, score: Score) -> str:
    def kept(result: Result) -> float:
        return -result.forgetting

    least = ranked(groups, kept)[0]
    much = _points(score, fmean(r.forgetting for r in groups[least]))
    if len(groups) == 1:
        return f"It forgets {much}."
    first = leads(groups, kept)[0]
    other = _points(score, fmean(r.forgetting for r in groups[first.other]))
    if first.by == 0:
        return f"{least} and {first.other} forget the same, {much}."
    if much.startswith("-"):
        much += " (it gained on earlier tasks)"
    doubt = "" if first.sure or first.within is None else ", which is within the spread"
    return f"{least} forgets least: {much}, then {first.other} with {other}{doubt}."


def _what_it_costs(groups: Groups) -> str:
    def spent(method: str) -> str:
        sums = (fmean(of(r) for r in groups[method]) for of in (gradients, traffic))
        return "{} gradients and {}B".format(*map(short, sums))

    best, cheapest = leader(groups), ranked(groups, lambda r: -gradients(r))[0]
    if len(groups) == 1:
        return f"A run costs {spent(best)} of traffic."
    if best == cheapest:
        return f"{best} costs {spent(best)} of traffic, and no other takes fewer gradients."
    return f"{best} costs {spent(best)} of traffic; {cheapest} takes the fewest gradients: {spent(cheapest)}."


def _points(score: Score, value: float) -> str:
    """Return a difference of scores: of percentages it is in points."""
    unit = "points" if score.unit == "%" else score.unit
    return f"{score.shown(value)} {unit}".strip()


def _range(score: Score, found: Lead) -> str:
    assert found.within is not None
    low, high = (score.shown(found.by + side * found.within) for side in (-1, 1))
    return f"{low} to {high}".replace("-", "−")


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
