"""The classes split into tasks of (nearly) equal size; `task` and `class` differ only in which outputs may answer."""

from __future__ import annotations

import numpy as np

from cflag.data.options import BenchmarkOptions
from cflag.data.scenarios.base import Task, TaskSequence
from cflag.data.source import Source
from cflag.errors import UserError
from cflag.problems.base import find
from cflag.registry import register
from cflag.rng import stream


@register("scenario", "task", "task-incremental: tasks of different classes; tests tell the task of a sample")
def task_incremental(source: Source, options: BenchmarkOptions) -> TaskSequence:
    """Split the classes; only a task's own outputs answer for its samples."""
    return TaskSequence(_split_classes(source, options), by_task=True)


@register("scenario", "class", "class-incremental: tasks of different classes; tests do not tell the task")
def class_incremental(source: Source, options: BenchmarkOptions) -> TaskSequence:
    """Split the classes; the outputs of all classes seen so far answer."""
    return TaskSequence(_split_classes(source, options), by_task=False)


def _split_classes(source: Source, options: BenchmarkOptions) -> tuple[Task, ...]:
    if not find(source.problem).splits:
        raise UserError(
            f"scenario '{options.scenario}' gives tasks classes of their own, and problem = '{source.problem}' has "
            "none to give: use scenario = 'domain', whose tasks share all outputs"
        )
    if options.tasks > source.classes:
        raise UserError(f"tasks = {options.tasks} is more than the {source.classes} classes of {source.name}")
    order = np.arange(source.classes)
    if options.class_order == "seeded":
        order = stream(options.seed, "class order").permutation(order)
    return tuple(Task(tuple(int(c) for c in part)) for part in np.array_split(order, options.tasks))
