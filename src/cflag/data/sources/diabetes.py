"""The diabetes patients that come with scikit-learn: a regression without any download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cflag.registry import register

if TYPE_CHECKING:
    from cflag.data.source import Source

AGES = 3
"""The groups by age, as many in each: the tasks."""


@register("source", "diabetes", "442 diabetes patients, regression: how far the disease is a year later; built in")
def diabetes(data_dir: Path) -> Source:
    """Return ten measurements (n, 10) of patients and the disease a year later, in hundreds, by age from the youngest.

    Every fourth patient of an age group is held out. Measurements are divided by their spread over all patients.
    """
    import torch
    from sklearn.datasets import load_diabetes

    from cflag.data.source import Source

    x, y = load_diabetes(return_X_y=True)
    order = np.argsort(x[:, 0], kind="stable")
    task = np.empty(len(x), np.int64)
    for group, members in enumerate(np.array_split(order, AGES)):
        task[members] = group
    held_out = np.zeros(len(x), np.bool_)
    for group in range(AGES):
        held_out[np.flatnonzero(task == group)[3::4]] = True
    features = torch.from_numpy(
        (x * np.sqrt(len(x))).astype(np.float32)
    )  # as they come, each column's squares sum to 1
    numbers, tasks = torch.from_numpy((y / 100).astype(np.float32)), torch.from_numpy(task)
    train, test = torch.from_numpy(~held_out), torch.from_numpy(held_out)
    halves = ((features[train], numbers[train]), (features[test], numbers[test]))
    return Source.from_tensors(*halves, "diabetes", (tasks[train], tasks[test]), problem="regression")
