"""The table of docs/protocols.md: other papers' protocols, some of our methods, three seeds.

python -m benchmarks.protocols --out runs/protocols [PROTOCOL ...]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev

from cflag.comparison import plan
from cflag.config import load_raw
from cflag.errors import CflagError, UserError
from cflag.jobs import Job, prepare, run_all
from cflag.presets import PROTOCOL, protocol_names
from cflag.results.result import Result

METHODS = ("finetune", "lwf", "replay", "derpp", "cflag", "cflag-sgd", "ridge")
SEEDS = (1234, 1235, 1236)


def small_protocols() -> list[str]:
    """Return the protocols that run in minutes."""
    return [name.removeprefix(PROTOCOL) for name in protocol_names() if not name.endswith("-paper")]


def jobs_of(protocol: str, out: Path) -> list[Job]:
    """Return the runs of a protocol; a method that refuses it is left out."""
    found: list[Job] = []
    for method in METHODS:
        try:
            found += plan(load_raw(f"{PROTOCOL}{protocol}"), [method], SEEDS, "rounds", out / protocol)
        except UserError as error:
            print(f"{protocol}: {error}")
    return found


def cell(results: list[Result]) -> str:
    """Return Acc and Forget in percent, means over seeds, and the standard deviation of Acc."""
    if not results:
        return "–"
    acc = [100 * result.average_accuracy for result in results]
    spread = f" ± {stdev(acc):.1f}" if len(acc) > 1 else ""
    return f"{fmean(acc):.1f}{spread} ({100 * fmean(result.forgetting for result in results):.1f})"


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("protocols", nargs="*", metavar="PROTOCOL", help=f"default: {' '.join(small_protocols())}")
    parser.add_argument("--out", type=Path, default=Path("runs/protocols"))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    print(f"| Acc ± sd (Forget) | {' | '.join(METHODS)} |\n|---|{'---:|' * len(METHODS)}")
    for protocol in args.protocols or small_protocols():
        jobs = jobs_of(protocol, args.out)
        prepare(jobs)
        results = run_all(jobs, args.jobs, lambda _: None, _say)
        cells = [cell([result for result in results if result.method == method]) for method in METHODS]
        print(f"| `{protocol}` | {' | '.join(cells)} |", flush=True)


def _say(job: Job, error: CflagError) -> None:
    """Go on without a run that failed."""
    print(f"{job.folder.name}: {error}")


if __name__ == "__main__":
    main()
