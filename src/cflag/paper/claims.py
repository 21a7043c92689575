"""What the paper says about its tables and figures, each judged by a campaign's own numbers.

A difference counts when its 95 % confidence interval (Student's t) excludes 0; otherwise the claim stays open. It is
taken seed by seed where both sides have the same seeds, because one seed means the same tasks, clients and initial
model; elsewhere Welch's degrees of freedom are used. Claims about C-FLAG are judged on the variant that was run, which
the evidence names; the ledger says at which scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot, sqrt
from statistics import fmean
from typing import Literal

from cflag.paper.campaigns import find_campaign
from cflag.paper.summary import CellResult, Spread, Summary
from cflag.paper.variants import CFLAG_VARIANTS, PAPERS_OWN, label, main_cflag
from cflag.results.intervals import critical, standard_error, welch

Verdict = Literal["yes", "open", "no"]
CONSISTENT = 3.0
"""How many points accuracy may lose and still be called consistent."""


@dataclass(frozen=True)
class Judgement:
    """What our runs say about one part of a claim."""

    part: str
    verdict: Verdict
    evidence: str


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, in our words, and how to judge it."""

    campaign: str
    says: str
    judge: Callable[[Summary], list[Judgement]]


# --- differences and their errors ------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A mean and its standard error, which a single seed does not give; shown with its 95 % confidence interval."""

    mean: float
    error: float | None
    freedom: float = 0.0
    """The degrees of freedom of the error, where there is one."""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """The values behind it, where they are known."""

    def minus(self, other: Measured) -> Measured:
        """Return the difference, taken seed by seed where both have the same seeds."""
        common = self.by_seed.keys() & other.by_seed.keys()
        if common:
            return over_seeds({seed: self.by_seed[seed] - other.by_seed[seed] for seed in common})
        if self.error is None or other.error is None:
            return Measured(self.mean - other.mean, None)
        freedom = welch(self.error, self.freedom, other.error, other.freedom)
        return Measured(self.mean - other.mean, hypot(self.error, other.error), freedom)

    def __neg__(self) -> Measured:
        return replace(self, mean=-self.mean, by_seed={seed: -value for seed, value in self.by_seed.items()})

    @property
    def half_width(self) -> float | None:
        """Half of its 95 % confidence interval."""
        return None if self.error is None else critical(self.freedom) * self.error

    def above_zero(self) -> Verdict:
        """Return "yes" if it is clearly positive, "no" if clearly negative, else "open"."""
        if self.half_width is None or abs(self.mean) <= self.half_width:
            return "open"
        return "yes" if self.mean > 0 else "no"

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" if self.half_width is None else f"{self.mean:+.1f} ± {self.half_width:.1f}"


def over_seeds(values: Mapping[int, float]) -> Measured:
    """Return the mean over seeds, with its error."""
    return Measured(fmean(values.values()), standard_error(values.values()), len(values) - 1, values)


def from_spread(spread: Spread, seeds: int) -> Measured:
    """Return a mean of which only the deviation over a number of seeds is known."""
    mean, deviation = spread
    return Measured(mean, None if deviation is None or seeds < 2 else deviation / sqrt(seeds), seeds - 1)


def overall(judgements: Sequence[Judgement]) -> Verdict | None:
    """A claim holds if all its parts do, and fails if one does; None if nothing was run."""
    verdicts = {judgement.verdict for judgement in judgements}
    if not verdicts:
        return None
    return "no" if "no" in verdicts else "open" if "open" in verdicts else "yes"


# --- judges ----------------------------------------------------------------------------------------------


def _groups(summary: Summary) -> dict[str, list[CellResult]]:
    groups: dict[str, list[CellResult]] = {}
    for entry in summary.entries:
        groups.setdefault(entry.group, []).append(entry)
    return groups


def _accuracy(entry: CellResult) -> Measured:
    if entry.accuracies:
        return over_seeds(dict(zip(entry.seeds, entry.accuracies, strict=True)))
    return from_spread(entry.accuracy or (0.0, None), len(entry.seeds))


def _kept(entry: CellResult) -> Measured:
    """Return minus the forgetting, so that larger is better."""
    if entry.forgettings:
        return over_seeds({seed: -value for seed, value in zip(entry.seeds, entry.forgettings, strict=True)})
    mean, deviation = entry.forgetting or (0.0, None)
    return from_spread((-mean, deviation), len(entry.seeds))


def _cflag(entries: Sequence[CellResult]) -> list[CellResult]:
    """Return the results of the variant of C-FLAG that claims are judged on."""
    name = main_cflag([e.method for e in entries if e.accuracy])
    return [e for e in entries if e.method == name]


def _against_best(
    entries: Sequence[CellResult], hero: str, by: Callable[[CellResult], Measured], part: str
) -> list[Judgement]:
    """Compare one method with the best of the others; variants of C-FLAG are no rivals of each other."""
    there = [e for e in entries if e.accuracy]
    mine = _cflag(there) if hero == PAPERS_OWN else [e for e in there if e.method == hero]
    family = {v.name for v in CFLAG_VARIANTS} if hero == PAPERS_OWN else {hero}
    others = [e for e in there if e.method not in family]
    if not mine or not others:
        return []
    rival = max(others, key=lambda e: by(e).mean)
    lead = by(mine[0]).minus(by(rival))
    evidence = f"{label(mine[0].method)} {lead} points to the best other, {label(rival.method)}"
    return [Judgement(part, lead.above_zero(), evidence)]


def _leads(
    by: Callable[[CellResult], Measured], hero: str = PAPERS_OWN, only: str = ""
) -> Callable[[Summary], list[Judgement]]:
    def judge(summary: Summary) -> list[Judgement]:
        return [
            judgement
            for group, entries in _groups(summary).items()
            if not only or group == only
            for judgement in _against_best(entries, hero, by, group)
        ]

    return judge


def _leads_after_each_task(summary: Summary) -> list[Judgement]:
    judgements = []
    for group, entries in _groups(summary).items():
        stages = max(len((e.after_tasks or [[]])[0]) for e in entries)
        parts = [j for k in range(1, stages) for j in _against_best(entries, PAPERS_OWN, _after(k), group)]
        ahead = sum(j.verdict == "yes" for j in parts)
        behind = sum(j.verdict == "no" for j in parts)
        verdict = overall(parts)
        if verdict:
            name = label(_cflag(entries)[0].method)
            evidence = f"of {len(parts)} stages {name} is clearly ahead in {ahead}, clearly behind in {behind}"
            judgements.append(Judgement(group, verdict, evidence))
    return judgements


def _after(stage: int) -> Callable[[CellResult], Measured]:
    return lambda e: over_seeds({seed: row[stage] for seed, row in zip(e.seeds, e.after_tasks or [], strict=True)})


def _leads_at_every_zeta(summary: Summary) -> list[Judgement]:
    return [
        judgement
        for group, entries in _groups(summary).items()
        for zeta in sorted({e.at for e in entries if e.at is not None})
        for judgement in _against_best(
            [e for e in entries if e.at == zeta], PAPERS_OWN, _accuracy, f"{group}, ζ = {zeta:g}"
        )
    ]


def _gamma_varies_more_iid(summary: Summary) -> list[Judgement]:
    ends = _ends(summary, "cifar10", lambda e: bool(e.gamma_variation))
    if ends is None:
        return []
    least, most = ends
    spreads = [over_seeds(dict(zip(e.seeds, e.gamma_variation or [], strict=True))) for e in (most, least)]
    verdict = spreads[0].minus(spreads[1]).above_zero()
    told = [f"{spread.mean:.3f} at ζ = {e.at:g}" for spread, e in zip(spreads, (most, least), strict=True)]
    return [Judgement(most.group, verdict, f"{label(most.method)}, standard deviation over rounds {', '.join(told)}")]


def _ends(
    summary: Summary, group: str, known: Callable[[CellResult], bool] = lambda e: bool(e.accuracy)
) -> tuple[CellResult, CellResult] | None:
    """Return C-FLAG at both ends of the campaign's sweep, of its first variant that was run at both: half has none."""
    swept = [cell.at for cell in find_campaign(summary.campaign).cells if cell.group == group and cell.at is not None]
    for variant in CFLAG_VARIANTS:
        there = {e.at: e for e in summary.entries if (e.group, e.method) == (group, variant.name) and known(e)}
        if swept and min(swept) in there and max(swept) in there:
            return there[min(swept)], there[max(swept)]
    return None


def _change(summary: Summary, group: str, by: Callable[[CellResult], Measured]) -> tuple[Measured, str] | None:
    """Return how C-FLAG's number changes from one end of a sweep to the other, and between which values."""
    ends = _ends(summary, group)
    if ends is None:
        return None
    first, last = ends
    return by(last).minus(by(first)), f"from {first.at:g} to {last.at:g}, {label(first.method)}"


def _along(
    by: Callable[[CellResult], Measured], verdict: Callable[[str, Measured], Verdict]
) -> Callable[[Summary], list[Judgement]]:
    """Judge how a number changes from one end of each group's sweep to the other."""

    def judge(summary: Summary) -> list[Judgement]:
        return [
            Judgement(group, verdict(group, change[0]), f"{change[0]} points {change[1]}")
            for group in _groups(summary)
            if (change := _change(summary, group, by))
        ]

    return judge


def _rises(group: str, change: Measured) -> Verdict:
    return change.above_zero()


def _falls_on_cifar10(group: str, change: Measured) -> Verdict:
    """It falls on CIFAR10 and rises elsewhere."""
    return (-change if group.startswith("cifar10-") else change).above_zero()


def _consistent(group: str, change: Measured) -> Verdict:
    """It loses less than so many points, as surely as any other difference is judged."""
    return replace(change, mean=change.mean + CONSISTENT).above_zero()


def _more_sensitive(summary: Summary) -> list[Judgement]:
    """CIFAR100's accuracy changes more along the sweep than CIFAR10's."""
    judgements = []
    for setting in ("iid", "noniid"):
        small, large = (_change(summary, f"{name}-{setting}", _accuracy) for name in ("cifar10", "cifar100"))
        if small and large:
            evidence = f"CIFAR100 {large[0]}, CIFAR10 {small[0]} points {small[1]}"
            judgements.append(Judgement(setting, large[0].minus(small[0]).above_zero(), evidence))
    return judgements


CLAIMS = (
    Claim("table-iid", "With IID clients C-FLAG is the most accurate.", _leads(_accuracy)),
    Claim("table-iid", "With IID clients C-FLAG forgets least.", _leads(_kept)),
    Claim(
        "table-noniid",
        "With non-IID clients C-FLAG is the most accurate. (Its own table has Erg-FL ahead on CIFAR10.)",
        _leads(_accuracy),
    ),
    Claim(
        "table-noniid",
        "With non-IID clients C-FLAG forgets very little. (Judged: least. Its own table has EWC-FL below it on CIFAR10 "
        "and NCCL-FL on TinyImageNet.)",
        _leads(_kept),
    ),
    Claim("figure-tasks", "C-FLAG has the highest average accuracy after each task.", _leads_after_each_task),
    Claim(
        "table-class-noniid",
        "Class-incremental, CIFAR10, non-IID: C-FLAG leads.",
        _leads(_accuracy, only="cifar10"),
    ),
    Claim(
        "table-class-noniid",
        "Class-incremental, CIFAR100, non-IID: TARGET leads.",
        _leads(_accuracy, "target", "cifar100"),
    ),
    Claim("table-class-iid", "Class-incremental, CIFAR10, IID: iCaRL-FL leads.", _leads(_accuracy, "icarl", "cifar10")),
    Claim("table-class-iid", "Class-incremental, CIFAR100, IID: LwF-FL leads.", _leads(_accuracy, "lwf", "cifar100")),
    Claim("figure-heterogeneity", "C-FLAG is ahead of EWC-FL and FedTrack at every ζ.", _leads_at_every_zeta),
    Claim("figure-gamma", "Γ(t) varies more with IID clients than with non-IID ones.", _gamma_varies_more_iid),
    Claim(
        "figure-clients",
        f"Accuracy stays consistent from 5 to 15 clients. (Judged: loses at most {CONSISTENT:g} points.)",
        _along(_accuracy, _consistent),
    ),
    Claim(
        "table-clients",
        f"Up to 50 clients accuracy does not deteriorate. (Judged: by at most {CONSISTENT:g} points.)",
        _along(_accuracy, _consistent),
    ),
    Claim("table-clients", "With more clients less is forgotten.", _along(_kept, _rises)),
    Claim(
        "figure-memory-sample",
        "With a larger memory sample accuracy falls on CIFAR10 and rises on CIFAR100.",
        _along(_accuracy, _falls_on_cifar10),
    ),
    Claim("figure-memory-size", "A larger memory gives more accuracy.", _along(_accuracy, _rises)),
    Claim("figure-memory-size", "CIFAR100 is more sensitive to the memory's size than CIFAR10.", _more_sensitive),
)
