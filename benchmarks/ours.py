"""cflag's engine as a contestant: a round as `Experiment` does it, without test and checkpoint."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

from benchmarks.contest import take_turns
from benchmarks.workloads import EVERY, Workload
from cflag.config import flatten, merge, resolve
from cflag.data.source import Source
from cflag.engines.local import LocalEngine
from cflag.experiment import Experiment
from cflag.process import one_thread
from cflag.session import Session


def source(workload: Workload) -> Source:
    """Return the workload's data as a source; C-FLAG's past has as many samples as its present."""
    x, y = workload.data()
    if workload.method == "cflag":  # the first half of the classes are the first task
        half = workload.classes // 2
        x, y = x.repeat(2, *[1] * (x.dim() - 1)), (y % half).repeat(2)
        y[len(y) // 2 :] += half
    few = slice(0, None, max(1, len(y) // (11 * workload.classes)) | 1)  # held out: some of each class, never used
    return Source.from_tensors((x, y), (x[few], y[few]))


def open_experiment(workload: Workload, data: Source) -> Experiment:
    """Return the workload as an experiment of ours."""
    model = workload.network() if workload.model == "custom" else None
    return Experiment(resolve(merge({}, flatten(workload.settings()))), data, model)


def main(name: str) -> None:
    """Bring the workload to the task that is timed, then do rounds."""
    workload = EVERY[name]
    data, started = source(workload), time.perf_counter()
    experiment = open_experiment(workload, data)
    opened = time.perf_counter() - started
    with ready(experiment, workload, 2) as session:
        parameters = session.server.params.numel()
        one_round = partial(do_round, session, workload)
        take_turns(one_round, session.engine.peak_mb, open_seconds=opened, parameters=parameters)


@contextmanager
def ready(experiment: Experiment, workload: Workload, processes: int) -> Iterator[Session]:
    """Hand out a session at the task that is timed, with its clients in so many processes."""
    with one_thread():
        session = experiment.session(LocalEngine(experiment.host(), processes))
        try:
            to_the_timed_task(session, workload)
            yield session
        finally:
            session.engine.close()


def do_round(session: Session, workload: Workload) -> None:
    """Do one round as `session.py` does, without test and checkpoint."""
    session.round()
    session.engine.settle()
    if workload.method == "finetune":  # no client has a state: lanes are dealt anew, as after a checkpoint
        cast("LocalEngine", session.engine).deal_anew()
    session.server.round += 1


def to_the_timed_task(session: Session, workload: Workload) -> None:
    """Go to the first task; with a memory, to the second, after the first was remembered."""
    session.enter(0)
    if workload.method == "cflag":
        session.end_task()
        session.enter(1)
        session.engine.settle()


if __name__ == "__main__":
    main(sys.argv[1])
