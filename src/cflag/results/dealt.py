"""Which client got how many samples of which class: written down when a run starts, so that reports need no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cflag.data.benchmark import Benchmark

ClassCounts = Sequence[Mapping[int, Sequence[int]]]
"""For each task its classes, and for each class the training samples that clients 0, 1, ... have of it."""


def class_counts(benchmark: Benchmark) -> ClassCounts:
    """Count the training samples of each task, class and client."""
    labels = benchmark.source.train.y.numpy()
    counted = []
    for task, clients in zip(benchmark.tasks, benchmark._train, strict=True):
        each = [np.bincount(labels[indices], minlength=benchmark.source.classes) for indices in clients]
        counted.append({label: [int(counts[label]) for counts in each] for label in task.classes})
    return counted
