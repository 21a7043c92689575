"""A fair comparison: every method on the same benchmark and seeds, at an equal budget, side by side on all cores."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cflag.config import Config, merge, resolve
from cflag.engines.local import Account, LocalEngine
from cflag.errors import CflagError, InterruptedRunError, UserError
from cflag.experiment import Experiment
from cflag.results.folder import RunFolder
from cflag.results.result import Result
from cflag.safety import one_thread, stop_requests

Budget = Literal["rounds", "gradients", "bytes"]


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    folder: Path
    config: Config

    @property
    def rounds(self) -> int:
        """How many rounds it has in all."""
        return self.config.tasks * self.config.rounds

    def done(self) -> int:
        """How many of them are finished."""
        metrics = self.folder / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def plan(raw: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int], budget: Budget, out: Path) -> list[Job]:
    """Make the list of runs; with a budget of gradients or bytes each method gets the rounds that it pays for."""
    configs = {method: resolve(merge(raw, [("method", method), ("workers", 1)])) for method in methods}
    if budget != "rounds":
        configs = equal_cost(configs, budget)
    return [
        Job(out / f"{method}-{seed}", replace(config, seed=seed))
        for method, config in configs.items()
        for seed in seeds
    ]


def equal_cost(configs: Mapping[str, Config], budget: Budget) -> dict[str, Config]:
    """Give every method the rounds that cost as much as the first method's own."""
    per_round = {method: cost_per_round(config, budget) for method, config in configs.items()}
    first = next(iter(configs))
    total = per_round[first] * configs[first].rounds
    return {m: replace(config, rounds=max(1, round(total / per_round[m]))) for m, config in configs.items()}


def cost_per_round(config: Config, budget: Budget) -> float:
    """Measure what a method's round costs: the mean over tasks, of which only the first has no past."""
    experiment = Experiment(config)
    engine = LocalEngine(experiment.host(), workers=1)
    server = experiment.server()
    costs = []
    with one_thread():
        for task in range(min(config.tasks, 2)):
            server.task, server.sizes = task, experiment.sizes(task)
            engine.converse(experiment.method.begin_task(server), server)
            engine.settle()
            engine.converse(experiment.method.round(server), server)
            costs.append(_spent(engine.settle(), budget))
            engine.converse(experiment.method.end_task(server), server)
    return (costs[0] + (config.tasks - 1) * costs[-1]) / config.tasks


def _spent(account: Account, budget: Budget) -> float:
    if budget == "bytes":
        return account.bytes_up + account.bytes_down
    return account.cost.current + account.cost.memory


def prepare(jobs: Sequence[Job]) -> None:
    """Make the runs' folders; those that are there must belong to the same comparison."""
    for job in jobs:
        if not (job.folder / "config.toml").exists():
            RunFolder.create(job.folder, job.config)
        elif RunFolder.open(job.folder).config() != job.config:
            raise UserError(f"{job.folder} holds a run with other settings; choose another --out")


def run_all(jobs: Sequence[Job], at_once: int, watch: Callable[[Sequence[Job]], None]) -> list[Result]:
    """Run what is not finished, several at once, each in a process of its own; return all results."""
    waiting = [job for job in jobs if not RunFolder(job.folder).finished]
    running: dict[Job, subprocess.Popen[str]] = {}
    with stop_requests() as stopped, _ended(running):
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job] = _start(job)
            time.sleep(0.2)
            watch(jobs)
            for job, process in list(running.items()):
                if process.poll() is not None:
                    _check(job, running.pop(job))
            if stopped():
                raise InterruptedRunError("stopped; all finished rounds are saved; repeat the command to go on")
    return [Result.load(job.folder) for job in jobs]


def _start(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cflag.cli", "run", "--quiet", "--resume", str(job.folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _check(job: Job, process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    if process.returncode:
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        raise CflagError(f"{job.config.method} with seed {job.config.seed} failed: {last.removeprefix('cflag: ')}")


@contextmanager
def _ended(running: Mapping[Job, subprocess.Popen[str]]) -> Iterator[None]:
    """Whatever happens, leave no process behind; a SIGTERM lets each save its state."""
    try:
        yield
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
