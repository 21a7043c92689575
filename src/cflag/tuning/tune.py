"""`cflag tune`: each method's best settings with equal trials, by the score on held-out *training* samples.

Trials are ordinary runs, on a seed that no table uses. They come in groups of `parallel`, chosen together and learned
from together: how many of them run at once changes the time it takes and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from cflag.comparison import names_of
from cflag.config import CUSTOM, merge
from cflag.data.schedules.base import total_rounds
from cflag.data.source import Source
from cflag.errors import CflagError, DivergedError, PrunedError, UserError
from cflag.jobs import Job, held, prepare, run_all
from cflag.learning.learner import OwnLoss
from cflag.loggers.attach import require_loggers
from cflag.methods.base import Method
from cflag.models.reference import Maker
from cflag.own import Own, taken
from cflag.pricing import Budget, equal_cost, price
from cflag.process import cores
from cflag.results.display import PatientConsole, overview
from cflag.results.figures import save
from cflag.results.folder import RunFolder, new_folder
from cflag.results.metrics import read_metrics
from cflag.results.result import Result
from cflag.tuning.search import Search, Trial
from cflag.tuning.tuned import Tuned, Tuning, write_tuned

Watch = Callable[[Sequence[Any]], None]


def tune(  # noqa: PLR0913  (what `run` takes, and what makes a search)
    methods: Sequence[str | type[Method]],
    preset: str | None = None,
    *,
    source: Source | str | None = None,
    model: nn.Module | Maker | str | None = None,
    loss: OwnLoss | None = None,
    trials: int = 20,
    seed: int = 4321,
    budget: Budget = "rounds",
    parallel: int = 4,
    validation: float = 0.2,
    out: str | Path | None = None,
    jobs: int = 0,
    progress: bool = False,
    **settings: Any,
) -> Tuned:
    """Search for the best settings of methods, by name or your own classes: `tune(["cflag", MyMethod], source=...)`.

    `source`, `model`, `loss` and the preset are as in `run`. `seed` must not be one of a table's; `validation` is the
    share of the training samples by which trials are judged. Repeated with the same `out` it goes on where it was.
    """
    raw, own = taken(preset, source, model, loss, settings)
    label = preset or (CUSTOM if own.source is not None else "digits")
    tuning = Tuning(label, trials, seed, budget, parallel, validation)
    folder = Path(out) if out is not None else new_folder(f"tune-{Path(label).stem}")
    with overview(PatientConsole() if progress else None) as watch:
        return carry_out(raw, names_of(methods), tuning, folder, own, jobs or cores(), watch)


def carry_out(
    raw: Mapping[str, Any], methods: Sequence[str], tuning: Tuning, out: Path, own: Own, at_once: int, watch: Watch
) -> Tuned:
    """Search for every method, a group of trials of each at a time; then test the file's own and the best values."""
    _check(tuning)
    chosen = merge(raw, [("seed", tuning.seed), ("workers", 1), ("eval_every", 10**6)])
    if not raw.get("secure"):
        chosen["engine"] = "local"  # changes no number
    searching = merge(chosen, [("validation", tuning.validation)])
    searches = [Search(method, searching, tuning.trials, tuning.seed) for method in methods]
    require_loggers(searches[0].config({}).log)
    with held(out):
        rounds = _rounds(searches, tuning.budget, own)
        campaign = _Campaign(searches, rounds, tuning, out, own, at_once, watch)
        for first in range(0, tuning.trials, tuning.parallel):
            campaign.run_group(min(tuning.parallel, tuning.trials - first))
        tests = campaign.test(chosen)
        tuned = Tuned(tuning, {search.method: search.trials for search in searches}, tests, out)
        write_tuned(out / "tuned.toml", tuning, tuned.best)
        save(tuned.plot(), out / "search")
    return tuned


def _check(tuning: Tuning) -> None:
    for name in ("trials", "parallel"):
        if getattr(tuning, name) < 1:
            raise UserError(f"{name} = {getattr(tuning, name)}: at least one")
    if not 0 < tuning.validation < 1:
        raise UserError(f"validation = {tuning.validation} must be between 0 and 1: a share of the training samples")


def _rounds(searches: Sequence[Search], budget: Budget, own: Own) -> dict[str, int]:
    """Return each method's rounds at the budget; the settings that are searched do not change what a round costs."""
    configs = {search.method: search.config({}) for search in searches}
    if budget != "rounds":
        configs = equal_cost(configs, budget, partial(price, own=own))
    return {method: config.rounds for method, config in configs.items()}


@dataclass(frozen=True)
class _Later:
    """A run that is still to come, so that progress and the time left are those of the whole search."""

    rounds: int

    def done(self) -> int:
        """Nothing yet."""
        return 0


class _Campaign:
    """The runs of a search, group after group."""

    def __init__(
        self, searches: Sequence[Search], rounds: Mapping[str, int], tuning: Tuning, out: Path, own: Own,
        at_once: int, watch: Watch,
    ) -> None:  # fmt: skip
        self.searches, self.rounds, self.tuning, self.out = searches, rounds, tuning, out
        self.own, self.at_once, self.watch = own, at_once, watch
        self.past: list[Job] = []
        plain = [replace(search.config({}), rounds=rounds[search.method]) for search in searches]
        self.later = [_Later(total_rounds(config)) for config in plain]

    def run_group(self, count: int) -> None:
        """Ask for some trials of every method, run them, and tell what came of them, in order."""
        jobs: dict[Path, Job] = {}
        asked = [(search, search.ask()) for search in self.searches for _ in range(count)]
        for search, trial in asked:
            floors = search.floors() if trial.number > 1 else ()
            try:
                config = replace(search.config(trial.settings), rounds=self.rounds[search.method])
            except UserError:  # settings that exclude each other
                if trial.number == 1:
                    raise
                trial.state = "refused"
                continue
            jobs[self._folder(trial)] = Job(self._folder(trial), config, () if config.secure else floors)
        diverged = self._run(list(jobs.values()))
        for search, trial in asked:
            if self._folder(trial) in jobs:
                self._read(trial, self._folder(trial) in diverged)
            search.tell(trial)

    def _folder(self, trial: Trial) -> Path:
        return self.out / f"{trial.method}-{trial.number:03d}"

    def _run(self, jobs: Sequence[Job]) -> set[Path]:
        """Run what has not ended; return the folders of runs that diverged."""
        diverged: set[Path] = set()

        def let_go(job: Job, error: CflagError) -> None:
            if isinstance(error, DivergedError):
                diverged.add(job.folder)
            elif not isinstance(error, PrunedError):
                raise error

        def look(_: object) -> None:
            every = [*self.past, *jobs]
            self.watch([*every, *self._later(len(every))])

        prepare(jobs, self.own)
        run_all(jobs, self.at_once, look, let_go, self.own)
        self.past += jobs
        return diverged

    def _later(self, known: int) -> list[_Later]:
        left = (self.tuning.trials + 2) * len(self.searches) - known  # two tests of each
        return [self.later[k % len(self.later)] for k in range(max(0, left))]

    def _read(self, trial: Trial, diverged: bool) -> None:
        """Take down what came of a trial's run."""
        folder = RunFolder(self._folder(trial))
        rounds = self.rounds[trial.method]
        ends = [r["accuracy"] for r in read_metrics(folder.metrics) if r["round"] == rounds]
        trial.values = [value for value in ends if value is not None]
        if folder.finished:
            trial.state = "finished"
            trial.values = [*trial.values[:-1], Result.load(folder.path).average_score]
        elif diverged:
            trial.state = "diverged"
        else:
            trial.state = "given up"

    def test(self, raw: Mapping[str, Any]) -> dict[str, tuple[Result | None, Result | None]]:
        """Run the file's own and the best values with all training samples, and test them on the test half."""
        jobs: dict[str, tuple[Job, Job]] = {}
        for search in self.searches:
            full = Search(search.method, raw, self.tuning.trials, self.tuning.seed)

            def job(name: str, found: Mapping[str, Any], full: Search = full) -> Job:
                config = replace(full.config(found), rounds=self.rounds[full.method])
                return Job(self.out / f"{full.method}-{name}", config)

            own = job("own", {})
            jobs[search.method] = own, own if search.best is search.own else job("best", search.best.settings)
        self._run(list(dict.fromkeys(job for pair in jobs.values() for job in pair)))
        return {method: (_result(own), _result(best)) for method, (own, best) in jobs.items()}


def _result(job: Job) -> Result | None:
    """Return a run's result; none where it diverged."""
    return Result.load(job.folder) if RunFolder(job.folder).finished else None
