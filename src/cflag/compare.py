"""A fair comparison: every method on the same benchmark and seeds, at an equal budget, side by side on all cores."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from cflag.account import Account
from cflag.config import Config, merge, resolve
from cflag.data.schedules.base import own_rounds, total_rounds
from cflag.errors import CflagError, DivergedError, InterruptedRunError, UserError
from cflag.experiment import Experiment
from cflag.learning.synthesis import SynthesisOptions
from cflag.loggers.attach import require_loggers
from cflag.models.lora import LoraOptions
from cflag.process import one_thread
from cflag.results.folder import RunFolder
from cflag.results.result import Result
from cflag.stopping import stop_requests

Budget = Literal["rounds", "gradients", "bytes"]


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    folder: Path
    config: Config

    @cached_property
    def rounds(self) -> int:
        """How many rounds it has in all."""
        return total_rounds(self.config)

    def done(self) -> int:
        """How many of them are finished; asked several times a second, so files of finished runs are not read."""
        folder = RunFolder(self.folder)
        return self.rounds if folder.finished else folder.rounds_done()


def plan(raw: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int], budget: Budget, out: Path) -> list[Job]:
    """Make the list of runs; with a budget of gradients or bytes each method gets the rounds that it pays for."""
    configs = {method: resolve(merge(raw, [("method", method), ("workers", 1)])) for method in methods}
    if budget != "rounds":
        configs = equal_cost(configs, budget)
    return [
        Job(out / f"{method}-{config.rounds}-{seed}", replace(config, seed=seed))
        for method, config in configs.items()
        for seed in seeds
    ]


def equal_cost(
    configs: Mapping[str, Config], budget: Budget, pricer: Callable[[Config, Budget], Price] | None = None
) -> dict[str, Config]:
    """Give every method the rounds that cost as much as the first method's own; `pricer` may know a faster way."""
    pricer = pricer or price
    prices = {method: pricer(config, budget) for method, config in configs.items()}
    first = next(iter(configs))
    total = prices[first].of(configs[first].rounds)
    return {method: replace(config, rounds=prices[method].rounds_for(total)) for method, config in configs.items()}


@dataclass(frozen=True)
class Price:
    """What a task costs, as a mean over tasks: a sum for its beginning and end, and one for each round."""

    task: float
    round: float

    def of(self, rounds: int) -> float:
        """Return the price of a task of so many rounds."""
        return self.task + rounds * self.round

    def rounds_for(self, total: float) -> int:
        """Return how many rounds come closest to a sum."""
        return max(1, round((total - self.task) / self.round))


def stand_in(config: Config, width: int = 1) -> Config:
    """Return a config whose clients compute and send as often as this one's, with a small model: fast to price."""
    small = replace(config, model="mlp", width=width, workers=1, device="cpu")
    if config.backbone:  # how often clients compute does not depend on what they see
        small = replace(small, backbone="", whiten="", trainable="", lora=LoraOptions(), image_size=8)
    made = config.settings
    if isinstance(made, SynthesisOptions):  # how well samples are made does not change how many clients compute on
        small = replace(small, settings=replace(made, generator_steps=1, student_steps=1, batch=made.samples))
    return small


def price(config: Config, budget: Budget) -> Price:
    """Measure what a method's tasks cost by trying two rounds of each.

    Two, because the first may find the model already sent, by a question at the end of the task before.
    """
    if own_rounds(config):
        return _price_of_clocks(config, budget)
    session = Experiment(config).session()

    def cost_of(*acts: Callable[[], object]) -> float:
        for act in acts:
            act()
        return _spent(session.engine.settle(), budget)

    prices = []
    with one_thread():
        for task in range(config.tasks):
            session.enter(task)
            first = cost_of(session.begin_task, session.round)
            a_round = cost_of(session.round)
            end = cost_of(session.end_task, session.prepare_eval)
            prices.append(Price(first - a_round + end, a_round))
    return Price(fmean(p.task for p in prices), fmean(p.round for p in prices))


def _price_of_clocks(config: Config, budget: Budget) -> Price:
    """Measure the same where clients have clocks of their own: of whole short runs, of two and of four rounds a task.

    What a round costs depends on who is there, but one round more of every task costs the same again and again.
    """
    short, longer = (replace(config, rounds=rounds) for rounds in (2, 4))
    two, four = _whole(short, budget), _whole(longer, budget)
    if four <= two or total_rounds(short) == total_rounds(longer):
        raise UserError(
            f"an equal budget of {budget} needs a schedule whose length 'rounds' decides, and with "
            f"'{config.schedule.kind}' more rounds cost no more; compare at equal rounds"
        )
    return Price((2 * two - four) / config.tasks, (four - two) / 2 / config.tasks)


def _whole(config: Config, budget: Budget) -> float:
    """Return what a run costs from its beginning to its end, but for tests along the way, which are not counted."""
    session = Experiment(config).session()
    with one_thread():
        for done in range(session.plan.total):
            session.play(done)
            if session.is_milestone:
                session.prepare_eval()
    return _spent(session.engine.settle(), budget)


def _spent(account: Account, budget: Budget) -> float:
    if budget == "bytes":
        return account.bytes_up + account.bytes_down
    return account.cost.current + account.cost.memory


def prepare(jobs: Sequence[Job]) -> None:
    """Make the runs' folders; those that are there must belong to the same comparison."""
    for log in dict.fromkeys(job.config.log for job in jobs):
        require_loggers(log)
    for job in jobs:
        if not (job.folder / "config.toml").exists():
            RunFolder.create(job.folder, job.config)
            continue
        folder = RunFolder.open(job.folder)
        if folder.config().numbers() != job.config.numbers():
            raise UserError(f"{job.folder} holds a run with other settings; choose another --out")
        folder.log_to(job.config.log, job.config.plugins)


def stop_at_failure(job: Job, error: CflagError) -> None:
    """What a comparison does about a run that fails: a table with a hole in it would be no table."""
    raise error


def run_all(
    jobs: Sequence[Job],
    at_once: int,
    watch: Callable[[Sequence[Job]], None],
    failed: Callable[[Job, CflagError], None] = stop_at_failure,
) -> list[Result]:
    """Run what is not finished, several at once, each in a process of its own; return the results there are."""
    waiting = [job for job in jobs if not RunFolder(job.folder).finished]
    running: dict[Job, subprocess.Popen[str]] = {}
    with stop_requests() as stopped, _ended(running):
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job] = _start(job)
            time.sleep(0.2)
            watch(jobs)
            if stopped():  # asked first: the runs got the same Ctrl-C, which is no failure of theirs
                raise InterruptedRunError("stopped; all finished rounds are saved; repeat the command to go on")
            for job, process in list(running.items()):
                if process.poll() is None:
                    continue
                error = _failure(job, running.pop(job))
                if error is not None:
                    failed(job, error)
    return [Result.load(job.folder) for job in jobs if RunFolder(job.folder).finished]


def _start(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cflag.cli", "run", "--quiet", "--resume", str(job.folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _failure(job: Job, process: subprocess.Popen[str]) -> CflagError | None:
    """Return what a run that has ended died of."""
    _, errors = process.communicate()
    if not process.returncode:
        return None
    last = (errors.strip().splitlines() or ["it said nothing"])[-1].removeprefix("cflag: ")
    kind = DivergedError if process.returncode == DivergedError.exit_code else CflagError
    return kind(f"{job.config.method} with seed {job.config.seed} failed: {last}")


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
