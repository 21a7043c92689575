"""How a round's cost grows with clients, cohort, model and local steps, beside the bare loop, as a picture.

python -m benchmarks.growth [--repeats N]    some minutes on a quiet machine; writes docs/images/growth.png and .json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.run import made, measure
from benchmarks.workloads import GROWTH

IMAGES = Path(__file__).parent.parent / "docs" / "images"
LABELS = {"clients": "clients, 100 of them a round", "cohort": "clients a round, of 10,000",
          "width": "width of an MLP w-w-10", "steps": "local steps E"}  # fmt: skip


def main() -> None:
    """Time every workload of every panel, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats, console = parser.parse_args().repeats, Console()
    panels: dict[str, list[dict[str, Any]]] = {}
    for what, workloads in GROWTH.items():
        panels[what] = []
        for workload in workloads.values():
            timed = measure(replace(workload, repeats=repeats), None, console)
            at = int(workload.name.rpartition("-")[2])
            point = {"at": at, **{key: timed[key] for key in ("ours_s", "bare_s", "ratio", "peak_mb", "facts")}}
            panels[what].append(point)
            ours, bare, opened = 1e3 * point["ours_s"], 1e3 * point["bare_s"], timed["facts"]["open_seconds"]
            console.print(f"{what} {at:,}: ours {ours:.1f} ms, bare {bare:.1f} ms, ratio {point['ratio']:.2f}, "
                          f"{point['peak_mb']:.0f} MB, opened in {opened:.1f} s")  # fmt: skip
    (IMAGES / "growth.json").write_text(json.dumps({**made(), "panels": panels}, indent=1) + "\n")
    draw(panels, IMAGES / "growth.png")


def draw(panels: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw one panel for each thing that grows: milliseconds a round, ours and the bare loop's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(panels), figsize=(11, 3), layout="constrained", sharey=True)
    for axis, (what, points) in zip(axes, panels.items(), strict=True):
        at = [point["at"] for point in points]
        for key, colour in (("bare_s", "0.55"), ("ours_s", "C0")):
            axis.loglog(at, [1e3 * point[key] for point in points], "o-", color=colour, lw=1.5, ms=4)
        axis.set_xticks(at, [f"{n:,}" for n in at], fontsize=8)
        axis.minorticks_off()
        axis.set_xlabel(LABELS[what], fontsize=9)
        axis.grid(alpha=0.3)
    last = panels["steps"][-1]
    for key, label, colour in (("bare_s", "bare loop", "0.4"), ("ours_s", "cflag", "C0")):
        axes[-1].annotate(label, (last["at"], 1e3 * last[key]), xytext=(-8, 2), textcoords="offset points", ha="right",
                          color=colour, fontsize=9)  # fmt: skip
    ticks = [2, 5, 10, 20, 50, 100, 200, 500]
    axes[0].set_yticks(ticks, [str(tick) for tick in ticks], fontsize=8)
    axes[0].set_ylabel("milliseconds a round", fontsize=9)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
