"""`cflag reproduce`: run what a table or figure needs and is not there yet; estimate beforehand what that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cflag.config import Config
from cflag.errors import CflagError
from cflag.experiment import Experiment
from cflag.jobs import Job, prepare, run_all
from cflag.learning.options import SynthesisOptions
from cflag.loggers.attach import require_loggers
from cflag.pricing import price, stand_in
from cflag.process import one_thread, peak_mb
from cflag.results.folder import RunFolder

FORWARD = 1 / 3
"""What testing a sample costs, in gradient evaluations."""


def carry_out(jobs: Sequence[Job], at_once: int, watch: Callable[[Sequence[Job]], None]) -> dict[Path, str]:
    """Run what is not finished; return one line for each run that failed: a campaign goes on without it."""
    failed: dict[Path, str] = {}
    prepare(jobs)

    def tell(job: Job, error: CflagError) -> None:
        failed[job.folder] = f"{job.folder.name}: {error}"

    run_all(jobs, at_once, watch, tell)
    return failed


def with_loggers(jobs: Sequence[Job], log: str, plugins: Sequence[str] = ()) -> list[Job]:
    """Return the runs with loggers attached, which may be a plugin's."""
    require_loggers(log)
    return [replace(job, config=replace(job.config, log=log, plugins=tuple(plugins))) for job in jobs]


@dataclass(frozen=True)
class Estimate:
    """What a campaign takes on this machine."""

    runs: int
    finished: int
    seconds: float
    disk_mb: float
    memory_mb: float


def estimate(jobs: Sequence[Job], at_once: int) -> Estimate:
    """Estimate what is left of a campaign, by counting gradients and timing a few of them."""
    left = [job for job in jobs if not RunFolder(job.folder).finished]
    seconds = [_seconds(job.config) * (1 - job.done() / job.rounds) for job in left]
    peak = peak_mb()
    disk = sum(_disk_mb(job.config) for job in left)
    return Estimate(len(jobs), len(jobs) - len(left), sum(seconds) / max(1, at_once), disk, peak * at_once)


def _seconds(config: Config) -> float:
    seconds, tests = _speed(_benchmark_of(config))
    gradients = _gradients(replace(config, seed=0)) + _synthesis(config)
    each = config.rounds // config.eval_every + 1
    return seconds * (gradients + FORWARD * tests * each * config.tasks)


def _benchmark_of(config: Config) -> Config:
    """Return the config that one gradient is timed with: same model and data, whatever the method and partition."""
    plain = Config()
    same = ("source", "backbone", "half_features", "whiten", "trainable", "lora", "model", "width", "norm", "stem",
            "image_size", "batch", "tasks", "samples_per_class", "test_per_class", "data_dir", "device",
            "optimizer")  # fmt: skip
    return replace(plain, **{name: getattr(config, name) for name in same}, method="finetune",
                   settings=_settings("finetune"), steps=3, workers=1)  # fmt: skip


def _settings(method: str) -> object:
    from cflag import registry

    return registry.get("method", method).Settings()


@cache
def _speed(config: Config) -> tuple[float, int]:
    """Time a short round; return the seconds of one gradient evaluation, and how many samples a test has."""
    experiment = Experiment(config)
    session = experiment.session()
    session.enter(0)
    times = []
    with one_thread():
        for _ in range(2):
            began = time.perf_counter()
            session.round()
            times.append((time.perf_counter() - began) / max(1, session.engine.settle().cost.current))
    return min(times), len(experiment.benchmark.source.test)


@cache
def _gradients(config: Config) -> float:
    """Count the gradient evaluations of a run's clients; they do not depend on the model, so the smallest will do."""
    return price(stand_in(config), "gradients").of(config.rounds) * config.tasks


def _synthesis(config: Config) -> float:
    """Count the gradient evaluations with which a server makes samples: none but for TARGET.

    Before each task but the first, every sample passes the teacher and the student once per generator step; then the
    student learns from as many samples per student step. The generator itself is small and not counted.
    """
    made = config.settings
    if not isinstance(made, SynthesisOptions):
        return 0.0
    return (config.tasks - 1) * made.samples * (2 * made.generator_steps + made.student_steps)


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
