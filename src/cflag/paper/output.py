"""What `cflag reproduce` leaves behind."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from cflag.files import write_atomically, write_json
from cflag.paper.cells import Campaign
from cflag.paper.figures import draw, drawable
from cflag.paper.present import HEADS, as_markdown, rows, terminal_table
from cflag.paper.study_tables import STUDIES, study_tables
from cflag.paper.summary import Summary
from cflag.results.figures import save


def write(campaign: Campaign, summary: Summary, stem: Path) -> list[Path]:
    """Write the summary, the table and, for a figure, the figure; return the files."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_json(stem.with_suffix(".json"), summary.to_dict())
    write_atomically(stem.with_suffix(".md"), _markdown(campaign, summary).encode())
    files = [stem.with_suffix(".json"), stem.with_suffix(".md")]
    if drawable(campaign, summary):
        files += save(draw(campaign, summary), stem)
    return files


def _markdown(campaign: Campaign, summary: Summary) -> str:
    if campaign.kind not in STUDIES:
        return as_markdown(summary)
    return "".join(table.markdown() for table in study_tables(campaign, summary))


def as_text(campaign: Campaign, summary: Summary) -> list[Table]:
    """Return the tables for a terminal."""
    if campaign.kind not in STUDIES:
        return [terminal_table(f"{campaign.title}, scale {summary.scale}", HEADS, rows(summary), 2)]
    return [terminal_table(t.title, t.heads, t.rows, 1) for t in study_tables(campaign, summary)]
