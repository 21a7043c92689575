"""Peak memory of the same data on 5, 50 and 500 clients. `python -m benchmarks.memory` prints a table."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.contest import Contestant
from benchmarks.workloads import SPREAD


def main() -> None:
    """Let each workload do two rounds."""
    table = Table("method", "clients", "peak MB", "over 5 clients")
    least: dict[str, float] = {}
    for name, workload in SPREAD.items():
        contestant = Contestant(sys.executable, Path(__file__).with_name("ours.py"), name)
        contestant.go()
        contestant.close()
        first = least.setdefault(workload.method, contestant.peak_mb)
        row = (workload.method, str(workload.clients), f"{contestant.peak_mb:.0f}", f"{contestant.peak_mb / first:.2f}")
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
