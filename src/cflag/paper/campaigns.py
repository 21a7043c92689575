"""Campaigns: the runs behind each table and figure of the paper, and behind our own questions to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cflag.errors import unknown
from cflag.paper.cells import DATA_SETS, IID, NON_IID, Campaign, Cell
from cflag.paper.pretrained import PRETRAINED
from cflag.paper.studies import STUDIES
from cflag.paper.variants import CLASS_ROWS, PAPERS_OWN, TASK_ROWS


def _table(sources: Sequence[str], rows: tuple[str, ...], **settings: Any) -> tuple[Cell, ...]:
    return tuple(Cell(source, source, settings, rows) for source in sources)


def _sweep(sources: Sequence[tuple[str, float]], key: str, values: Sequence[float]) -> tuple[Cell, ...]:
    return tuple(
        Cell(_group(source, zeta), source, {"zeta": zeta, key: value}, at=value)
        for source, zeta in sources
        for value in values
    )


def _group(source: str, zeta: float) -> str:
    return f"{source}-{'iid' if zeta == IID else 'noniid'}"


def _heterogeneity(rows: tuple[str, ...], sources: Sequence[str]) -> tuple[Cell, ...]:
    return tuple(Cell(s, s, {"zeta": zeta}, rows, zeta) for s in sources for zeta in (NON_IID, 1.0, IID))


BOTH = (("cifar10", NON_IID), ("cifar100", NON_IID))
PAPERS: dict[str, Campaign] = {
    c.name: c
    for c in (
        Campaign("table-iid", "Task-incremental, IID", "table", _table(DATA_SETS, TASK_ROWS, zeta=IID)),
        Campaign("table-noniid", "Task-incremental, non-IID (ζ = 0.1)", "table",
                 _table(DATA_SETS, TASK_ROWS, zeta=NON_IID)),
        Campaign("table-class-iid", "Class-incremental, IID", "table",
                 _table(DATA_SETS[:2], CLASS_ROWS, zeta=IID, scenario="class")),
        Campaign("table-class-noniid", "Class-incremental, non-IID (ζ = 0.1)", "table",
                 _table(DATA_SETS[:2], CLASS_ROWS, zeta=NON_IID, scenario="class")),
        Campaign("table-clients", "More clients, up to 50", "sweep",
                 _sweep([("cifar10", IID), ("cifar100", NON_IID)], "clients", (5, 10, 15, 25, 50)), "clients"),
        Campaign("figure-tasks", "Accuracy after each task, IID", "tasks",
                 _table(DATA_SETS[:2], TASK_ROWS, zeta=IID)),
        Campaign("figure-class-tasks", "Accuracy after each task, class-incremental", "tasks",
                 tuple(Cell(_group("cifar10", z), "cifar10", {"zeta": z, "scenario": "class"}, CLASS_ROWS)
                       for z in (IID, NON_IID))),
        Campaign("figure-heterogeneity", "Heterogeneity: ζ = 0.1, 1 and 1e5", "sweep",
                 _heterogeneity((PAPERS_OWN, "ewc", "fedtrack"), DATA_SETS[:2]), "ζ"),
        Campaign("figure-gamma", "Γ(t) for varying heterogeneity", "gamma",
                 _heterogeneity((PAPERS_OWN,), DATA_SETS[:1])),
        Campaign("figure-clients", "Number of clients, non-IID", "sweep", _sweep(BOTH, "clients", (5, 10, 15)),
                 "clients"),
        Campaign("figure-memory-sample", "Memory sample size, buffer 400, non-IID", "sweep",
                 _sweep(BOTH, "memory.sample", (50, 150, 200, 300)), "samples drawn per round (of 400)"),
        Campaign("figure-memory-size", "Memory size, half of it sampled", "sweep",
                 _sweep([("cifar10", IID), ("cifar10", NON_IID), ("cifar100", IID), ("cifar100", NON_IID)],
                        "memory.per_task", (100, 200, 300, 400, 500, 600)), "m₀"),
    )
}  # fmt: skip
"""What the paper shows."""
CAMPAIGNS = PAPERS | STUDIES | PRETRAINED


def find_campaign(name: str) -> Campaign:
    """Return the campaign of that name."""
    if name not in CAMPAIGNS:
        raise unknown("table or figure", name, CAMPAIGNS)
    return CAMPAIGNS[name]
