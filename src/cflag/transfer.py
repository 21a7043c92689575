"""Total transfer as Powder has it (Piao et al., ICML 2024): a run beside clients that learn each task alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cflag.data.schedules.base import NEVER, Plan, Schedule
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.process import one_thread
from cflag.results import measures
from cflag.results.folder import RunFolder
from cflag.results.measures import Outcomes, Table, masked
from cflag.results.result import Result


def total_transfer(folder: str | Path, **parts: Any) -> float:
    """Return the total transfer of a finished run, from -2 to 2.

    Every client learns each of its tasks once more, alone: with its own samples, in as many rounds, with the run's
    method and settings, from the initial model. Give a source, model or loss of your own again.
    """
    begun = RunFolder.open(Path(folder))
    if not begun.finished:
        raise UserError(f"{folder} is not finished; go on with: cflag run --resume {folder}")
    result, config = begun.result(), begun.config()
    if not result.client_matrices:
        raise UserError(f"{folder} knows nothing of single clients (secure or private), which total transfer needs")
    if config.problem != "classes":
        raise UserError(f"{folder}: total transfer is of accuracies, and problem = '{config.problem}' has none")
    experiment = Experiment(config, **parts)
    plan = masked(experiment.benchmark.schedule.plan, experiment.benchmark.has)
    found = measures.total_transfer(_outcomes(result, plan), alone(experiment, plan))
    assert found is not None  # a finished run has a milestone
    return found


def alone(experiment: Experiment, plan: Plan) -> Table:
    """Return the accuracy of each client on each of its tasks, (clients, tasks), after it learned that task alone."""
    reached = np.full(plan.first.shape, np.nan)
    usual = experiment.benchmark.schedule
    try:
        with one_thread():
            for client, task in np.argwhere(plan.first >= 0).tolist():
                rounds = sum(int(plan.now(done)[client] == task) for done in range(plan.total))
                experiment.benchmark.schedule = _lone(usual, client, task, rounds)
                reached[client, task] = _learned(experiment, client, task)
    finally:
        experiment.benchmark.schedule = usual
    return reached


def _lone(usual: Schedule, client: int, task: int, rounds: int) -> Schedule:
    """Return a schedule of the same kind in which one client has one task, and nobody else has any."""
    kind: type[Schedule] = type("Alone", (type(usual),), {"together": False})
    first = np.full((usual.frame.clients, usual.frame.tasks), NEVER)
    last = first.copy()
    first[client, task], last[client, task] = 0, rounds - 1
    schedule = kind(usual.settings, usual.frame)
    schedule.plan = Plan(first, last)
    return schedule


def _learned(experiment: Experiment, client: int, task: int) -> float:
    """Return a client's accuracy on a task's held-out samples after its last round; NaN where it has none of them."""
    session = experiment.session()
    for done in range(session.plan.total):
        session.play(done)
    counts = session.evaluate(range(len(experiment.spec.tasks)))[client, task].tolist()
    known, unknown, total = counts
    return (known if experiment.spec.by_task else unknown) / total if total else np.nan


def _outcomes(result: Result, plan: Plan) -> Outcomes:
    """Return the tests of a finished run, as far as the result has them."""
    after = np.array(result.client_matrices, dtype=np.float64).transpose(1, 0, 2)  # None becomes NaN
    return Outcomes(np.array(result.milestones) - 1, after, np.full(plan.first.shape, np.nan), plan)
