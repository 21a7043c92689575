"""A campaign's numbers beside the paper's, as a summary small enough to commit."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from cflag.files import strict_json
from cflag.paper.cells import IMAGES, Campaign, Cell
from cflag.paper.variants import VARIANTS, Variant
from cflag.results.folder import RunFolder
from cflag.results.result import Result

if TYPE_CHECKING:
    from cflag.config import Config

Spread = tuple[float, float | None]
"""A mean in percent and its standard deviation, where it is known."""


@dataclass(frozen=True)
class CellResult:
    """One row in one cell: our numbers, and the paper's where it prints them."""

    group: str
    method: str
    """The variant's name."""
    at: float | None
    seeds: list[int]
    accuracy: Spread | None
    forgetting: Spread | None
    paper_accuracy: Spread | None = None
    paper_forgetting: Spread | None = None
    slip: str = ""
    """Why the printed number cannot be right, where it cannot."""
    gradients: float | None = None
    """Gradient evaluations per run, in thousands of samples, current and memory."""
    megabytes: float | None = None
    """Megabytes sent per run, up and down."""
    rounds: float | None = None
    """Rounds per task."""
    images: int | None = None
    """Training samples that clients were dealt, of all tasks; None in summaries that did not count them."""
    lost: list[int] = field(default_factory=list)
    """Seeds whose runs could not be finished: most often they diverged."""
    accuracies: list[float] = field(default_factory=list)
    """Acc of each seed; one seed means the same tasks and clients for all methods, so differences are taken by seed."""
    forgettings: list[float] = field(default_factory=list)
    after_tasks: list[list[float]] | None = None
    """Mean accuracy on the tasks learned so far, after each; one list per seed."""
    gamma: list[float | None] | None = None
    """Γ(t) of each round, mean over seeds."""
    gamma_variation: list[float] | None = None
    """The standard deviation of Γ(t) over the rounds, of each seed."""
    shared: str = ""
    """The campaign that made these runs, where it was another one that has them in common with this one."""
    settings: str = ""
    """What all settings that decide its numbers but the seed come to: runs with others are not mixed with these."""

    def as_asked(self) -> CellResult:
        """Return the row without its runs: what was to be run."""
        return CellResult(self.group, self.method, self.at, [], None, None, self.paper_accuracy, self.paper_forgetting,
                          self.slip, rounds=self.rounds, settings=self.settings)  # fmt: skip

    def differs_from(self, other: CellResult) -> bool:
        """Say whether these runs are known to be of other settings than those."""
        return bool(self.settings and other.settings and self.settings != other.settings)


@dataclass(frozen=True)
class Summary:
    """A campaign at one scale."""

    campaign: str
    scale: str
    command: str
    date: str
    """The day on which its last run ended."""
    commit: str
    """The commits its runs were made with."""
    entries: list[CellResult]
    failed: list[str] = field(default_factory=list)
    """Runs that could not be finished, and why."""

    def own(self) -> Summary:
        """Return it without the runs of other campaigns: what is shared is found again where it is wanted."""
        return replace(self, entries=[e.as_asked() if e.shared else e for e in self.entries])

    def added_to(self, older: Summary) -> Summary:
        """Return both in one: of a seed that both have, this one's numbers."""
        mine, theirs = ({(e.group, e.method, e.at): e for e in s.entries} for s in (self, older))
        entries = [_united(mine.get(key), theirs.get(key)) for key in dict.fromkeys((*mine, *theirs))]
        lost = {seed for e in entries for seed in e.lost}
        return replace(
            self,
            entries=entries,
            command=_listed("; ", older.command, self.command),
            date=max(self.date, older.date),
            commit=", ".join(sorted(_listed(", ", older.commit, self.commit).split(", "))),
            failed=list(dict.fromkeys((*older.failed, *self.failed))) if lost else list(self.failed),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Summary:
        """Make a summary from what `to_dict` returned."""
        entries = [CellResult(**entry) for entry in raw["entries"]]
        return cls(**{**raw, "entries": entries})


def _listed(between: str, *texts: str) -> str:
    """Return lists that are written as texts as one, each part once."""
    return between.join(dict.fromkeys(part for text in texts for part in text.split(between) if part))


def _united(new: CellResult | None, old: CellResult | None) -> CellResult:
    """Return one entry with the seeds of both; of runs with other settings, or rounds, the new ones alone."""
    if new is None or old is None or not old.seeds:
        found = new or old
        assert found is not None  # a key is of one of the two
        return found
    if new.seeds and (new.differs_from(old) or old.rounds not in (None, new.rounds)):
        return new
    kept = [k for k, seed in enumerate(old.seeds) if seed not in new.seeds]
    weights = (len(kept), len(new.seeds))

    def both(pick: Callable[[CellResult], Sequence[Any] | None]) -> list[Any]:
        """The old entry's values of the seeds it keeps, then the new one's."""
        before, after = pick(old) or [], pick(new) or []
        return [*(before[k] for k in kept if k < len(before)), *after]

    def mean(a: float | None, b: float | None) -> float | None:
        known = [(v, w) for v, w in zip((a, b), weights, strict=True) if v is not None and w]
        return round(sum(v * w for v, w in known) / sum(w for _, w in known), 3) if known else None

    accuracies, forgettings = both(lambda e: e.accuracies), both(lambda e: e.forgettings)
    seeds = both(lambda e: e.seeds)
    return replace(
        new,
        seeds=seeds,
        accuracies=accuracies,
        forgettings=forgettings,
        accuracy=spread(accuracies),
        forgetting=spread(forgettings),
        gradients=mean(old.gradients, new.gradients),
        megabytes=mean(old.megabytes, new.megabytes),
        rounds=new.rounds if new.seeds else old.rounds,
        settings=(new.settings if new.seeds else "") or old.settings,
        images=new.images or old.images,
        after_tasks=both(lambda e: e.after_tasks) or None,
        gamma=new.gamma or old.gamma,
        gamma_variation=both(lambda e: e.gamma_variation) or None,
        lost=[seed for seed in dict.fromkeys((*old.lost, *new.lost)) if seed not in seeds],
    )


def summarise(
    campaign: Campaign, scale: str, seeds: Sequence[int], out: Path, command: str, failed: Sequence[str] = ()
) -> Summary:
    """Read the finished runs of a campaign."""
    entries, everything = [], []
    for cell in campaign.cells:
        rows = cell.jobs(scale, campaign.seeds(seeds), out)
        for variant in cell.variants(scale):
            jobs = rows[variant.name]
            results = [Result.load(job.folder) for job in jobs if RunFolder(job.folder).finished]
            lost = [job.config.seed for job in jobs if any(line.startswith(f"{job.folder.name}: ") for line in failed)]
            config = jobs[0].config
            asked = blank(campaign, cell, variant)
            planned = replace(asked, rounds=float(config.rounds), settings=settings_of(config))
            entries.append(replace(_entry(planned, campaign.kind, results) if results else planned, lost=lost))
            everything += results
    told = [line.replace(f"{out}/", "") for line in failed]  # a ledger is read where there is no such folder
    commits = sorted({result.versions.get("commit", "installed") for result in everything})
    return Summary(campaign.name, scale, command, _last_day(everything), ", ".join(commits), entries, told)


def settings_of(config: Config) -> str:
    """Return what all settings of a run that decide its numbers come to, whatever its seed."""
    return sha256(strict_json(replace(config, seed=0).numbers()).encode()).hexdigest()[:12]


def _last_day(results: Sequence[Result]) -> str:
    ends = [(r.folder / "result.json").stat().st_mtime for r in results if r.folder]
    return datetime.fromtimestamp(max(ends), UTC).date().isoformat() if ends else ""


def blank(campaign: Campaign, cell: Cell, variant: Variant) -> CellResult:
    """Return a row before any of its runs, beside what the paper prints."""
    row = printed_row(campaign.name, variant, cell.at)
    paper = _printed_pair(printed().get(campaign.name, {}).get(cell.group, {}).get(row))
    slip = _slip(campaign.name, cell.group, row)
    return CellResult(cell.group, variant.name, cell.at, [], None, None, *paper, slip)


def _entry(planned: CellResult, kind: str, results: Sequence[Result]) -> CellResult:
    return replace(
        planned,
        seeds=[result.seed for result in results],
        accuracy=spread([100 * r.average_accuracy for r in results]),
        forgetting=spread([100 * r.forgetting for r in results]),
        gradients=_mean_cost(results, ("gradients_current", "gradients_memory"), 1e3),
        megabytes=_mean_cost(results, ("bytes_up", "bytes_down"), 1e6),
        rounds=fmean(len(r.metrics) / len(r.accuracy_matrix) for r in results),
        images=_images(results[0]),
        accuracies=[round(100 * r.average_accuracy, 3) for r in results],
        forgettings=[round(100 * r.forgetting, 3) for r in results],
        after_tasks=_after_tasks(results) if kind in ("table", "tasks") else None,
        gamma=_gamma(results) if kind == "gamma" else None,
        gamma_variation=_gamma_variation(results) if kind == "gamma" else None,
    )


def _images(result: Result) -> int | None:
    """Return how many training samples a run's clients were dealt."""
    counts = RunFolder(result.folder).class_counts() if result.folder else None
    return sum(sum(clients) for task in counts for clients in task.values()) if counts else None


def printed_row(table: str, variant: Variant, at: float | None) -> str | None:
    """Return the key under which the paper's tables have a row: its method, or the clients in a sweep over them."""
    return f"{at:g}" if table == "table-clients" and at and variant.printed else variant.printed


@cache
def printed() -> dict[str, Any]:
    """Return what the paper prints."""
    return tomllib.loads(_printed_file())


@cache
def _printed_digits() -> dict[str, Any]:
    """Return what the paper prints as text, so that 30.00 stays 30.00 and 7.9 stays 7.9."""
    return tomllib.loads(_printed_file(), parse_float=str)


def _printed_file() -> str:
    return (files(__package__) / "printed.toml").read_text(encoding="utf-8")


def all_images(group: str) -> int:
    """Return how many training images the data set of a column or panel has; 0 where the paper has none of it."""
    found = [count for name, count in IMAGES.items() if group == name or group.startswith(f"{name}-")]
    return found[0] if found else 0


def as_printed(table: str, entry: CellResult) -> tuple[str, str]:
    """Return Acc and Forget of a row with the digits that the paper prints; empty where it prints none."""
    row = printed_row(table, VARIANTS[entry.method], entry.at)
    digits = _printed_digits().get(table, {}).get(entry.group, {}).get(row, [])
    half = len(digits) // 2
    return " ± ".join(digits[:half]), " ± ".join(digits[half:])


def _printed_pair(values: Sequence[float] | None) -> tuple[Spread | None, Spread | None]:
    if values is None:
        return None, None
    if len(values) == 2:
        return (values[0], None), (values[1], None)
    return (values[0], values[1]), (values[2], values[3])


def _slip(table: str, source: str, method: str | None) -> str:
    found = [s["why"] for s in printed()["slip"] if (s["table"], s["source"], s["method"]) == (table, source, method)]
    return str(found[0]) if found else ""


def spread(values: Sequence[float], digits: int = 3) -> Spread | None:
    """Return the mean and standard deviation of some values."""
    if not values:
        return None
    return round(fmean(values), digits), round(stdev(values), digits) if len(values) > 1 else None


def _mean_cost(results: Sequence[Result], names: Sequence[str], unit: float) -> float | None:
    costs = [sum(result.costs[name] for name in names) / unit for result in results]
    return round(fmean(costs), 1) if costs else None


def _after_tasks(results: Sequence[Result]) -> list[list[float]] | None:
    return [[round(100 * value, 3) for value in r.accuracy_so_far] for r in results] or None


def _gamma(results: Sequence[Result]) -> list[float | None] | None:
    rows = [[record.get("gamma") for record in r.metrics] for r in results]
    columns = list(zip(*rows, strict=True)) if rows else []
    return [None if None in c else float(f"{fmean(c):.4g}") for c in columns] or None


def _gamma_variation(results: Sequence[Result]) -> list[float] | None:
    series = [[g for record in r.metrics if (g := record.get("gamma")) is not None] for r in results]
    return [round(stdev(values), 5) for values in series if len(values) > 1] or None
