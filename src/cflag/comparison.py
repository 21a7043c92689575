"""A fair comparison: every method on the same benchmark and seeds, at an equal budget, side by side on all cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from cflag.config import CUSTOM, Config, flatten, merge, resolve
from cflag.data.source import Source
from cflag.errors import UserError
from cflag.jobs import Job, held, prepare, run_all
from cflag.learning.learner import OwnLoss
from cflag.loggers.attach import require_loggers
from cflag.methods.base import Method
from cflag.models.reference import Maker
from cflag.own import Own, method_name, taken
from cflag.pricing import Budget, equal_cost, price
from cflag.process import cores
from cflag.results.display import PatientConsole, overview
from cflag.results.figures import draw_accuracy, save
from cflag.results.folder import new_folder
from cflag.results.result import Result
from cflag.results.table import as_markdown, as_pandas, as_text, printed, records, write_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Watch = Callable[[Sequence[Job]], None]


@dataclass(frozen=True)
class Terms:
    """What is compared with what: methods, the first of which sets the budget, on the same seeds."""

    label: str
    methods: Sequence[str]
    seeds: Sequence[int]
    budget: Budget


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison as one table: print it, plot it, or take its numbers."""

    results: list[Result]
    """One for each method and seed."""
    caption: str
    folder: Path
    """Where the runs are; the table and the figure, too."""
    files: list[Path]

    def __str__(self) -> str:
        return f"{self.caption}\n{printed(as_text(self.results))}"

    def _repr_markdown_(self) -> str:
        return f"{self.caption}\n\n{as_markdown(self.results)}"

    def of(self, method: str | type[Method]) -> list[Result]:
        """Return one method's results."""
        name = method_name(method)
        return [result for result in self.results if result.method == name]

    def plot(self) -> Figure:
        """Return a matplotlib figure: each method's accuracy after each task, a band over its seeds."""
        return draw_accuracy(self.results)

    def records(self) -> list[dict[str, Any]]:
        """Return every run as a dict of numbers."""
        return records(self.results)

    def to_pandas(self) -> Any:
        """Return the same as a pandas DataFrame, where pandas is installed."""
        return as_pandas(self.records())


def compare(  # noqa: PLR0913  (what `run` takes, and what makes a comparison)
    methods: Sequence[str | type[Method]],
    preset: str | None = None,
    *,
    source: Source | str | None = None,
    model: nn.Module | Maker | str | None = None,
    loss: OwnLoss | None = None,
    seeds: Sequence[int] = (1234, 1235, 1236),
    budget: Budget = "rounds",
    tuned: Mapping[str, Mapping[str, Any]] | None = None,
    out: str | Path | None = None,
    jobs: int = 0,
    progress: bool = False,
    **settings: Any,
) -> Comparison:
    """Compare methods, by name or your own classes, for example `compare(["cflag", MyMethod], source=my_source)`.

    `source`, `model`, `loss` and the preset are as in `run`. The first method sets the budget. `tuned` are settings
    for each method, as `tune(...).best` has them; what is set by hand goes before them. Repeated with the same `out` it
    goes on where it was stopped. `jobs` runs go on at once, each in a process of its own; 0 means one per core.
    """
    names = names_of(methods)
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"seeds = {list(seeds)}: at least one, and each once")
    raw, own = taken(preset, source, model, loss, settings)
    raw = with_tuned(raw, tuned or {}, settings)
    label = preset or (CUSTOM if own.source is not None else "digits")
    folder = Path(out) if out is not None else new_folder(f"compare-{Path(label).stem}")
    terms = Terms(label, names, list(seeds), budget)
    with overview(PatientConsole() if progress else None) as watch:
        return carry_out(raw, terms, folder, own, jobs or cores(), watch)


def carry_out(raw: Mapping[str, Any], terms: Terms, folder: Path, own: Own, at_once: int, watch: Watch) -> Comparison:
    """Run what is not finished of a comparison, and write its table and figure."""
    for config in _configs(raw, terms.methods).values():  # mistakes are told before anything is written
        require_loggers(config.log)
    with held(folder):
        jobs = plan(raw, terms.methods, terms.seeds, terms.budget, folder, own)
        prepare(jobs, own)
        results = run_all(jobs, at_once, watch, own=own)
        caption = f"{terms.label}: equal {terms.budget}, mean ± standard deviation over {len(terms.seeds)} seeds"
        files = write_tables(results, folder / f"table-{terms.budget}", caption)
        files += save(draw_accuracy(results), folder / f"accuracy-{terms.budget}")[:1]
    return Comparison(results, caption, folder, files)


def _configs(raw: Mapping[str, Any], methods: Sequence[str]) -> dict[str, Config]:
    return {method: resolve(merge(raw, [("method", method), ("workers", 1)])) for method in methods}


def plan(
    raw: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int], budget: Budget, out: Path,
    own: Own | None = None,
) -> list[Job]:  # fmt: skip
    """Make the list of runs; with a budget of gradients or bytes each method gets the rounds that it pays for."""
    configs = _configs(raw, methods)
    if budget != "rounds":
        configs = equal_cost(configs, budget, partial(price, own=own))
    return [
        Job(out / f"{method}-{config.rounds}-{seed}", replace(config, seed=seed))
        for method, config in configs.items()
        for seed in seeds
    ]


def names_of(methods: Sequence[str | type[Method]]) -> list[str]:
    """Return the methods' names, classes of one's own among them; each may stand there once."""
    given = [methods] if isinstance(methods, str | type) else list(methods)
    names = [method_name(method) for method in given]
    if not names or len(set(names)) < len(names):
        raise UserError(f"methods = {names}: at least one, and each once")
    return names


def with_tuned(
    raw: Mapping[str, Any], tuned: Mapping[str, Mapping[str, Any]], by_hand: Mapping[str, Any]
) -> dict[str, Any]:
    """Return raw values with tuned ones; what was set by hand goes before them."""
    given = {key.replace("_", "-") for key, _ in flatten(by_hand)}
    return merge(raw, [(key, value) for key, value in flatten(tuned) if key.replace("_", "-") not in given])
