"""Tuning is part of fairness: every method searches its declared space with the same number of trials.

The search is Optuna's (TPE), on a seed that no table uses. Trials are ordinary runs; as the sampler is seeded too, a
search that was stopped is repeated from its finished runs and goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from cflag import registry
from cflag.compare import Budget, Job, equal_cost, prepare, run_all
from cflag.config import Config, load_file, merge, resolve
from cflag.errors import CflagError, DivergedError, UserError
from cflag.files import write_atomically
from cflag.problems.base import scoring
from cflag.process import cores

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial


@dataclass(frozen=True)
class Tuning:
    """How values were found: what makes two tuned files comparable."""

    preset: str
    trials: int
    seed: int
    budget: Budget


class Search:
    """One method's search: asks for settings, learns what came of them."""

    def __init__(self, method: str, raw: Mapping[str, Any], seed: int) -> None:
        optuna = _optuna()
        self.method = method
        self.raw = raw
        self.search_space = registry.get("method", method).search_space
        if not self.search_space:
            raise UserError(f"method '{method}' declares no space to tune")
        sampler = optuna.samplers.TPESampler(seed=seed % 2**32)
        self.study: Study = optuna.create_study(direction="maximize", sampler=sampler)
        now = vars(self.config({}).settings)
        self.study.enqueue_trial(
            {name: now[name] for name, choice in self.search_space.items() if _within(now[name], choice)}
        )

    def config(self, found: Mapping[str, Any]) -> Config:
        """Return the run's config with these settings of the method."""
        settings = [(f"{self.method}.{name}", value) for name, value in found.items()]
        return resolve(merge(self.raw, [("method", self.method), *settings]))

    def ask(self) -> Trial:
        """Return a trial whose `params` are the settings to try next."""
        trial = self.study.ask()
        for name, choice in self.search_space.items():
            if isinstance(choice, list):
                trial.suggest_categorical(name, choice)
            else:
                trial.suggest_float(name, *choice, log=True)
        return trial


def tune(
    raw: Mapping[str, Any],
    methods: Sequence[str],
    tuning: Tuning,
    out: Path,
    watch: Callable[[Sequence[Job]], None],
) -> dict[str, tuple[float, dict[str, Any]]]:
    """Search for every method, a trial of each at a time; return the best score and the settings that gave it.

    Where a lower score is better, its sign is turned.
    """
    workers = max(1, cores() // len(methods))
    raw = merge(raw, [("seed", tuning.seed), ("workers", workers), ("eval_every", 10**6)])
    searches = [Search(method, raw, tuning.seed) for method in methods]
    rounds = _rounds(searches, tuning.budget)
    plain = searches[0].config({})
    score = scoring(plain.problem, plain.score).score
    for number in range(1, tuning.trials + 1):
        trials = {search.method: search.ask() for search in searches}
        jobs = []
        for search in searches:
            with suppress(UserError):  # settings that exclude each other: worth nothing, as those that diverge
                config = replace(search.config(trials[search.method].params), rounds=rounds[search.method])
                jobs.append(Job(out / f"{search.method}-{number:03d}", config))
        scores = _run(jobs, watch)
        for search in searches:
            search.study.tell(trials[search.method], scores.get(search.method, score.worthless))
    return {s.method: (s.study.best_value, s.study.best_params) for s in searches}


def _rounds(searches: Sequence[Search], budget: Budget) -> dict[str, int]:
    """Return each method's rounds at the budget; the settings that are searched do not change what a round costs."""
    configs = {search.method: search.config({}) for search in searches}
    if budget != "rounds":
        configs = equal_cost(configs, budget)
    return {method: config.rounds for method, config in configs.items()}


def _run(jobs: Sequence[Job], watch: Callable[[Sequence[Job]], None]) -> dict[str, float]:
    """Return each method's score, with the sign turned where a lower one is better; none where training diverged."""
    prepare(jobs)
    results = run_all(jobs, cores(), watch, _let_diverge)
    return {result.method: result.score.sign * result.average_score for result in results}


def _let_diverge(job: Job, error: CflagError) -> None:
    if not isinstance(error, DivergedError):
        raise error


def _within(value: Any, choice: tuple[float, float] | list[Any]) -> bool:
    """Return whether a space holds a value, so that a search can start from it."""
    return value in choice if isinstance(choice, list) else choice[0] <= value <= choice[1]


def write_tuned(path: Path, tuning: Tuning, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the found values as TOML, one table per method."""
    text = tomli_w.dumps({"tuning": vars(tuning), **{method: dict(values) for method, values in found.items()}})
    write_atomically(path, text.encode())


def load_tuned(paths: Sequence[Path], methods: Sequence[str], seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Read tuned values for a comparison; refuse what would make it unfair."""
    found: dict[str, dict[str, Any]] = {}
    trials: dict[int, Path] = {}
    for path in paths:
        tables = load_file(path)
        tuning = tables.pop("tuning", None)
        if not isinstance(tuning, dict) or not all(isinstance(tuning.get(key), int) for key in ("trials", "seed")):
            raise UserError(f"{path}: not a file that 'cflag tune' wrote: it has no [tuning] table")
        if tuning["seed"] in seeds:
            raise UserError(f"{path} was tuned on seed {tuning['seed']}, which the table must not use; drop it")
        trials[tuning["trials"]] = path
        for method in set(found) & set(tables):
            raise UserError(f"{path}: '{method}' was tuned in another file, too; which one holds?")
        found.update(tables)
    if len(trials) > 1:
        uneven = ", ".join(f"{path}: {count}" for count, path in trials.items())
        raise UserError(f"every method must be tuned with the same number of trials ({uneven})")
    for method in methods:
        if method not in found and registry.get("method", method).search_space:
            raise UserError(f"{', '.join(map(str, paths))}: '{method}' was not tuned; run 'cflag tune {method} ...'")
    return {method: found[method] for method in methods if method in found}


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("tuning needs Optuna; run: pip install 'cflag[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
