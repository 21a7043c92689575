"""What `cflag reproduce` leaves behind."""

from __future__ import annotations

from pathlib import Path

from cflag.files import write_atomically, write_json
from cflag.paper.cells import Campaign
from cflag.paper.figures import PLAIN, draw
from cflag.paper.present import as_markdown
from cflag.paper.study_tables import STUDIES, study_tables
from cflag.paper.summary import Summary
from cflag.results.figures import save


def write(campaign: Campaign, summary: Summary, stem: Path) -> list[Path]:
    """Write the summary, the table and, for a figure, the figure; return the files."""
    write_json(stem.with_suffix(".json"), summary.to_dict())
    write_atomically(stem.with_suffix(".md"), _markdown(campaign, summary).encode())
    files = [stem.with_suffix(".json"), stem.with_suffix(".md")]
    if campaign.kind not in PLAIN:
        files += save(draw(campaign, summary), stem)
    return files


def _markdown(campaign: Campaign, summary: Summary) -> str:
    return study_tables(campaign, summary) if campaign.kind in STUDIES else as_markdown(summary)
