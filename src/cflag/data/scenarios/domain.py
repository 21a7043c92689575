"""All classes in every task; the source says which task each of its samples is of."""

from __future__ import annotations

from cflag import registry
from cflag.data.options import BenchmarkOptions
from cflag.data.partitions.base import has_own_data
from cflag.data.scenarios.base import Task, TaskSequence, check_known
from cflag.data.source import Source
from cflag.errors import UserError
from cflag.registry import register


@register("scenario", "domain", "every task has all classes; the source says which task a sample is of: sea, led, ...")
def domain(source: Source, options: BenchmarkOptions) -> TaskSequence:
    """Task t has the samples that say t; those of tasks beyond `tasks` are left out."""
    if source.train.task is None or source.test.task is None:
        raise UserError(
            "scenario 'domain' wants a source that says which task a sample is of, such as 'sea'; "
            f"{source.name} does not"
        )
    if not has_own_data(registry.get("partition", options.partition)):
        check_known(source, options)
    everything = Task(tuple(range(source.classes)), marked=True)
    return TaskSequence((everything,) * options.tasks, by_task=False)
