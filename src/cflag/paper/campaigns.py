"""Campaigns: the runs behind each table and figure of the paper.

A campaign is a list of cells; a cell is one benchmark, the methods that are run on it, and where its numbers go. Cells
that two campaigns share are run once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cflag.compare import Job
from cflag.config import load_raw, merge, resolve
from cflag.errors import unknown

Scale = Literal["lite", "cpu", "paper"]
SCALES: tuple[Scale, ...] = ("lite", "cpu", "paper")
SEEDS = (1234, 1235, 1236)
IID, NON_IID = 1e5, 0.1
SOURCES = ("cifar10", "cifar100", "tiny-imagenet")
NAMES = {
    "cflag": "C-FLAG",
    "finetune": "Fine-FL",
    "ewc": "EWC-FL",
    "nccl": "NCCL-FL",
    "replay": "Erg-FL",
    "fedtrack": "FedTrack",
    "lwf": "LwF-FL",
    "icarl": "iCaRL-FL",
    "target": "TARGET",
}
"""What the paper calls our methods."""
TASK_METHODS = ("finetune", "ewc", "nccl", "fedtrack", "replay", "cflag")
SWEPT = ("clients", "memory.sample", "memory.per_task")
CLASS_METHODS = ("finetune", "ewc", "lwf", "icarl", "target", "nccl", "fedtrack", "cflag")


@dataclass(frozen=True)
class Cell:
    """One benchmark of a campaign and the methods that are run on it."""

    group: str
    """The column of a table, the panel of a figure."""
    source: str
    settings: dict[str, Any]
    methods: tuple[str, ...] = ("cflag",)
    at: float | None = None
    """Where in a sweep it stands."""

    def raw(self, scale: Scale) -> dict[str, Any]:
        """Return the config's values at a scale; shares of the memory become samples."""
        scenario = "-class" if self.settings.get("scenario") == "class" else ""
        raw = load_raw(f"{self.source}{scenario}-{scale}")
        settings, limit = dict(self.settings), raw["memory"]["per_task"]
        for key in ("memory.sample", "memory.per_task"):
            if key in settings:  # given for the paper's buffer of 400
                settings[key] = max(1, round(settings[key] * limit / 400))
        if "memory.per_task" in settings:
            settings["memory.sample"] = max(1, settings["memory.per_task"] // 2)
        return merge(raw, settings.items())

    def _telling(self, scale: Scale) -> dict[str, Any]:
        """Return the settings without those of a sweep where it passes through the preset's own: the same runs."""
        plain = replace(self, settings={k: v for k, v in self.settings.items() if k not in SWEPT})
        return plain.settings if resolve(plain.raw(scale)) == resolve(self.raw(scale)) else self.settings

    def jobs(self, scale: Scale, seeds: Sequence[int], out: Path) -> list[Job]:
        """Return a run for each method and seed, in a folder that is named after what it is."""
        raw, jobs = self.raw(scale), []
        parts = [f"{key.rpartition('.')[2]}={value:g}" if isinstance(value, float | int) else str(value)
                 for key, value in sorted(self._telling(scale).items())]  # fmt: skip
        for method in self.methods:
            config = resolve(merge(raw, [("method", method), ("workers", 1)]))
            for seed in seeds:
                folder = out / "_".join([self.source, *parts, method, str(seed)])
                jobs.append(Job(folder, replace(config, seed=seed)))
        return jobs


@dataclass(frozen=True)
class Campaign:
    """A table or figure of the paper."""

    name: str
    title: str
    kind: Literal["table", "tasks", "sweep", "gamma"]
    cells: tuple[Cell, ...]
    axis: str = ""

    def jobs(self, scale: Scale, seeds: Sequence[int], out: Path) -> list[Job]:
        """Return all runs, each once."""
        return list(dict.fromkeys(job for cell in self.cells for job in cell.jobs(scale, seeds, out)))


def _table(sources: Sequence[str], methods: tuple[str, ...], **settings: Any) -> tuple[Cell, ...]:
    return tuple(Cell(source, source, settings, methods) for source in sources)


def _sweep(
    sources: Sequence[tuple[str, float]], key: str, values: Sequence[float], methods: tuple[str, ...] = ("cflag",)
) -> tuple[Cell, ...]:
    return tuple(
        Cell(_group(source, zeta), source, {"zeta": zeta, key: value}, methods, value)
        for source, zeta in sources
        for value in values
    )


def _group(source: str, zeta: float) -> str:
    return f"{source}-{'iid' if zeta == IID else 'noniid'}"


def _heterogeneity(methods: tuple[str, ...], sources: Sequence[str]) -> tuple[Cell, ...]:
    return tuple(Cell(s, s, {"zeta": zeta}, methods, zeta) for s in sources for zeta in (NON_IID, 1.0, IID))


BOTH = (("cifar10", NON_IID), ("cifar100", NON_IID))
CAMPAIGNS: dict[str, Campaign] = {
    c.name: c
    for c in (
        Campaign("table-iid", "Task-incremental, IID", "table", _table(SOURCES, TASK_METHODS, zeta=IID)),
        Campaign("table-noniid", "Task-incremental, non-IID (ζ = 0.1)", "table",
                 _table(SOURCES, TASK_METHODS, zeta=NON_IID)),
        Campaign("table-class-iid", "Class-incremental, IID", "table",
                 _table(SOURCES[:2], CLASS_METHODS, zeta=IID, scenario="class")),
        Campaign("table-class-noniid", "Class-incremental, non-IID (ζ = 0.1)", "table",
                 _table(SOURCES[:2], CLASS_METHODS, zeta=NON_IID, scenario="class")),
        Campaign("table-clients", "C-FLAG with more clients", "sweep",
                 _sweep([("cifar10", IID), ("cifar100", NON_IID)], "clients", (5, 10, 15, 25, 50)), "clients"),
        Campaign("figure-tasks", "Accuracy after each task, IID", "tasks",
                 _table(SOURCES[:2], TASK_METHODS, zeta=IID)),
        Campaign("figure-class-tasks", "Accuracy after each task, class-incremental", "tasks",
                 tuple(Cell(_group("cifar10", z), "cifar10", {"zeta": z, "scenario": "class"}, CLASS_METHODS)
                       for z in (IID, NON_IID))),
        Campaign("figure-heterogeneity", "Heterogeneity: ζ = 0.1, 1 and 1e5", "sweep",
                 _heterogeneity(("cflag", "ewc", "fedtrack"), SOURCES[:2]), "ζ"),
        Campaign("figure-gamma", "Γ(t) for varying heterogeneity", "gamma", _heterogeneity(("cflag",), SOURCES[:1])),
        Campaign("figure-clients", "Number of clients, non-IID", "sweep", _sweep(BOTH, "clients", (5, 10, 15)),
                 "clients"),
        Campaign("figure-memory-sample", "Memory sample size, buffer 400, non-IID", "sweep",
                 _sweep(BOTH, "memory.sample", (50, 150, 200, 300)), "samples drawn a round (of 400)"),
        Campaign("figure-memory-size", "Memory size, half of it sampled", "sweep",
                 _sweep([("cifar10", IID), ("cifar10", NON_IID), ("cifar100", IID), ("cifar100", NON_IID)],
                        "memory.per_task", (100, 200, 300, 400, 500, 600)), "m₀"),
    )
}  # fmt: skip


def find(name: str) -> Campaign:
    """Return the campaign of that name."""
    if name not in CAMPAIGNS:
        raise unknown("table or figure", name, CAMPAIGNS)
    return CAMPAIGNS[name]


def chosen(campaign: Campaign, methods: Sequence[str], sources: Sequence[str]) -> Campaign:
    """Return a campaign cut down to some methods and data sets; nothing named means all."""
    for name in methods:
        if not any(name in cell.methods for cell in campaign.cells):
            raise unknown(f"method of {campaign.name}", name, {m for cell in campaign.cells for m in cell.methods})
    for name in sources:
        if all(name != cell.source for cell in campaign.cells):
            raise unknown(f"source of {campaign.name}", name, {cell.source for cell in campaign.cells})
    cells = tuple(
        replace(cell, methods=tuple(m for m in cell.methods if not methods or m in methods))
        for cell in campaign.cells
        if not sources or cell.source in sources
    )
    return replace(campaign, cells=cells)
