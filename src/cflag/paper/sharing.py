"""Cells that several campaigns have in common: what one of them ran is there for the others, too.

In one folder of runs that goes by itself, as equal runs have equal names (`Cell.names`). A ledger outlives its
folders, so here the summaries are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cflag.paper.campaigns import CAMPAIGNS
from cflag.paper.cells import Campaign, Cell
from cflag.paper.scales import SEEDS
from cflag.paper.summary import CellResult, Summary, blank, settings_of

Key = tuple[str, str, float | None]
"""A row's place in a campaign: its group, its name, its value in a sweep."""
SHOWN = {"tasks": "after_tasks", "gamma": "gamma"}
"""What a kind of campaign shows beside Acc and Forget: not every summary has it."""


def completed(summaries: Sequence[Summary]) -> list[Summary]:
    """Return the summaries of one scale, each in its own order and with the rows that it lacks and another one has.

    A row that has the usual seeds stays as it is, though another campaign may have more of them: rows of a table are
    compared with each other. What is shared is found anew each time: whoever asks gives `Summary.own`.
    """
    known: dict[str, list[tuple[str, CellResult]]] = {}
    for summary in summaries:
        entries = {_key(e): e for e in summary.entries if e.accuracies and e.rounds and e.rounds.is_integer()}
        for cell in CAMPAIGNS[summary.campaign].cells:
            keys = {v.name: (cell.group, v.name, cell.at) for v in cell.variants(summary.scale)}
            mine = {row: entries[key] for row, key in keys.items() if key in entries}
            for row, name in cell.names(summary.scale, {row: int(e.rounds or 0) for row, e in mine.items()}).items():
                known.setdefault(name, []).append((summary.campaign, mine[row]))
    return [_completed(summary, known) for summary in summaries]


def _completed(summary: Summary, known: Mapping[str, Sequence[tuple[str, CellResult]]]) -> Summary:
    campaign, entries = CAMPAIGNS[summary.campaign], {_key(e): e for e in summary.entries}
    places: dict[Key, int] = {}
    for cell in campaign.cells:
        asked = _asked(campaign, cell, summary.scale, entries)
        names = cell.names(summary.scale, {row: round(e.rounds or 0) for row, e in asked.items()})
        for variant in cell.variants(summary.scale):
            key = (cell.group, variant.name, cell.at)
            places[key] = len(places)
            own = set(entries[key].seeds) if key in entries else set()
            if variant.name not in asked or own >= set(campaign.seeds(SEEDS)):
                continue
            here = asked[variant.name]
            found = [f for f in known.get(names[variant.name], ())
                     if own < set(f[1].seeds) and _fits(f[1], here, campaign.kind)]  # fmt: skip
            if found:
                whose, entry = max(found, key=lambda f: len(f[1].seeds))
                entries[key] = _taken(here, entry, whose, campaign.kind)
    last = len(places)  # what the campaign no longer has
    return replace(summary, entries=sorted(entries.values(), key=lambda e: places.get(_key(e), last)))


def _asked(campaign: Campaign, cell: Cell, scale: str, entries: Mapping[Key, CellResult]) -> dict[str, CellResult]:
    """Return a cell's rows as they are to be run; what another budget than rounds buys is known of rows once asked."""
    if cell.budget == "rounds":
        configs = cell.configs(scale, Path())
        return {
            v.name: replace(blank(campaign, cell, v), rounds=float(configs[v.name].rounds),
                            settings=settings_of(configs[v.name]))
            for v in cell.variants(scale)
        }  # fmt: skip
    mine = {v.name: entries.get((cell.group, v.name, cell.at)) for v in cell.variants(scale)}
    return {row: e.as_asked() for row, e in mine.items() if e is not None and e.rounds}


def _fits(entry: CellResult, asked: CellResult, kind: str) -> bool:
    shown = kind not in SHOWN or bool(getattr(entry, SHOWN[kind]))
    return shown and not entry.differs_from(asked)


def _taken(here: CellResult, entry: CellResult, campaign: str, kind: str) -> CellResult:
    """Return another campaign's numbers in the place of an empty row, beside what the paper prints there."""
    unseen: dict[str, Any] = {} if kind in SHOWN else dict.fromkeys(("after_tasks", "gamma", "gamma_variation"))
    return replace(
        entry,
        group=here.group,
        at=here.at,
        paper_accuracy=here.paper_accuracy,
        paper_forgetting=here.paper_forgetting,
        slip=here.slip,
        shared=campaign,
        settings=here.settings,
        **unseen,
    )


def _key(entry: CellResult) -> Key:
    return entry.group, entry.method, entry.at
