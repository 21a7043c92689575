"""`cflag reproduce`: run what is behind a table or figure, as far as it is not there yet, and show it."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cflag.compare import Job, prepare, price, run_all
from cflag.config import Config
from cflag.engines.local import LocalEngine
from cflag.errors import CflagError
from cflag.experiment import Experiment
from cflag.loggers.attach import require_loggers
from cflag.results.folder import RunFolder
from cflag.safety import one_thread

FORWARD = 1 / 3
"""What testing a sample costs, in gradient evaluations."""


def carry_out(jobs: Sequence[Job], at_once: int, watch: Callable[[Sequence[Job]], None]) -> dict[Path, str]:
    """Run what is not finished; return which failed and why, in one line each: a campaign goes on without them."""
    failed: dict[Path, str] = {}
    prepare(jobs)

    def tell(job: Job, error: CflagError) -> None:
        failed[job.folder] = f"{job.folder.name}: {error}"

    run_all(jobs, at_once, watch, tell)
    return failed


def with_loggers(jobs: Sequence[Job], log: str) -> list[Job]:
    """Let the runs of a campaign be logged elsewhere, too."""
    require_loggers(log)
    return [replace(job, config=replace(job.config, log=log)) for job in jobs]


@dataclass(frozen=True)
class Estimate:
    """What a campaign will take here."""

    runs: int
    finished: int
    seconds: float
    disk_mb: float
    memory_mb: float


def estimate(jobs: Sequence[Job], at_once: int) -> Estimate:
    """Estimate what is left of a campaign, by counting gradients and timing a few of them."""
    left = [job for job in jobs if not RunFolder(job.folder).finished]
    began = [_seconds(job.config) * (1 - job.done() / job.rounds) for job in left]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    disk = sum(_disk_mb(job.config) for job in left)
    return Estimate(len(jobs), len(jobs) - len(left), sum(began) / max(1, at_once), disk, peak * at_once)


def _seconds(config: Config) -> float:
    seconds, tests = _speed(_benchmark_of(config))
    gradients = _gradients(replace(config, seed=0))
    each = config.rounds // config.eval_every + 1
    return seconds * (gradients + FORWARD * tests * each * config.tasks)


def _benchmark_of(config: Config) -> Config:
    """Return the config by which one gradient is timed: the model and data, whatever the method and the dealing."""
    plain = Config()
    same = ("source", "model", "width", "norm", "stem", "image_size", "batch", "tasks", "samples_per_class",
            "test_per_class", "data_dir", "device", "optimizer")  # fmt: skip
    return replace(plain, **{name: getattr(config, name) for name in same}, method="finetune",
                   settings=_settings("finetune"), steps=3, workers=1)  # fmt: skip


def _settings(method: str) -> object:
    from cflag.registry import get_method

    return get_method(method).Settings()


@cache
def _speed(config: Config) -> tuple[float, int]:
    """Time a short round; return the seconds of one gradient evaluation, and how many samples a test has."""
    experiment = Experiment(config)
    server, engine = experiment.server(), LocalEngine(experiment.host(), workers=1)
    server.sizes = engine.sizes(0)
    times = []
    with one_thread():
        for _ in range(2):
            began = time.perf_counter()
            engine.converse(experiment.method.round(server), server)
            times.append((time.perf_counter() - began) / max(1, engine.settle().cost.current))
    return min(times), len(experiment.benchmark.source.test)


@cache
def _gradients(config: Config) -> float:
    """Count the gradient evaluations of a run; they do not depend on the model, so the smallest one will do."""
    small = replace(config, model="mlp", width=1, workers=1, device="cpu")
    if config.method == "target":  # its server trains a model, whatever the model; what clients compute is replay's
        small = replace(small, method="finetune", settings=_settings("finetune"))
    return price(small, "gradients").of(config.rounds) * config.tasks


def _disk_mb(config: Config) -> float:
    """The model twice (checkpoint and result), the clients' memories, the metrics and figures."""
    experiment = _small(_benchmark_of(config))
    model = 2 * experiment.learner.params.nbytes
    sample = experiment.benchmark.train(0, 0)[:1].x.nbytes
    memory = sample * config.memory.per_task * config.tasks * config.clients
    return (model + memory + 3e5 + 1e3 * config.rounds * config.tasks) / 1e6


@cache
def _small(config: Config) -> Experiment:
    return Experiment(config)


def default_out(scale: str) -> Path:
    """Return where a scale's runs are kept; campaigns share them."""
    return Path("runs") / f"reproduce-{scale}"
