"""The checksums of a finished run's files that cannot carry their own: result.json, which is compared between runs, and
metrics.jsonl, which grows. They are in digests.json; runs of earlier versions have none.
"""

from __future__ import annotations

from pathlib import Path

from cflag.errors import UserError
from cflag.files import WHAT_TO_DO, checksum, read_bytes, read_json, write_sealed_json

NAME = "digests.json"
RESULT, METRICS = "result.json", "metrics.jsonl"


def write_digests(folder: Path, result: bytes) -> None:
    """Write the checksums of the metrics, and of the result before it is there: its presence ends the run."""
    write_sealed_json(folder / NAME, {METRICS: _sum_of(folder / METRICS), RESULT: checksum(result)})


def check_digests(folder: Path) -> None:
    """Refuse a finished run whose result or metrics are not those that were written."""
    if not (folder / NAME).is_file():
        return
    known = read_json(folder / NAME)
    for name in (RESULT, METRICS):
        if known.get(name) != _sum_of(folder / name):
            raise UserError(f"{folder / name} is damaged: not what {NAME} says was written; {WHAT_TO_DO}")


def _sum_of(path: Path) -> str:
    return checksum(read_bytes(path)) if path.exists() else ""
