"""The ledger: every number the paper prints beside ours, and which of its claims our runs support.

It is made from summaries of campaigns alone, so that anyone can check it without the runs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from cflag.errors import UserError
from cflag.files import write_atomically
from cflag.paper.campaigns import CAMPAIGNS, NAMES, SCALES, SEEDS, Campaign
from cflag.paper.claims import CLAIMS, Claim, Verdict, overall
from cflag.paper.present import shown
from cflag.paper.summary import CellResult, Spread, Summary, spread

Ledger = dict[str, dict[str, Summary]]
"""Summaries by campaign and scale."""

SIGNS: dict[Verdict | None, str] = {"yes": "✔ supported", "open": "~ open", "no": "✘ not supported", None: "–"}
ABOUT = {
    "lite": "small CNN, images at 16×16, a fifth to two fifths of them, 50 rounds of one step, SGD",
    "cpu": "ResNet-18 (7×7 stem) or ResNet-50, a fifth to two fifths of the images, 10 rounds of one epoch, SGD",
    "paper": "the paper's own settings",
}
INTRODUCTION = """\
<!-- Written by `cflag ledger` from the summaries in results/; change those, not this. -->
# The paper's tables and figures, and ours

Every number of the paper (Keshri, Shah, Prasad, AISTATS 2025) that can be compared stands here beside ours: mean ±
standard deviation over seeds, in percent. **Acc** is the mean accuracy over all tasks after the last, **Forget** the
mean of a_ii − a_Si; below zero, tasks got better after they were learned. *printed* is what the paper prints, *lite*,
*cpu* and *paper* are our runs at that scale; *to C-FLAG* is a method's Acc minus C-FLAG's. Costs are a run's own:
gradient evaluations in thousands of samples, megabytes up and down.

"""
COMPARABLE = """
**≠ marks numbers from another scale than the paper's.** With another model, fewer images and another optimizer,
levels say nothing about the paper. What can be compared is the order of methods, the sign and the rough size of
differences, and trends. At `lite` a task is fifty single steps: models learn little of it, and in the task-incremental
setting have little to forget.
"""

JUDGED = """\
A difference counts when it is larger than twice its standard error over the seeds; otherwise the claim stays open. Ours
are taken seed by seed: one seed means the same tasks, clients and initial model for every method. A claim over several
data sets is supported when all support it, and not when one contradicts it; in brackets how many do. *printed* is the
same judgement of the numbers that the paper prints, over its three seeds. Three seeds are few: a t-test at 95 % would
ask for 4.3 standard errors, so take ✔ and ✘ for the direction in which the runs point.

"""


def keep(folders: Iterable[Path], into: Path) -> None:
    """Copy the summaries and figures of campaigns that were run into the ledger's folder."""
    for folder in folders:
        found = [folder / f"{name}.json" for name in CAMPAIGNS if (folder / f"{name}.json").is_file()]
        if not found:
            raise UserError(f"{folder} holds no summary of a table or figure; make one with: cflag reproduce")
        for path in found:
            home = into / _load(path).scale
            home.mkdir(parents=True, exist_ok=True)
            for file in (path, path.with_suffix(".png")):
                if file.is_file():
                    shutil.copyfile(file, home / file.name)


def write_ledger(docs: Path) -> Path:
    """Write results.md from what is in results/."""
    path = docs / "results.md"
    write_atomically(path, make_ledger(docs / "results").encode())
    return path


def make_ledger(folder: Path) -> str:
    """Return the ledger as Markdown."""
    paths = [p for scale in SCALES for name in CAMPAIGNS if (p := folder / scale / f"{name}.json").is_file()]
    if not paths:
        raise UserError(f"{folder} holds no summaries; give the folder of a campaign: cflag ledger runs/reproduce-lite")
    ledger: Ledger = {}
    for path in paths:
        summary = _load(path)
        ledger.setdefault(summary.campaign, {})[summary.scale] = summary
    parts = [INTRODUCTION, _scales(ledger), COMPARABLE, _claims(ledger)]
    parts += [_section(CAMPAIGNS[name], ledger[name], folder) for name in CAMPAIGNS if name in ledger]
    missing = [name for name in CAMPAIGNS if name not in ledger]
    if missing:
        parts.append(f"\n## Not run\n\n{', '.join(missing)}\n")
    return "".join(parts)


def _load(path: Path) -> Summary:
    try:
        return Summary.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a summary that cflag reproduce wrote ({error})") from None


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "".join(f"| {' | '.join(row)} |\n" for row in [heads, rule, *rows])


# --- at a glance -----------------------------------------------------------------------------------------


def _scales(ledger: Ledger) -> str:
    """Say which campaigns were run at which scale, and what the scales are."""
    rows = []
    for name, campaign in CAMPAIGNS.items():
        counts = [_count(ledger.get(name, {}).get(scale)) for scale in SCALES]
        link = f"[`{name}`](#{name})" if name in ledger else f"`{name}`"
        rows.append([link, campaign.title, *counts])
    about = "".join(f"- `{scale}`: {ABOUT[scale]}\n" for scale in SCALES)
    table = _table(["", "", *SCALES], rows, 2)
    return f"## What was run\n\n{table}\nCells with results, of those asked for. The scales:\n\n{about}"


def _count(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    done = sum(1 for e in summary.entries if e.accuracy)
    return f"{done} of {len(summary.entries)} ({sum(len(e.seeds) for e in summary.entries)} runs)"


def _claims(ledger: Ledger) -> str:
    """Judge every claim at every scale that was run."""
    scales = [s for s in SCALES if any(s in by_scale for by_scale in ledger.values())]
    rows = []
    for claim in CLAIMS:
        summaries = ledger.get(claim.campaign, {})
        verdicts = [_verdict(claim, _as_printed(summaries)), *(_verdict(claim, summaries.get(s)) for s in scales)]
        rows.append([claim.says, f"`{claim.campaign}`", *verdicts])
    heads = ["the paper says", "where", "printed", *(f"{s} {_mark(s)}".strip() for s in scales)]
    details = "".join(_details(claim, ledger) for claim in CLAIMS)
    return (
        "\n## What the paper says, and what our runs say\n\n"
        + JUDGED
        + _table(heads, rows, len(heads))
        + f"\n<details><summary>Evidence for each</summary>\n\n{details}\n</details>\n"
    )


def _verdict(claim: Claim, summary: Summary | None) -> str:
    if summary is None:
        return SIGNS[None]
    judgements = claim.judge(summary)
    if len(judgements) < 2:
        return SIGNS[overall(judgements)]
    supported = sum(f.verdict == "yes" for f in judgements)
    return f"{SIGNS[overall(judgements)]} ({supported} of {len(judgements)})"


def _as_printed(by_scale: dict[str, Summary]) -> Summary | None:
    """Return the paper's own numbers in the place of ours, where it prints them."""
    if not by_scale:
        return None
    entries = [
        CellResult(e.group, e.method, e.at, list(SEEDS), e.paper_accuracy, e.paper_forgetting)
        for e in map(_any, _rows(by_scale))
    ]
    return replace(next(iter(by_scale.values())), entries=entries)


def _details(claim: Claim, ledger: Ledger) -> str:
    lines = [
        f"  - {scale}, {f.part}: {SIGNS[f.verdict]}; {f.evidence}\n"
        for scale, summary in ledger.get(claim.campaign, {}).items()
        for f in claim.judge(summary)
    ]
    return f"- {claim.says}\n{''.join(lines)}" if lines else ""


def _mark(scale: str) -> str:
    return "" if scale == "paper" else "≠"


# --- one campaign ----------------------------------------------------------------------------------------


def _section(campaign: Campaign, by_scale: dict[str, Summary], folder: Path) -> str:
    """Return a campaign's part: how it was made, its numbers, its figure."""
    rows = _rows(by_scale)
    groups = dict.fromkeys(_any(row).group for row in rows)
    made = "".join(_provenance(summary) for summary in by_scale.values())
    tables = "".join(_group(campaign, [r for r in rows if _any(r).group == g], list(by_scale)) for g in groups)
    pictures = "".join(
        f"\n![{campaign.title}, scale {scale}](results/{scale}/{campaign.name}.png)\n"
        for scale in by_scale
        if (folder / scale / f"{campaign.name}.png").is_file()
    )
    return f"\n## {campaign.name}\n\n{campaign.title}.\n\n{made}{tables}{pictures}"


def _provenance(summary: Summary) -> str:
    seeds = sorted({seed for entry in summary.entries for seed in entry.seeds})
    scale = f"scale `{summary.scale}` {_mark(summary.scale)}".strip()
    text = (
        f"- {scale}: `{summary.command}`, seeds {', '.join(map(str, seeds))}, {summary.date}, commit {summary.commit}\n"
    )
    return text + "".join(f"  - failed: {line}\n" for line in summary.failed)


Row = dict[str, CellResult]
"""One method in one cell, by scale."""
Column = tuple[str, Callable[[Row], str]]


def _rows(by_scale: dict[str, Summary]) -> list[Row]:
    """Bring the entries of several scales together, in the campaign's order."""
    rows: dict[tuple[str, str, float | None], Row] = {}
    for scale, summary in by_scale.items():
        for entry in summary.entries:
            rows.setdefault((entry.group, entry.method, entry.at), {})[scale] = entry
    return list(rows.values())


def _any(row: Row) -> CellResult:
    """Return an entry of a row, for what does not depend on the scale."""
    return next(iter(row.values()))


def _group(campaign: Campaign, rows: Sequence[Row], scales: Sequence[str]) -> str:
    """Return the table of one data set: a row a method, columns for the paper and for each scale."""
    columns = [(head, [cell(row) for row in rows]) for head, cell in _columns(campaign, rows, scales)]
    columns = [(head, cells) for head, cells in columns if set(cells) != {NONE}]
    lines = [[_label(row), *(cells[k] for _, cells in columns)] for k, row in enumerate(rows)]
    slips = "".join(f"\n‡ {_label(row)}: {_any(row).slip}.\n" for row in rows if _any(row).slip)
    order = "".join(_order(scale, rows) for scale in scales) if campaign.kind == "table" else ""
    return f"\n**{_any(rows[0]).group}**\n\n{_table(['', *(head for head, _ in columns)], lines)}{slips}{order}"


def _columns(campaign: Campaign, rows: Sequence[Row], scales: Sequence[str]) -> list[Column]:
    marked = [(scale, f"{scale} {_mark(scale)}".strip()) for scale in scales]
    columns: list[Column] = []
    for name, ours, theirs in (
        ("Acc", _ours_accuracy, lambda e: e.paper_accuracy),
        ("Forget", _ours_forgetting, lambda e: e.paper_forgetting),
    ):
        columns.append((f"{name}, printed", _printed(theirs)))
        columns += [(f"{name}, {head}", _at(scale, ours)) for scale, head in marked]
        if name == "Acc" and campaign.kind == "table":
            columns.append(("to C-FLAG, printed", _to_hero(rows, None)))
            columns += [(f"to C-FLAG, {head}", _to_hero(rows, scale)) for scale, head in marked]
    if campaign.kind == "tasks":
        count = max(len((e.after_tasks or [[]])[0]) for row in rows for e in row.values())
        columns = [(f"after {k + 1}, {head}", _at(scale, _stage(k))) for scale, head in marked for k in range(count)]
    if campaign.kind == "gamma":
        columns += [(f"variation of Γ, {head}", _at(scale, _variation)) for scale, head in marked]
    for scale, head in marked:
        columns.append((f"k gradients, {head}", _at(scale, lambda e: _number(e.gradients))))
        columns.append((f"MB, {head}", _at(scale, lambda e: _number(e.megabytes))))
        columns.append((f"seeds, {head}", _at(scale, lambda e: str(len(e.seeds)))))
    return columns


NONE = "–"


def _label(row: Row) -> str:
    entry = _any(row)
    name = NAMES.get(entry.method, entry.method)
    return name if entry.at is None else f"{name}, {entry.at:g}"


def _ours_accuracy(entry: CellResult) -> str:
    return shown(entry.accuracy)


def _ours_forgetting(entry: CellResult) -> str:
    return shown(entry.forgetting)


def _variation(entry: CellResult) -> str:
    return shown(spread(entry.gamma_variation or [], 5), 3)


def _stage(k: int) -> Callable[[CellResult], str]:
    return lambda entry: shown(spread([row[k] for row in entry.after_tasks or []]))


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def _at(scale: str, cell: Callable[[CellResult], str]) -> Callable[[Row], str]:
    return lambda row: cell(row[scale]) if scale in row else NONE


def _printed(pick: Callable[[CellResult], Spread | None]) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        entry = _any(row)
        return shown(pick(entry)) + (" ‡" if entry.slip and pick(entry) else "")

    return cell


def _mean(row: Row, scale: str | None) -> float | None:
    """Return a row's accuracy, ours at a scale or the paper's."""
    if scale is not None and scale not in row:
        return None
    spread = _any(row).paper_accuracy if scale is None else row[scale].accuracy
    return spread[0] if spread else None


def _to_hero(rows: Sequence[Row], scale: str | None) -> Callable[[Row], str]:
    hero = next((_mean(row, scale) for row in rows if _any(row).method == "cflag"), None)

    def cell(row: Row) -> str:
        mine = _mean(row, scale)
        return NONE if mine is None or hero is None or _any(row).method == "cflag" else f"{mine - hero:+.1f}"

    return cell


def _order(scale: str, rows: Sequence[Row]) -> str:
    """Say how many pairs of methods stand in the paper's order."""
    means = [(a, b) for row in rows if (a := _mean(row, None)) is not None and (b := _mean(row, scale)) is not None]
    pairs = list(combinations(means, 2))
    same = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs)
    return (
        f"\nScale `{scale}`: {same} of {len(pairs)} pairs of methods stand in the paper's order by Acc.\n"
        if pairs
        else ""
    )
