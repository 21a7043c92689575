"""What a client takes with nobody else at work: rounds one after the other, in one process and in two.

`python -m benchmarks.alone S-1000-100 H ...` prints a table. In the contest of `benchmarks.run` each round follows one
of somebody else's, which leaves caches cold and the worker asleep; here nothing does. The parameters that a client's
gradients pass through and the samples they are of say what the processor could do at best: for a dense net four
floating-point operations per parameter and sample (six above its first layer), which `products` times by themselves.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ours import do_round, open_experiment, ready, source
from benchmarks.workloads import BATCH, WORKLOADS, Workload
from cflag.process import one_thread

USUAL = ("J3", "J3-cflag", "S-1000-10", "S-1000-100", "H", "H-cflag")
SECONDS = 5.0
"""How long each is watched."""


def seconds_a_client(workload: Workload, processes: int) -> float:
    """Return the median time of a round over its clients."""
    with ready(open_experiment(workload, source(workload)), workload, processes) as session:
        do_round(session, workload)
        spent: list[float] = []
        while sum(spent) < SECONDS:
            started = time.perf_counter()
            do_round(session, workload)
            spent.append(time.perf_counter() - started)
    return median(spent) / workload.asked


def samples_a_client(workload: Workload) -> int:
    """Return how many samples' gradients a client of a round evaluates."""
    if workload.method == "finetune":
        return workload.samples * workload.epochs
    steps = workload.steps - 1  # at the first step every component stands at x_t already
    return workload.samples + workload.memory + round(steps * workload.samples / -(-workload.samples // BATCH))


def products(workload: Workload) -> float:
    """Return the seconds of a client's matrix products alone, one process, mini-batch by mini-batch."""
    sizes = [(layer.out_features, layer.in_features) for layer in workload.network().modules()
             if isinstance(layer, torch.nn.Linear)]  # fmt: skip
    spent: list[float] = []
    with one_thread(), torch.no_grad():
        layers = [(torch.rand(out, into), torch.rand(into, BATCH), torch.rand(out, BATCH)) for out, into in sizes]
        while sum(spent) < SECONDS / 5:
            started = time.perf_counter()
            for k, (weight, x, slope) in enumerate(layers):
                _ = weight @ x, slope @ x.T
                if k:
                    _ = weight.T @ slope
            spent.append(time.perf_counter() - started)
    return median(spent) * samples_a_client(workload) / BATCH


def main() -> None:
    """Print a row for each workload that is named."""
    table = Table("workload", "1 process", "2 processes", "products", title="microseconds a client")
    for name in sys.argv[1:] or USUAL:
        workload = WORKLOADS[name]
        numbers = [seconds_a_client(workload, 1), seconds_a_client(workload, 2)]
        dense = products(workload) if workload.model in ("custom", "linear") else float("nan")
        table.add_row(name, *(f"{1e6 * number:,.0f}" for number in (*numbers, dense)))
    Console().print(table)


if __name__ == "__main__":
    main()
