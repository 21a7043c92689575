"""One method's search: Optuna (TPE) asks for settings, and learns what came of them.

Nothing in it depends on time or on cores: trials are asked for in groups, told in order, and given up by floors that
are known before a group starts. So a search that was stopped is repeated from its runs, and goes on where it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cflag import registry
from cflag.config import Config, merge, resolve
from cflag.errors import UserError
from cflag.problems.base import scoring
from cflag.problems.score import ACCURACY, Score
from cflag.tuning.space import Space

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial as Asked

BEFORE_PRUNING = 4
"""Trials that must have come to their end before others are given up."""
HOPELESS = 0.5
"""Below this share of the score that the best of them had after the same task, a trial is given up. Not sooner: on
Split-Digits with Adam the trial that ended best had 56 % of it after the second task of five."""

State = Literal["waiting", "finished", "given up", "diverged", "refused"]


@dataclass
class Trial:
    """Settings that were tried, and what came of them; number 1 has the file's own."""

    method: str
    number: int
    settings: dict[str, Any]
    state: State = "waiting"
    values: list[float] = field(default_factory=list)
    """The score on the tasks so far, after each task: on held-out training samples."""
    score: Score = ACCURACY
    """What is scored."""

    @property
    def value(self) -> float | None:
        """The last of them: of a finished trial that of the run; None where training diverged."""
        return self.values[-1] if self.values and self.state in ("finished", "given up") else None

    @property
    def worth(self) -> float:
        """The same, the higher the better, and as low as can be where there is none."""
        return self.score.worthless if self.value is None else self.score.sign * self.value


class Search:
    """The trials of one method."""

    def __init__(self, method: str, raw: Mapping[str, Any], trials: int, seed: int) -> None:
        optuna = _optuna()
        self.method = method
        self.raw = raw
        kind, config = registry.get("method", method), self.config({})
        self.space = Space(kind.space(config.settings), config.settings, config.optimizer)
        if not self.space.declared:
            raise UserError(f"method '{method}' declares no space to tune, or its settings leave none")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=seed % 2**32, constant_liar=True, n_startup_trials=max(3, min(10, trials // 3))
            )
        self.score = scoring(config.problem, config.score).score
        self.study: Study = optuna.create_study(direction="maximize", sampler=sampler)
        self.study.enqueue_trial(self.space.own_params())
        self.trials: list[Trial] = []
        self._asked: dict[int, Asked] = {}

    def config(self, found: Mapping[str, Any]) -> Config:
        """Return the run's config with these settings of the method."""
        settings = [(f"{self.method}.{name}", value) for name, value in found.items()]
        return resolve(merge(self.raw, [("method", self.method), *settings]))

    def ask(self) -> Trial:
        """Return the next settings to try; the first are the file's own."""
        asked = self.study.ask()
        trial = Trial(self.method, len(self.trials) + 1, self.space.suggest(asked), score=self.score)
        self.trials.append(trial)
        self._asked[trial.number] = asked
        return trial

    def tell(self, trial: Trial) -> None:
        """Learn what came of a trial; settings that diverge or exclude each other are worth nothing."""
        asked = self._asked.pop(trial.number)
        for task, value in enumerate(trial.values, 1):
            asked.report(trial.score.sign * value, task)
        if trial.state == "given up":
            self.study.tell(asked, state=_optuna().trial.TrialState.PRUNED)
        else:
            self.study.tell(asked, trial.worth)

    def floors(self) -> tuple[float, ...]:
        """Return the scores after each task but the last below which a trial is hopeless, where 0 is the worst."""
        if self.score.bounds is None or self.score.bounds[0] or not self.score.higher:
            return ()
        if sum(trial.state == "finished" for trial in self.trials) < BEFORE_PRUNING:
            return ()
        return tuple(HOPELESS * value for value in self.best.values[:-1])

    @property
    def own(self) -> Trial:
        """The trial of the file's own values."""
        return self.trials[0]

    @property
    def best(self) -> Trial:
        """The best finished trial; the file's own where nothing is better."""
        return best_of(self.trials)


def best_of(trials: Sequence[Trial]) -> Trial:
    """Return the best finished trial; among equals, and where none is finished, the first."""
    return max(trials, key=lambda trial: (trial.state == "finished", trial.worth))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("tuning needs Optuna; run: pip install 'cflag[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
