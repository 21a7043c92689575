"""What a campaign is made of.

A campaign is a list of cells; a cell is one benchmark, the rows that are run on it, and where its numbers go. A row is
a `Variant`. Cells that two campaigns share are run once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from cflag.config import Config, load_raw, merge, resolve
from cflag.errors import UserError, unknown
from cflag.paper.scales import PROTOCOL, SCALES
from cflag.paper.variants import PAPERS_OWN, VARIANTS, Variant

if TYPE_CHECKING:
    from cflag.jobs import Job
    from cflag.pricing import Budget

IID, NON_IID = 1e5, 0.1
IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "tiny-imagenet": 100_000}
"""Training images of the paper's data sets."""
DATA_SETS = tuple(IMAGES)
SWEPT = ("clients", "memory.sample", "memory.per_task")
LENGTH = ("rounds", "eval_every")


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
    budget: Budget = "rounds"
    """What rows have equal shares of; unless it is rounds, as much as the cell's rounds cost the payer."""
    payer: str = "replay"
    """The row whose costs are the budget, whether it is among the rows or not."""

    def variants(self, scale: str) -> list[Variant]:
        """Return the rows that are run at a scale."""
        names = [n for row in self.rows for n in (SCALES[scale].cflag if row == PAPERS_OWN else (row,))]
        return [VARIANTS[name] for name in dict.fromkeys(names)]

    def preset(self, scale: str) -> str:
        """Return the name of the preset that it stands on."""
        usual = SCALES[scale].scenario
        scenario = self.settings.get("scenario", usual)
        own = ("" if scenario == usual else f"-{scenario}") + ("-whitened" if self.settings.get("whiten") else "")
        return f"{self.source}{own}-{scale}"

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

    def _without(self, *keys: str) -> Self:
        return replace(self, settings={k: v for k, v in self.settings.items() if k not in keys})

    def _telling(self, scale: str) -> list[str]:
        """Return the settings for a folder's name, but for those that do not tell cells apart.

        Settings of a sweep where they are the preset's own make the same runs as the plain cell; how many rounds there
        are is told by the row.
        """
        plain = self._without(*SWEPT)
        cell = plain if resolve(plain.raw(scale)) == resolve(self.raw(scale)) else self
        settings = sorted(cell._without(*LENGTH).settings.items())
        parts = [f"{k.rpartition('.')[2]}={v:g}" if isinstance(v, float | int) else str(v) for k, v in settings]
        return parts if self.rate is None else [*parts, f"rate={self.rate:g}"]

    def configs(self, scale: str, out: Path) -> dict[str, Config]:
        """Return the config of each row, by its name; what rounds cost may be known in a folder."""
        raw = self.raw(scale)
        configs = {variant.name: self._config(raw, variant, scale) for variant in self.variants(scale)}
        if self.budget == "rounds":
            return configs
        from cflag.paper.prices import PriceList  # runs a round of each, which takes torch
        from cflag.pricing import equal_cost

        payer = {self.payer: self._config(raw, VARIANTS[self.payer], scale)}
        paying = {name: config for name, config in configs.items() if not VARIANTS[name].rounds}
        equal = equal_cost(payer | paying, self.budget, PriceList(out))
        return configs | {name: config for name, config in equal.items() if name in configs}

    def _config(self, raw: dict[str, Any], variant: Variant, scale: str) -> Config:
        rate = self.rate or SCALES[scale].rates.get(variant.name, {}).get(self.preset(scale))
        own = [] if rate is None else variant.at_rate(rate)
        own += [("rounds", variant.rounds), ("eval_every", variant.rounds)] if variant.rounds else []
        return resolve(merge(raw, [("method", variant.method), *variant.settings, *own, ("workers", 1)]))

    def jobs(self, scale: str, seeds: Sequence[int], out: Path) -> dict[str, list[Job]]:
        """Return each row's runs, one per seed, in folders named after their settings."""
        from cflag.jobs import Job

        configs = self.configs(scale, out)
        names = self.names(scale, {row: config.rounds for row, config in configs.items()})
        return {
            row: [Job(out / f"{names[row]}_{seed}", replace(config, seed=seed)) for seed in seeds]
            for row, config in configs.items()
        }

    def names(self, scale: str, rounds: Mapping[str, int]) -> dict[str, str]:
        """Return what the runs of rows with so many rounds are called, but for their seeds.

        Rows of two cells whose runs have the same name are the same, as long as presets stay what they are.
        """
        usual = resolve(self._without(*LENGTH).raw(scale)).rounds
        start = "_".join([self.source, *self._telling(scale)])
        return {row: f"{start}{'' if count == usual else f'_rounds={count}'}_{row}" for row, count in rounds.items()}


@dataclass(frozen=True)
class Campaign:
    """A table or figure of the paper."""

    name: str
    title: str
    kind: Literal["table", "tasks", "sweep", "gamma", "rates", "parts", "cost", "rows"]
    cells: tuple[Cell, ...]
    axis: str = ""
    base: str = ""
    """The row that a study compares the others with."""
    scales: tuple[str, ...] = PROTOCOL
    """Where it makes sense."""
    own_seeds: tuple[int, ...] = ()
    """Its seeds whatever is asked for, where no table may see them."""

    def seeds(self, asked: Sequence[int]) -> Sequence[int]:
        """Return the seeds it is run with."""
        return self.own_seeds or asked

    def jobs(self, scale: str, seeds: Sequence[int], out: Path) -> list[Job]:
        """Return all runs, each once."""
        rows = [row for cell in self.cells for row in cell.jobs(scale, self.seeds(seeds), out).values()]
        return list(dict.fromkeys(job for row in rows for job in row))


def chosen(
    campaign: Campaign,
    scale: str,
    rows: Sequence[str],
    sources: Sequence[str],
    groups: Sequence[str] = (),
    points: Sequence[float] = (),
) -> Campaign:
    """Return a campaign at a scale, cut down to some rows, data sets, groups and points; nothing named means all."""
    if scale not in campaign.scales:
        raise UserError(f"{campaign.name} is for scale {' or '.join(campaign.scales)}, not {scale}")
    for what, asked, there in (
        (f"row of {campaign.name} at scale {scale}", rows, {v.name for c in campaign.cells for v in c.variants(scale)}),
        (f"source of {campaign.name}", sources, {cell.source for cell in campaign.cells}),
        (f"group of {campaign.name}", groups, {cell.group for cell in campaign.cells}),
    ):
        for name in asked:
            if name not in there:
                raise unknown(what, name, there)
    sweep = sorted({cell.at for cell in campaign.cells if cell.at is not None})
    if not set(points) <= set(sweep):
        known = f"its points are {', '.join(f'{at:g}' for at in sweep)}" if sweep else "it is no sweep"
        raise UserError(f"{campaign.name} has nothing at {', '.join(f'{at:g}' for at in points)}: {known}")
    cells = tuple(
        replace(cell, rows=tuple(v.name for v in cell.variants(scale) if not rows or v.name in rows))
        for cell in campaign.cells
        if all(not asked or mine in asked
               for mine, asked in ((cell.source, sources), (cell.group, groups), (cell.at, points)))
    )  # fmt: skip
    if not cells:
        words = ", ".join((*groups, *(f"{at:g}" for at in points), *sources))
        raise UserError(f"{campaign.name} has nothing that is all of these at once: {words}")
    return replace(campaign, cells=cells)
