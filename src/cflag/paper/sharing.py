"""Cells that several campaigns have in common: what one of them ran is there for the others, too.

In one folder of runs that goes by itself, as equal runs have equal names (`Cell.names`). A ledger outlives its
folders, so here the summaries are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cflag.paper.campaigns import CAMPAIGNS
from cflag.paper.cells import Cell
from cflag.paper.summary import CellResult, Summary, blank

Key = tuple[str, str, float | None]
"""A row's place in a campaign: its group, its name, its value in a sweep."""
SHOWN = {"tasks": "after_tasks", "gamma": "gamma"}
"""What a kind of campaign shows beside Acc and Forget: not every summary has it."""


def completed(summaries: Sequence[Summary]) -> list[Summary]:
    """Return the summaries of one scale, each with the rows that it lacks and another one has, in its own order."""
    known: dict[str, list[tuple[str, CellResult]]] = {}
    for summary in summaries:
        entries = {_key(e): e for e in summary.entries if e.accuracies and e.rounds and not e.shared}
        for cell in CAMPAIGNS[summary.campaign].cells:
            keys = {v.name: (cell.group, v.name, cell.at) for v in cell.variants(summary.scale)}
            mine = {row: entries[key] for row, key in keys.items() if key in entries}
            for row, name in cell.names(summary.scale, {row: round(e.rounds or 0) for row, e in mine.items()}).items():
                known.setdefault(name, []).append((summary.campaign, mine[row]))
    return [_completed(summary, known) for summary in summaries]


def _completed(summary: Summary, known: Mapping[str, Sequence[tuple[str, CellResult]]]) -> Summary:
    campaign, entries = CAMPAIGNS[summary.campaign], {_key(e): e for e in summary.entries}
    places: dict[Key, int] = {}
    for cell in campaign.cells:
        names = _names(cell, summary.scale, entries)
        for variant in cell.variants(summary.scale):
            key = (cell.group, variant.name, cell.at)
            places[key] = len(places)
            if key in entries and entries[key].accuracies and not entries[key].shared:
                continue
            found = [f for f in known.get(names.get(variant.name, ""), ()) if _shows(f[1], campaign.kind)]
            if found:
                whose, entry = max(found, key=lambda f: len(f[1].seeds))
                entries[key] = _taken(blank(campaign, cell, variant), entry, whose)
    last = len(places)  # what the campaign no longer has
    return replace(summary, entries=sorted(entries.values(), key=lambda e: places.get(_key(e), last)))


def _names(cell: Cell, scale: str, entries: Mapping[Key, CellResult]) -> dict[str, str]:
    """Return what runs of a cell are called; how many rounds another budget buys is known of rows that were asked."""
    if cell.budget == "rounds":
        rounds = {row: config.rounds for row, config in cell.configs(scale, Path()).items()}
    else:
        mine = {v.name: entries.get((cell.group, v.name, cell.at)) for v in cell.variants(scale)}
        rounds = {row: round(e.rounds) for row, e in mine.items() if e is not None and e.rounds}
    return cell.names(scale, rounds)


def _shows(entry: CellResult, kind: str) -> bool:
    return kind not in SHOWN or bool(getattr(entry, SHOWN[kind]))


def _taken(here: CellResult, entry: CellResult, campaign: str) -> CellResult:
    """Return another campaign's numbers in the place of an empty row, beside what the paper prints there."""
    return replace(
        entry,
        group=here.group,
        at=here.at,
        paper_accuracy=here.paper_accuracy,
        paper_forgetting=here.paper_forgetting,
        slip=here.slip,
        shared=campaign,
    )


def _key(entry: CellResult) -> Key:
    return entry.group, entry.method, entry.at
