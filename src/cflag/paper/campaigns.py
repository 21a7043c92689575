"""Campaigns: the runs behind each table and figure of the paper.

A campaign is a list of cells; a cell is one benchmark, the rows that are run on it, and where its numbers go. A row is
a `Variant`: a method, where needed with settings of its own. Cells that two campaigns share are run once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cflag.compare import Job
from cflag.config import load_raw, merge, resolve
from cflag.errors import unknown
from cflag.paper.scales import SCALES

SEEDS = (1234, 1235, 1236)
IID, NON_IID = 1e5, 0.1
DATA_SETS = ("cifar10", "cifar100", "tiny-imagenet")
RATES, RATES_SEED, RATES_ROUNDS = (3e-4, 1e-3, 3e-3), 7, 4
"""The Adam rates that every method may choose from, on a seed and in fewer rounds than any table has."""
SWEPT = ("clients", "memory.sample", "memory.per_task")


@dataclass(frozen=True)
class Variant:
    """A row of a table: a method, where needed with settings of its own."""

    name: str
    """Its key in folder names and summaries."""
    label: str
    method: str
    printed: str | None
    """The row of the paper's tables that it is compared with."""
    settings: tuple[tuple[str, Any], ...] = ()
    rates: tuple[str, ...] = ("lr",)
    """The settings of the method that hold its rate; several are set to the same value (the paper's α = β)."""

    def at_rate(self, rate: float) -> list[tuple[str, Any]]:
        """Return the settings with which it runs at a rate."""
        return [(f"{self.method}.{name}", rate) for name in self.rates]


PAPERS_OWN = "C-FLAG"
"""In a cell, stands for whichever variants of C-FLAG a scale runs."""
BOTH_RATES = ("alpha", "beta")
CFLAG_VARIANTS = (
    Variant("cflag-paper", "C-FLAG, as in the paper's experiments", "cflag", "cflag",
            (("cflag.estimator", "minibatch"), ("optimizer", "adam")), BOTH_RATES),
    Variant("cflag", "C-FLAG, delayed gradients", "cflag", None, (("cflag.estimator", "iag"),), BOTH_RATES),
    Variant("cflag-sgd", "C-FLAG-SGD", "cflag-sgd", "cflag", rates=BOTH_RATES),
)  # fmt: skip
"""The closest to what the paper ran comes first: claims about C-FLAG are judged on the first that was run."""
BASELINES = {"finetune": "Fine-FL", "ewc": "EWC-FL", "nccl": "NCCL-FL", "replay": "Erg-FL", "fedtrack": "FedTrack",
             "lwf": "LwF-FL", "icarl": "iCaRL-FL", "target": "TARGET"}  # fmt: skip
"""What the paper calls our other methods."""
VARIANTS = {
    v.name: v
    for v in (
        *CFLAG_VARIANTS,
        *(Variant(name, label, name, name) for name, label in BASELINES.items() if name != "fedtrack"),
        Variant("fedtrack", BASELINES["fedtrack"], "fedtrack", "fedtrack", rates=("beta",)),
    )
}
TASK_ROWS = ("finetune", "ewc", "nccl", "fedtrack", "replay", PAPERS_OWN)
CLASS_ROWS = ("finetune", "ewc", "lwf", "icarl", "target", "nccl", "fedtrack", PAPERS_OWN)


def label(name: str) -> str:
    """Return what a row is called in tables and figures."""
    return VARIANTS[name].label if name in VARIANTS else name


def main_cflag(names: Sequence[str]) -> str | None:
    """Return the variant of C-FLAG, of those that were run, which claims about C-FLAG are judged on."""
    return next((v.name for v in CFLAG_VARIANTS if v.name in names), None)


@dataclass(frozen=True)
class Cell:
    """One benchmark of a campaign and the rows that are run on it."""

    group: str
    """The column of a table, the panel of a figure."""
    source: str
    settings: dict[str, Any]
    rows: tuple[str, ...] = (PAPERS_OWN,)
    at: float | None = None
    """Its value in a sweep."""
    rate: float | None = None
    """The rate of every row, where it is not the preset's."""

    def variants(self, scale: str) -> list[Variant]:
        """Return the rows that are run at a scale."""
        names = [n for row in self.rows for n in (SCALES[scale].cflag if row == PAPERS_OWN else (row,))]
        return [VARIANTS[name] for name in names]

    def preset(self, scale: str) -> str:
        """Return the name of the preset that it stands on."""
        scenario = "-class" if self.settings.get("scenario") == "class" else ""
        return f"{self.source}{scenario}-{scale}"

    def raw(self, scale: str) -> dict[str, Any]:
        """Return the config's values at a scale; shares of the memory become samples."""
        raw = load_raw(self.preset(scale))
        settings, limit = dict(self.settings), raw["memory"]["per_task"]
        for key in ("memory.sample", "memory.per_task"):
            if key in settings:  # given for the paper's buffer of 400
                settings[key] = max(1, round(settings[key] * limit / 400))
        if "memory.per_task" in settings:
            settings["memory.sample"] = max(1, settings["memory.per_task"] // 2)
        return merge(raw, settings.items())

    def _telling(self, scale: str) -> dict[str, Any]:
        """Return the settings, without those of a sweep where they are the preset's own: these are the same runs."""
        plain = replace(self, settings={k: v for k, v in self.settings.items() if k not in SWEPT})
        return plain.settings if resolve(plain.raw(scale)) == resolve(self.raw(scale)) else self.settings

    def jobs(self, scale: str, seeds: Sequence[int], out: Path) -> list[Job]:
        """Return a run for each row and seed, in a folder named after its settings."""
        raw, jobs = self.raw(scale), []
        parts = [f"{key.rpartition('.')[2]}={value:g}" if isinstance(value, float | int) else str(value)
                 for key, value in sorted(self._telling(scale).items())]  # fmt: skip
        parts += [] if self.rate is None else [f"rate={self.rate:g}"]
        for variant in self.variants(scale):
            rate = self.rate or SCALES[scale].rates.get(variant.name, {}).get(self.preset(scale))
            rates = [] if rate is None else variant.at_rate(rate)
            config = resolve(merge(raw, [("method", variant.method), *variant.settings, *rates, ("workers", 1)]))
            for seed in seeds:
                folder = out / "_".join([self.source, *parts, variant.name, str(seed)])
                jobs.append(Job(folder, replace(config, seed=seed)))
        return jobs


@dataclass(frozen=True)
class Campaign:
    """A table or figure of the paper."""

    name: str
    title: str
    kind: Literal["table", "tasks", "sweep", "gamma", "rates"]
    cells: tuple[Cell, ...]
    axis: str = ""

    def seeds(self, asked: Sequence[int]) -> Sequence[int]:
        """Return the seeds it is run with: those asked for; a choice of rates has one of its own."""
        return (RATES_SEED,) if self.kind == "rates" else asked

    def jobs(self, scale: str, seeds: Sequence[int], out: Path) -> list[Job]:
        """Return all runs, each once."""
        return list(dict.fromkeys(job for cell in self.cells for job in cell.jobs(scale, self.seeds(seeds), out)))


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


def _rates() -> tuple[Cell, ...]:
    """Every method with every rate, on every source and in every scenario, at both ends of the tables' ζ."""
    benchmarks = [(s, "task", TASK_ROWS) for s in DATA_SETS] + [(s, "class", CLASS_ROWS) for s in DATA_SETS[:2]]
    short = {"rounds": RATES_ROUNDS, "eval_every": RATES_ROUNDS}
    return tuple(
        Cell(f"{source}-{scenario}-{'iid' if zeta == IID else 'noniid'}", source,
             {"scenario": scenario, "zeta": zeta, **short}, rows, at=rate, rate=rate)
        for source, scenario, rows in benchmarks
        for zeta in (IID, NON_IID)
        for rate in RATES
    )  # fmt: skip


BOTH = (("cifar10", NON_IID), ("cifar100", NON_IID))
CAMPAIGNS: dict[str, Campaign] = {
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
        Campaign("rates", "Which rate each method gets", "rates", _rates(), "rate"),
    )
}  # fmt: skip


def find_campaign(name: str) -> Campaign:
    """Return the campaign of that name."""
    if name not in CAMPAIGNS:
        raise unknown("table or figure", name, CAMPAIGNS)
    return CAMPAIGNS[name]


def chosen(campaign: Campaign, scale: str, rows: Sequence[str], sources: Sequence[str]) -> Campaign:
    """Return a campaign at a scale, cut down to some rows and data sets; nothing named means all."""
    there = {variant.name for cell in campaign.cells for variant in cell.variants(scale)}
    for name in rows:
        if name not in there:
            raise unknown(f"row of {campaign.name} at scale {scale}", name, there)
    for name in sources:
        if all(name != cell.source for cell in campaign.cells):
            raise unknown(f"source of {campaign.name}", name, {cell.source for cell in campaign.cells})
    cells = tuple(
        replace(cell, rows=tuple(v.name for v in cell.variants(scale) if not rows or v.name in rows))
        for cell in campaign.cells
        if not sources or cell.source in sources
    )
    return replace(campaign, cells=cells)
