"""Does `cflag tune` lose anything by giving trials up? The same searches with and without, side by side.

python benchmarks/pruning.py [--trials 16] [--seeds 4321,4322] [--out runs/pruning]; minutes on one core, and it goes on
where it was. Two benchmarks without download, two methods: the best value on held-out training samples, what that
scores on the test half, and how many rounds all trials took.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import cflag
from cflag.results.metrics import read_metrics
from cflag.tuning import search

BENCHMARKS: dict[str, dict[str, Any]] = {
    "digits, classes, SGD": {"scenario": "class", "optimizer": "sgd"},
    "digits, permuted, Adam": {"scenario": "permuted", "tasks": 4, "optimizer": "adam", "partition": "iid"},
}
METHODS = ("cflag", "replay")


def searched(share: float, out: Path, trials: int, seed: int, settings: dict[str, Any]) -> dict[str, list[float]]:
    """Search with a share of hopelessness; return each method's best value, its test score, rounds, trials given up."""
    search.HOPELESS = share
    tuned = cflag.tune(METHODS, "digits", trials=trials, seed=seed, out=out, jobs=1, **settings)
    found = {}
    for method in METHODS:
        best = search.best_of(tuned.trials[method])
        test = tuned.tests[method][1]
        rounds = sum(len(read_metrics(out / f"{method}-{k + 1:03d}" / "metrics.jsonl")) for k in range(trials))
        given_up = sum(trial.state == "given up" for trial in tuned.trials[method])
        found[method] = [best.worth, float("nan") if test is None else test.average_accuracy, rounds, given_up]
    return found


def main() -> None:
    """Print a line for each benchmark, seed and method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seeds", default="4321,4322")
    parser.add_argument("--out", type=Path, default=Path("runs/pruning"))
    args = parser.parse_args()
    share = search.HOPELESS
    print("benchmark | seed | method | best, test, rounds | with pruning | given up")
    for name, settings in BENCHMARKS.items():
        for seed in map(int, args.seeds.split(",")):
            folder = args.out / f"{name.replace(', ', '-')}-{seed}"
            all_of, pruned = (
                searched(s, folder / what, args.trials, seed, settings) for s, what in ((0.0, "all"), (share, "pruned"))
            )
            for method in METHODS:
                one, other = (f"{v[0]:.4f}, {v[1]:.4f}, {v[2]:.0f}" for v in (all_of[method], pruned[method]))
                print(f"{name} | {seed} | {method} | {one} | {other} | {pruned[method][3]:.0f}", flush=True)


if __name__ == "__main__":
    main()
