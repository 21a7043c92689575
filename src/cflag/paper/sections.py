"""One campaign's section of the ledger: how it was run, tables of printed numbers beside ours, figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal

from cflag.paper.cells import Campaign
from cflag.paper.present import NONE, markdown_table, shown
from cflag.paper.scales import EXACT
from cflag.paper.study_tables import STUDIES, study_tables
from cflag.paper.summary import CellResult, Summary, all_images, as_printed, spread
from cflag.paper.variants import PAPERS_OWN, label, main_cflag

Row = dict[str, CellResult]
"""One variant in one cell, by scale."""
CellText = Callable[[Row], str]
"""Writes one column's cell for a row."""


def section(campaign: Campaign, by_scale: dict[str, Summary], folder: Path) -> str:
    """Return a campaign's section as Markdown."""
    rows = rows_of(by_scale)
    runs = "".join(_provenance(summary) for summary in by_scale.values())
    if campaign.kind in STUDIES:
        tables = "".join(t.markdown() for summary in by_scale.values() for t in study_tables(campaign, summary))
    else:
        groups = dict.fromkeys(first(row).group for row in rows)
        tables = "".join(_group(campaign, [r for r in rows if first(r).group == g], list(by_scale)) for g in groups)
    pictures = "".join(
        f"\n![{campaign.title}, scale {scale}](results/{scale}/{campaign.name}.png)\n"
        for scale in by_scale
        if (folder / scale / f"{campaign.name}.png").is_file()
    )
    return f"\n## {campaign.name}\n\n{campaign.title}.\n\n{runs}{_about_cflag(rows)}{tables}{pictures}"


def rows_of(by_scale: dict[str, Summary]) -> list[Row]:
    """Bring the results of several scales together, in the campaign's order."""
    rows: dict[tuple[str, str, float | None], Row] = {}
    for scale, summary in by_scale.items():
        for entry in summary.entries:
            rows.setdefault((entry.group, entry.method, entry.at), {})[scale] = entry
    return list(rows.values())


def first(row: Row) -> CellResult:
    """Return one result of a row, for what does not depend on the scale."""
    return next(iter(row.values()))


def marked(scale: str) -> str:
    """Return a scale's name, with ≠ where its numbers cannot be compared with the printed ones."""
    return scale if scale == EXACT else f"{scale} ≠"


def _provenance(summary: Summary) -> str:
    """Say how a summary was made."""
    scale = f"`{summary.scale}`{marked(summary.scale).removeprefix(summary.scale)}"
    own = sorted({seed for entry in summary.entries if not entry.shared for seed in entry.seeds})
    made = (
        f"seeds {', '.join(map(str, own))}, {summary.date}, commit {summary.commit}" if own else "none of it run here"
    )
    text = f"- scale {scale}: `{summary.command}`, {made}\n"
    shared = dict.fromkeys(e.shared for e in summary.entries if e.shared)
    if shared:
        text += f"  - cells in common with {', '.join(f'[{name}](#{name})' for name in shared)} are from there\n"
    return text + "".join(f"  - failed: {line}\n" for line in summary.failed)


def _about_cflag(rows: Sequence[Row]) -> str:
    """Say in one line that C-FLAG-SGD is not the paper's C-FLAG, where it was run."""
    if all(first(row).method != "cflag-sgd" for row in rows):
        return ""
    mark = " § marks what the paper prints for C-FLAG." if any(_borrowed(row, rows) for row in rows) else ""
    return f"\nC-FLAG-SGD is our variant, not the paper's C-FLAG ([what differs](#which-c-flag)).{mark}\n"


# --- one table -------------------------------------------------------------------------------------------


def _group(campaign: Campaign, rows: Sequence[Row], scales: Sequence[str]) -> str:
    """Return the table of one data set: one row per variant, columns for the paper and each scale; else nothing."""
    columns = [(head, [text(row) for row in rows]) for head, text in _columns(campaign, rows, scales)]
    columns = [(head, cells) for head, cells in columns if set(cells) != {NONE}]
    if not columns:
        return ""
    lines = [[_label(row), *(cells[k] for _, cells in columns)] for k, row in enumerate(rows)]
    table = markdown_table(["", *(head for head, _ in columns)], lines)
    slips = "".join(
        f"\n‡ {PAPERS_OWN if _is_cflag(row) else _label(row)}: {first(row).slip}.\n" for row in rows if first(row).slip
    )
    order = "".join(_order(scale, rows) for scale in scales) if campaign.kind == "table" else ""
    return f"\n**{first(rows[0]).group}**\n\n{table}{slips}{order}{_subsets(rows, scales)}"


def _subsets(rows: Sequence[Row], scales: Sequence[str]) -> str:
    """Say where runs had only a part of the data set's images."""
    group, text = first(rows[0]).group, ""
    for scale in scales:
        counts = [row[scale].images for row in rows if scale in row]
        fewest = min((count for count in counts if count is not None), default=None)
        if fewest is not None and fewest < all_images(group):
            text += f"\nScale `{scale}`: on {fewest:,} of the data set's {all_images(group):,} training images.\n"
    return text


def _columns(campaign: Campaign, rows: Sequence[Row], scales: Sequence[str]) -> list[tuple[str, CellText]]:
    """Return the head of each column, and what writes its cells."""
    columns: list[tuple[str, CellText]] = []
    if campaign.kind == "tasks":
        count = max(len((e.after_tasks or [[]])[0]) for row in rows for e in row.values())
        columns += [(f"after {k + 1}, {marked(s)}", _at(s, _stage(k))) for s in scales for k in range(count)]
    else:
        columns.append(("Acc, printed", _printed(campaign, rows, 0)))
        columns += [(f"Acc, {marked(s)}", _at(s, lambda e: shown(e.accuracy))) for s in scales]
        if campaign.kind == "table":
            columns.append((f"to {PAPERS_OWN}, printed", _to_cflag(rows, None)))
            columns += [(f"to {_cflag_label(rows, s)}, {marked(s)}", _to_cflag(rows, s)) for s in scales]
        columns.append(("Forget, printed", _printed(campaign, rows, 1)))
        columns += [(f"Forget, {marked(s)}", _at(s, lambda e: shown(e.forgetting))) for s in scales]
    if campaign.kind == "gamma":
        columns += [(f"variation of Γ, {marked(s)}", _at(s, _variation)) for s in scales]
    for s in scales:
        columns.append((f"k gradients, {marked(s)}", _at(s, lambda e: _number(e.gradients))))
        columns.append((f"MB, {marked(s)}", _at(s, lambda e: _number(e.megabytes))))
        columns.append((f"seeds, {marked(s)}", _at(s, lambda e: str(len(e.seeds) or NONE))))
    return columns


def _label(row: Row) -> str:
    entry = first(row)
    return label(entry.method) if entry.at is None else f"{label(entry.method)}, {entry.at:g}"


def _is_cflag(row: Row) -> bool:
    return main_cflag([first(row).method]) is not None


def _borrowed(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a row shows what the paper prints for C-FLAG but is another method: only while nothing closer was run."""
    entry = first(row)
    closer = any(first(r).method == "cflag-paper" and first(r).group == entry.group for r in rows)
    return entry.method == "cflag-sgd" and entry.paper_accuracy is not None and not closer


def _variation(entry: CellResult) -> str:
    return shown(spread(entry.gamma_variation or [], 5), 3)


def _stage(k: int) -> Callable[[CellResult], str]:
    return lambda entry: shown(spread([row[k] for row in entry.after_tasks or []]))


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def _at(scale: str, text: Callable[[CellResult], str]) -> CellText:
    return lambda row: text(row[scale]) if scale in row else NONE


def _printed(campaign: Campaign, rows: Sequence[Row], which: Literal[0, 1]) -> CellText:
    """Write what the paper prints, Acc (0) or Forget (1), digit by digit."""

    def text(row: Row) -> str:
        entry = first(row)
        digits = as_printed(campaign.name, entry)[which]
        if not digits or (entry.method == "cflag-sgd" and not _borrowed(row, rows)):
            return NONE
        return digits + (" §" if _borrowed(row, rows) else "") + (" ‡" if entry.slip else "")

    return text


# --- a table's rows compared -----------------------------------------------------------------------------


def _mean(row: Row, scale: str | None) -> float | None:
    """Return a row's accuracy, ours at a scale or the paper's."""
    if scale is not None and scale not in row:
        return None
    found = first(row).paper_accuracy if scale is None else row[scale].accuracy
    return found[0] if found else None


def _cflag_row(rows: Sequence[Row], scale: str | None) -> Row | None:
    """Return the row of C-FLAG that the others are compared with."""
    there = {first(row).method: row for row in rows if _mean(row, scale) is not None}
    name = main_cflag(list(there))
    return there[name] if name else None


def _cflag_label(rows: Sequence[Row], scale: str) -> str:
    row = _cflag_row(rows, scale)
    return _label(row) if row else PAPERS_OWN


def _to_cflag(rows: Sequence[Row], scale: str | None) -> CellText:
    """Write how far a row's accuracy is from C-FLAG's; the paper's has its two digits."""
    own = _cflag_row(rows, scale)
    base = _mean(own, scale) if own else None

    def text(row: Row) -> str:
        mine = _mean(row, scale)
        if mine is None or base is None or row is own or (scale is None and _is_cflag(row)):
            return NONE
        return f"{mine - base:+.{2 if scale is None else 1}f}"

    return text


def _order(scale: str, rows: Sequence[Row]) -> str:
    """Say how many pairs of methods are in the paper's order."""
    means = [(a, b) for row in rows if (a := _mean(row, None)) is not None and (b := _mean(row, scale)) is not None]
    pairs = list(combinations(means, 2))
    if not pairs:
        return ""
    same = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs)
    own = _cflag_row(rows, scale)
    instead = ", C-FLAG-SGD in the place of C-FLAG" if own and first(own).method == "cflag-sgd" else ""
    return f"\nScale `{scale}`: {same} of {len(pairs)} pairs of methods are in the paper's order by Acc{instead}.\n"
