"""Tasks of different classes; `task` and `class` differ only in which outputs may answer.

Which classes a task has is said by the options, else by the source, else they are split into tasks of (nearly) equal
size.
"""

from __future__ import annotations

import numpy as np

from cflag import registry
from cflag.data.options import BenchmarkOptions
from cflag.data.partitions.base import has_own_data
from cflag.data.scenarios.base import Task, TaskSequence, check_known
from cflag.data.source import Source
from cflag.errors import UserError, unknown
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
    if options.task_classes:
        return tuple(Task(classes) for classes in _listed_classes(source, options))
    if source.train.task is not None and source.test.task is not None:
        return _told_classes(source, options)
    if options.tasks > source.classes:
        raise UserError(f"tasks = {options.tasks} is more than the {source.classes} classes of {source.name}")
    order = np.arange(source.classes)
    if options.class_order == "seeded":
        order = stream(options.seed, "class order").permutation(order)
    return tuple(Task(tuple(int(c) for c in part)) for part in np.array_split(order, options.tasks))


def _listed_classes(source: Source, options: BenchmarkOptions) -> list[tuple[int, ...]]:
    """Return the classes that the options list for each task, as numbers."""
    if options.tasks != len(options.task_classes):
        raise UserError(f"tasks = {options.tasks}, but task_classes lists {len(options.task_classes)}")
    tasks = [tuple(_number(source, one) for one in listed) for listed in options.task_classes]
    of: dict[int, int] = {}
    for task, classes in enumerate(tasks, 1):
        if not classes:
            raise UserError(f"tasks: task {task} has no class")
        for label in classes:
            if label in of:
                raise UserError(f"tasks: class {_name(source, label)} is in task {of[label]} and again in task {task}")
            of[label] = task
    return tasks


def _number(source: Source, given: int | str) -> int:
    if isinstance(given, str):
        if given not in source.class_names:
            raise unknown(f"class of {source.name}", given, source.class_names)
        return source.class_names.index(given)
    if not 0 <= given < source.classes:
        raise UserError(f"tasks: there is no class {given} in {source.name}, which has 0..{source.classes - 1}")
    return given


def _name(source: Source, label: int) -> str:
    return f"'{source.class_names[label]}'" if source.class_names else str(label)


def _told_classes(source: Source, options: BenchmarkOptions) -> tuple[Task, ...]:
    """Task t has the samples that say t, and their classes."""
    if has_own_data(registry.get("partition", options.partition)):
        raise UserError(
            "clients with data of their own do not know the others' classes of a task: list them, "
            "as in tasks = [[0, 1], [2, 3, 4]]"
        )
    check_known(source, options)
    task = source.train.task
    assert task is not None
    classes = [tuple(sorted(set(source.train.y[task == t].tolist()))) for t in range(options.tasks)]
    return tuple(Task(some, marked=True) for some in classes)
