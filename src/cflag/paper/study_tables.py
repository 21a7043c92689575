"""The tables of our own studies: which rates were chosen, what each part buys, what leads at equal cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from cflag.paper.cells import Campaign
from cflag.paper.present import NONE, markdown_table, shown
from cflag.paper.summary import CellResult, Summary
from cflag.paper.variants import VARIANTS, label
from cflag.results.intervals import interval

STUDIES = ("rates", "parts", "cost", "rows")
"""Kinds of campaigns that have tables of their own."""
LOST = "lost"
"""Stands for runs that could not be finished."""
OVER = 1.1
"""A row that spent so many budgets is marked: its smallest run, one round per task, is too dear."""


@dataclass(frozen=True)
class StudyTable:
    """One table of a study."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown."""
        note = f"\n{self.note}\n" if self.note else ""
        return f"\n**{self.title}**\n\n{markdown_table(self.heads, self.rows)}{note}"


def study_tables(campaign: Campaign, summary: Summary) -> list[StudyTable]:
    """Return a study's tables."""
    if campaign.kind == "rates":
        return _rates(summary)
    groups = dict.fromkeys((e.group, e.at) for e in summary.entries if e.accuracy)
    return [_compared(campaign, summary, group, at) for group, at in groups]


def difference(entry: CellResult, base: CellResult) -> tuple[float, float | None] | None:
    """Return how much more accurate a row is than another, over their common seeds, with its 95 % interval."""
    mine, theirs = (dict(zip(e.seeds, e.accuracies, strict=True)) for e in (entry, base))
    common = sorted(mine.keys() & theirs.keys())
    return interval([mine[seed] - theirs[seed] for seed in common]) if common else None


def row_of(entries: Sequence[CellResult], method: str) -> CellResult | None:
    """Return a row that was run."""
    return next((e for e in entries if e.method == method and e.accuracy), None)


# --- rates -----------------------------------------------------------------------------------------------


def chosen_rates(summary: Summary) -> dict[tuple[str, str], float]:
    """Return the rate with the best mean accuracy over ζ, by benchmark ("cifar10-task") and row.

    A rate at which a run was lost is not chosen; a row of which a run is still to be made has no choice yet. A ζ at
    which a row was never tried has no say.
    """
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    tried = {(e.group, e.method) for e in summary.entries if e.accuracies or e.lost}
    for e in summary.entries:
        if (e.group, e.method) not in tried:
            continue
        values = [*e.accuracies, *(-inf for _ in e.lost)]
        found.setdefault((_benchmark(e), e.method), {}).setdefault(e.at or 0.0, []).append(
            fmean(values) if values else inf
        )
    complete = {key: rates for key, rates in found.items() if not any(inf in values for values in rates.values())}
    return {key: max(rates, key=lambda rate: fmean(rates[rate])) for key, rates in complete.items()}


def _benchmark(entry: CellResult) -> str:
    return entry.group.rpartition("-")[0]


def _rates(summary: Summary) -> list[StudyTable]:
    """One table per benchmark: a row per method, a column per ζ and rate, the chosen rate in bold."""
    chosen = chosen_rates(summary)
    return [
        _rates_of([e for e in summary.entries if _benchmark(e) == name], name, chosen)
        for name in dict.fromkeys(key[0] for key in chosen)
    ]


def _rates_of(entries: Sequence[CellResult], name: str, chosen: Mapping[tuple[str, str], float]) -> StudyTable:
    columns = dict.fromkeys((e.group, e.at) for e in entries)
    found = {(e.method, e.group, e.at): e for e in entries}
    rows = []
    for method in dict.fromkeys(e.method for e in entries if (name, e.method) in chosen):
        cells = [_level(found.get((method, *column))) for column in columns]
        best = [f"**{cell}**" if at == chosen[name, method] and cell != NONE else cell
                for cell, (_, at) in zip(cells, columns, strict=True)]  # fmt: skip
        rows.append([label(method), *best])
    heads = ["", *(f"{group.rpartition('-')[2]}, {at:g}" for group, at in columns)]
    return StudyTable(name, heads, rows)


def _level(entry: CellResult | None) -> str:
    return LOST if entry and entry.lost else shown(entry.accuracy if entry else None)


# --- parts and costs -------------------------------------------------------------------------------------


def _compared(campaign: Campaign, summary: Summary, group: str, at: float | None) -> StudyTable:
    """Return the table of one benchmark and budget: every row, and how far it is from a base, with its interval."""
    entries = [e for e in summary.entries if (e.group, e.at) == (group, at) and e.accuracy]
    base = row_of(entries, campaign.base)
    paying = [e for e in entries if not VARIANTS[e.method].rounds]
    over = [e.method for e in paying if _spent(campaign, e) > OVER * _spent(campaign, base)] if base else []
    rows = [
        [label(e.method) + (" †" if e.method in over else ""), shown(e.accuracy), _points(e, base),
         shown(e.forgetting), f"{e.rounds or 0:g}", f"{e.gradients or 0:,.0f}", f"{e.megabytes or 0:,.0f}",
         str(len(e.seeds)) + (f", {len(e.lost)} {LOST}" if e.lost else "")]
        for e in sorted(entries, key=lambda e: -(e.accuracy or (0.0,))[0])
    ]  # fmt: skip
    to = f"to {label(base.method)}" if base else "difference"
    heads = ["", "Acc", to, "Forget", "rounds per task", "k gradients", "MB", "seeds"]
    budget = "" if at is None else f", the budget of {at:g} rounds of replay per task"
    note = f"† more than the budget: its {campaign.axis} cannot be cut so finely." if over else ""
    return StudyTable(f"{group}{budget}", heads, rows, note)


def _spent(campaign: Campaign, entry: CellResult | None) -> float:
    """Return how much of what a cost study keeps equal a row spent."""
    if entry is None:
        return 0.0
    spent = {"gradients": entry.gradients, "bytes": entry.megabytes, "rounds": entry.rounds}
    return spent.get(campaign.axis) or 0.0


def _points(entry: CellResult, base: CellResult | None) -> str:
    found = difference(entry, base) if base and entry is not base else None
    if found is None:
        return NONE
    mean, half = found
    return f"{mean:+.1f}" if half is None else f"{mean:+.1f} ± {half:.1f}"
