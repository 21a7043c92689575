"""The spec of a benchmark: what may be known of it without any of its samples.

A server that has no data plans with it, and clients that should work together compare theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cflag.data.heads import Heads
from cflag.data.samples import Samples


@dataclass(frozen=True)
class Spec:
    """The shape of a sample, the classes of each task, and how raw samples become a model's inputs."""

    shape: tuple[int, ...]
    dtype: str
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    tasks: tuple[tuple[int, ...], ...]
    """The classes of each task, as output numbers."""
    by_task: bool
    """Whether a sample's task is known when it is answered: the task-incremental scenario."""
    clients: int
    origin: str = ""
    """Of features, the digest of the backbone that made them: clients with other weights are of another benchmark."""
    class_names: tuple[str, ...] = ()
    """What the classes are called; empty where nobody knows."""
    label: tuple[int, ...] = ()
    """The shape of a label: () for one number, (k,) for a row of them."""
    label_mean: tuple[float, ...] = (0.0,)
    """What is taken from numbers to predict before a model learns them."""
    label_std: tuple[float, ...] = (1.0,)
    """What they are divided by."""
    columns: tuple[str, ...] = ()
    """What the numbers of a sample are called, where it was a row of a table."""

    @cached_property
    def heads(self) -> Heads:
        """Which outputs belong to which task."""
        own = torch.zeros(len(self.tasks), self.classes, dtype=torch.bool)
        for index, classes in enumerate(self.tasks):
            own[index, list(classes)] = True
        return Heads(own, self.by_task)

    def blank(self) -> Samples:
        """Return one sample of nothing, to try a model on."""
        x = torch.zeros((1, *self.shape), dtype=getattr(torch, self.dtype))
        return Samples(x, torch.full((1, *self.label), self.tasks[0][0]), torch.zeros(1, dtype=torch.long))

    def normalise(self, x: Tensor) -> Tensor:
        """Turn raw samples into what a model takes: bytes to [0, 1], then zero mean and unit variance."""
        if x.dtype == torch.uint8:
            x = x.float() / 255
        if self.mean == (0.0,) and self.std == (1.0,):
            return x
        place = (x.dim(), x.dtype, x.device)
        if place not in self._statistics:
            shape = (1, -1, *[1] * (x.dim() - 2))
            mean, std = (torch.tensor(v, dtype=x.dtype, device=x.device).view(shape) for v in (self.mean, self.std))
            self._statistics[place] = mean, std
        mean, std = self._statistics[place]
        return (x - mean) / std

    @property
    def scales_labels(self) -> bool:
        """Whether a model learns labels on another scale than their own."""
        return self.label_mean != (0.0,) or self.label_std != (1.0,)

    def targets(self, y: Tensor) -> Tensor:
        """Return labels as a model learns them."""
        if not self.scales_labels:
            return y
        mean, std = self._label_scale(y.device)
        return ((y.double() - mean) / std).to(y.dtype)

    def own_unit(self, values: Tensor) -> Tensor:
        """Return a model's answers, or labels as it learns them, in the labels' own unit."""
        if not self.scales_labels:
            return values
        mean, std = self._label_scale(values.device)
        return values.double() * std + mean

    def _label_scale(self, device: torch.device) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(v, dtype=torch.float64, device=device) for v in (self.label_mean, self.label_std))
        return mean, std

    @cached_property
    def _statistics(self) -> dict[tuple[int, torch.dtype, torch.device], tuple[Tensor, Tensor]]:
        """The mean and standard deviation, ready to be broadcast over samples."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON values."""
        lists: dict[str, Any] = {"shape": list(self.shape), "mean": list(self.mean), "std": list(self.std)}
        plain = {"dtype": self.dtype, "classes": self.classes, "by_task": self.by_task, "clients": self.clients}
        plain |= {"origin": self.origin} if self.origin else {}
        lists |= {"class_names": list(self.class_names)} if self.class_names else {}
        plain |= {"label": list(self.label)} if self.label else {}
        if self.scales_labels:
            lists |= {"label_mean": list(self.label_mean), "label_std": list(self.label_std)}
        lists |= {"columns": list(self.columns)} if self.columns else {}
        return {**lists, **plain, "tasks": [list(classes) for classes in self.tasks]}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Spec:
        """Take back what `to_dict` returned."""
        return cls(
            shape=tuple(raw["shape"]),
            dtype=raw["dtype"],
            classes=raw["classes"],
            mean=tuple(raw["mean"]),
            std=tuple(raw["std"]),
            tasks=tuple(tuple(classes) for classes in raw["tasks"]),
            by_task=raw["by_task"],
            clients=raw["clients"],
            origin=str(raw.get("origin", "")),
            class_names=tuple(str(name) for name in raw.get("class_names", ())),
            label=tuple(raw.get("label", ())),
            label_mean=tuple(raw.get("label_mean", (0.0,))),
            label_std=tuple(raw.get("label_std", (1.0,))),
            columns=tuple(str(name) for name in raw.get("columns", ())),
        )
