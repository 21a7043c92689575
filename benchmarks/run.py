"""Time workloads side by side, interleaved; write JSON, a picture, and the table in docs/performance.md.

python -m benchmarks.run [WORKLOAD ...] [--peers PYTHON] [--repeats N]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contest import Contestant
from benchmarks.workloads import WORKLOADS, Workload

HERE = Path(__file__).parent
LATEST = HERE / "latest.json"
PAGE = HERE.parent / "docs" / "performance.md"
PICTURE = HERE.parent / "docs" / "images" / "performance.png"
PEERS = ("pfl", "flower")
FEDAVG = ("J", "J2", "J3", "R")
"""The workloads that peers can do."""


def contestants(workload: Workload, peers: str | None) -> dict[str, Contestant]:
    """Start all contestants of a workload: ours, the bare loop in its variants, and the peers."""
    ways = ["odd" if workload.asked % 2 else "processes"]
    if workload.model == "custom" and workload.asked % 2:  # a small MLP gains nothing from a second thread
        ways.append("processes")
    if peers:  # the long version
        ways += ["tuned", "threads"]
    field = {"ours": Contestant(sys.executable, HERE / "ours.py", workload.name)}
    field |= {f"bare-{way}": Contestant(sys.executable, HERE / "bare.py", workload.name, way) for way in ways}
    if peers and workload.name in FEDAVG:
        field |= {name: Contestant(peers, HERE / "peers" / f"{name}_job.py", workload.name) for name in PEERS}
    return field


def measure(workload: Workload, peers: str | None, console: Console) -> dict[str, Any]:
    """Time one workload: one round of each contestant in turn, `repeats` times."""
    field = contestants(workload, peers)
    with console.status("") as status:
        for number in range(workload.repeats):
            for name, contestant in field.items():
                status.update(f"{workload.name}: {number + 1}/{workload.repeats} {name}")
                contestant.go()
    for contestant in field.values():
        contestant.close()
    return summary(workload, field)


def summary(workload: Workload, field: dict[str, Contestant]) -> dict[str, Any]:
    """Summarise a workload; `ratio` is the time of the best plain bare loop over ours, above 1 where we are faster."""
    medians = {name: median(c.seconds) for name, c in field.items()}
    plain = {name: s for name, s in medians.items() if name.startswith("bare-") and name != "bare-tuned"}
    best = min(plain, key=lambda name: plain[name])
    return {
        "workload": workload.name,
        "ours_s": medians["ours"],
        "bare_s": plain[best],
        "ratio": plain[best] / medians["ours"],
        "peak_mb": field["ours"].peak_mb,
        "bare": best,
        "about": workload.about,
        "spread_s": {name: [min(c.seconds), max(c.seconds)] for name, c in field.items()},
        "medians_s": medians,
        "peaks_mb": {name: c.peak_mb for name, c in field.items()},
        "start_s": {name: c.start_seconds for name, c in field.items()},
        "facts": field["ours"].facts,
        "repeats": workload.repeats,
        **made(),
    }


def made() -> dict[str, str]:
    """Return the date, commit and machine of a measurement."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    return {"date": date.today().isoformat(), "commit": commit.strip(), "machine": platform.machine()}


def table(results: list[dict[str, Any]]) -> Table:
    """Return the results as a table: medians, in brackets the fastest and slowest."""
    shown = Table(title="seconds per round: median (fastest-slowest)", title_justify="left")
    for column in ("workload", "who", "seconds", "bare/ours", "peak MB"):
        shown.add_column(column, justify="left" if column in ("workload", "who") else "right")
    for r in results:
        for name, seconds in r["medians_s"].items():
            low, high = r["spread_s"][name]
            shown.add_row(
                r["workload"] if name == "ours" else "",
                name,
                f"{seconds:.3g} ({low:.3g}-{high:.3g})",
                "" if name == "ours" else f"{seconds / r['ours_s']:.2f}",
                f"{r['peaks_mb'][name]:.0f}",
            )
        shown.add_section()
    return shown


def markdown(results: list[dict[str, Any]]) -> str:
    """Return the results as the table of docs/performance.md."""
    lines = ["| workload | who | seconds | time over ours | peak MB | date, commit |", "|---|---|---:|---:|---:|---|"]
    for r in results:
        for name, seconds in r["medians_s"].items():
            low, high = r["spread_s"][name]
            first = name == "ours"
            best = " (best plain loop)" if name == r["bare"] else ""
            over = "" if first else f"{seconds / r['ours_s']:.2f}"
            made = f"{r['date']}, {r['commit']}" if first else ""
            workload = f"**{r['workload']}**" if first else ""
            span = f"{seconds:.3g} ({low:.3g} to {high:.3g})"
            lines.append(f"| {workload} | {name}{best} | {span} | {over} | {r['peaks_mb'][name]:.0f} | {made} |")
    return "\n".join(lines) + "\n"


def update_page(results: list[dict[str, Any]]) -> None:
    """Replace the table between the page's two marks."""
    before, start, rest = PAGE.read_text().partition("<!-- results -->\n")
    _, end, after = rest.partition("<!-- end of results -->\n")
    PAGE.write_text(before + start + markdown(results) + end + after)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw the contestants' times over ours, one row per workload."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = sorted({name for r in results for name in r["medians_s"]} - {"ours"})
    figure, axes = plt.subplots(figsize=(7, 0.6 + 0.42 * len(results)), layout="constrained")
    for row, r in enumerate(results):
        for name, seconds in r["medians_s"].items():
            if name == "ours":
                continue
            low, high = (s / r["ours_s"] for s in r["spread_s"][name])
            at, colour = seconds / r["ours_s"], f"C{names.index(name)}"
            axes.plot([low, high], [row, row], color=colour, alpha=0.4, lw=4, solid_capstyle="butt")
            axes.plot(
                at, row, "o", color=colour, label=name if name not in axes.get_legend_handles_labels()[1] else None
            )
    axes.axvline(1, color="black", lw=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.set_yticks(range(len(results)), [r["workload"] for r in results])
    axes.invert_yaxis()
    axes.set_xlabel("time of a round over cflag's (line: fastest to slowest; right of 1: cflag is faster)")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def merged(path: Path, fresh: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fresh results with the older ones of other workloads, in the order of workloads."""
    old = json.loads(path.read_text()) if path.exists() else []
    by_name = {r["workload"]: r for r in [*old, *fresh]}
    return [by_name[name] for name in WORKLOADS if name in by_name]


def main() -> None:
    """Time the workloads named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has pfl and flwr[simulation]")
    parser.add_argument("--repeats", type=int, default=0, help="rounds of each; by default what the workload says")
    parser.add_argument("--out", type=Path, default=LATEST, help="elsewhere: leave the project's own files alone")
    args = parser.parse_args()
    unknown = [name for name in args.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"there is no workload {unknown[0]}; there are {', '.join(WORKLOADS)}")
    console = Console()
    results = []
    for name in args.workloads or WORKLOADS:
        workload = replace(WORKLOADS[name], repeats=args.repeats or WORKLOADS[name].repeats)
        results.append(measure(workload, args.peers, console))
        console.print(f"{name:<10} ours {results[-1]['ours_s']:.3g} s, bare {results[-1]['bare_s']:.3g} s, "
                      f"ratio {results[-1]['ratio']:.2f}", highlight=False)  # fmt: skip
        args.out.write_text(json.dumps(merged(args.out, results[-1:]), indent=1) + "\n")
    console.print(table(results))
    if args.out == LATEST:
        whole = merged(LATEST, results)
        draw(whole, PICTURE)
        update_page(whole)
        console.print(f"{LATEST}\n{PICTURE}\n{PAGE}", highlight=False)


if __name__ == "__main__":
    main()
