"""What a run found out. The fields of `result.json` are described in result.schema.json beside this file."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cflag import registry
from cflag.diagnostics import Figure
from cflag.errors import UserError
from cflag.files import WHAT_TO_DO, read_json
from cflag.problems.score import ACCURACY, Score
from cflag.results.digests import check_digests
from cflag.results.metrics import read_metrics

if TYPE_CHECKING:
    from torch import nn

    from cflag.models.reference import Maker
    from cflag.results.model import TrainedModel

SCHEMA = 5
READABLE = (2, 3, 4, SCHEMA)
"""The versions of result.json that can be read."""

Matrix = Sequence[Sequence[float | None]]
"""a[i][j]: the score on task j after learning task i; None for none, which no difference counts."""
Rows = Sequence[Sequence[float | None]]
"""The same with a row for each milestone; None where nobody who is left has held-out samples of the task."""


def average_accuracy(a: Rows) -> float:
    """Acc: the mean accuracy over all tasks after the last, without those that nobody who is left could test."""
    known = [value for value in a[-1] if value is not None]
    return fmean(known) if known else 0.0


def _mean(values: Iterable[float | None]) -> float:
    """Return the mean of the values there are, 0 for none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else 0.0


def _minus(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier


def forgetting(a: Matrix) -> float:
    """Forget, as the paper defines it: the mean over earlier tasks i of a_ii − a_Si; 0 for a single task."""
    return _mean(_minus(a[i][i], a[-1][i]) for i in range(len(a) - 1))


def forgetting_max(a: Matrix) -> float:
    """Forgetting from the best accuracy a task ever had before the last (Chaudhry et al., 2018)."""
    last = len(a) - 1
    known = [[v for k in range(j, last) if (v := a[k][j]) is not None] for j in range(last)]
    return _mean(_minus(max(known[j], default=None), a[-1][j]) for j in range(last))


def learning_accuracy(a: Matrix) -> float:
    """The mean accuracy on each task right after learning it."""
    return _mean(a[i][i] for i in range(len(a)))


def backward_transfer(a: Matrix) -> float:
    """The mean over earlier tasks of a_Si − a_ii (Lopez-Paz & Ranzato, 2017)."""
    return 0.0 - forgetting(a)


def forward_transfer(a: Matrix, initial: Sequence[float | None]) -> float:
    """The mean over later tasks of the accuracy just before learning them, above that of the initial model."""
    return _mean(_minus(a[i - 1][i], initial[i]) for i in range(1, len(a)))


def better_is_higher(a: Matrix, score: Score) -> Matrix:
    """Return a matrix of which all differences mean what they say: with the sign turned where lower is better."""
    return a if score.higher else [[None if value is None else -value for value in row] for row in a]


@dataclass(frozen=True)
class Beside:
    """Another score of the same run: its matrix, as the run's scenario reads it."""

    score: Score
    matrix: Rows

    @property
    def average(self) -> float | None:
        """The mean over all tasks after the last; None for none."""
        known = [value for value in self.matrix[-1] if value is not None]
        return fmean(known) if known else None


@dataclass(frozen=True)
class Result:
    """A finished run: its scores, what they cost, and what it takes to repeat it.

    What says accuracy holds the run's score, whatever its problem: `score` says which. `average_score`, `score_matrix`,
    `learning_score` and `score_so_far` are the same numbers by a name that fits all.
    """

    method: str
    seed: int
    matrices: dict[str, Any]
    """The accuracy matrix with the task of a sample known ("task") and not known ("class"), from the same run: a row
    for each milestone, which is after each task where everybody is in the same."""
    initial_accuracy: list[float]
    client_matrices: list[list[list[float | None]]]
    costs: dict[str, float]
    config: dict[str, Any]
    versions: dict[str, str]
    by_task: bool = True
    """Whether the scenario tells a sample's task: which of the two matrices is the run's own."""
    diagnostics: dict[str, float] = field(default_factory=dict)
    """Sums over the run of what the method measures, where it declares a total."""
    figures: tuple[Figure, ...] = ()
    """What the method measures along the way."""
    folder: Path | None = field(default=None, compare=False)
    milestones: list[int] = field(default_factory=list)
    """The rounds, from 1 and over the whole run, after which all tasks were tested: someone had left one."""
    measures: dict[str, Any] = field(default_factory=dict)
    """What `results/measures.py` finds, `all` and `clients`; empty for results of earlier versions."""
    plan: dict[str, Any] | None = None
    """Where clients have clocks of their own: everyone's `first` and `last` round of every task, from 1, and from
    which on it is `gone`."""
    score: Score = ACCURACY
    """What the numbers in matrices are: accuracies, unless the problem is another."""
    beside: list[Beside] = field(default_factory=list)
    """The other scores of the problem."""

    @property
    def together(self) -> bool:
        """Whether everybody was always in the same task."""
        return self.plan is None

    @property
    def rows(self) -> tuple[str, list[int]]:
        """After what each row of the accuracy matrix is: "task" or "round", and its numbers from 1."""
        return ("task", list(range(1, len(self.accuracy_matrix) + 1))) if self.together else ("round", self.milestones)

    def begun(self, row: int, task: int) -> bool:
        """Whether anyone had begun a task by a milestone."""
        return task <= row if self.together else self._begun_in[task] <= self.milestones[row]

    @cached_property
    def _begun_in(self) -> list[float]:
        """The round in which the first client begins each task."""
        firsts = zip(*(self.plan or {})["first"], strict=True)
        return [min((r for r in rounds if r is not None), default=inf) for rounds in firsts]

    @property
    def accuracy_so_far(self) -> list[float]:
        """The mean accuracy on the tasks that anyone had begun, after each milestone."""
        shown = [[v for j, v in enumerate(row) if v is not None and self.begun(i, j)]
                 for i, row in enumerate(self.accuracy_matrix)]  # fmt: skip
        return [fmean(values) if values else 0.0 for values in shown]

    @property
    def accuracy_matrix(self) -> Any:
        """The matrix of the run's own scenario; None in it where nobody who is left could test a task."""
        return self.matrices["task" if self.by_task else "class"]

    @property
    def other_matrix(self) -> Any:
        """The same run read the other way: class-incremental where it is task-incremental, and the reverse."""
        return self.matrices["class" if self.by_task else "task"]

    @property
    def average_score(self) -> float:
        """The mean score over all tasks after the last: accuracy for classes."""
        return average_accuracy(self.accuracy_matrix)

    @property
    def average_accuracy(self) -> float:
        """Acc: the mean accuracy over all tasks after the last; `average_score`, whatever the score is."""
        return self.average_score

    @property
    def score_matrix(self) -> Any:
        """The matrix of the run's own scenario, in the problem's score."""
        return self.accuracy_matrix

    @property
    def learning_score(self) -> float:
        """The mean score on each task right after learning it."""
        return self.learning_accuracy

    @property
    def score_so_far(self) -> list[float]:
        """The mean score on the tasks that anyone had begun, after each milestone."""
        return self.accuracy_so_far

    @property
    def forgetting(self) -> float:
        """Forget: the paper's mean of a_ii − a_Si; with clocks of their own, from each client's moment of learning.

        Where a lower score is better it is the mean of a_Si − a_ii: positive is always worse.
        """
        return self.summary()["forgetting"]

    @property
    def learning_accuracy(self) -> float:
        """The mean accuracy on each task right after learning it."""
        return self.summary()["learning_accuracy"]

    def measured(self, name: str) -> float | None:
        """Return a measure over all clients; None where there is none."""
        value: float | None = self.measures.get("all", {}).get(name)
        return value

    def summary(self) -> dict[str, float]:
        """Return a run's few numbers; where clients have clocks of their own, 0 for what nobody has a value of."""
        a = self.accuracy_matrix
        if not self.together:
            names = ("forgetting", "forgetting_max", "backward_transfer", "forward_transfer", "learning_accuracy")
            return {"average_accuracy": average_accuracy(a)} | {name: self.measured(name) or 0.0 for name in names}
        signed, initial = (better_is_higher(m, self.score) for m in (a, [self.initial_accuracy]))
        return {
            "average_accuracy": average_accuracy(a),
            "forgetting": forgetting(signed),
            "forgetting_max": forgetting_max(signed),
            "backward_transfer": backward_transfer(signed),
            "forward_transfer": forward_transfer(signed, initial[0]),
            "learning_accuracy": learning_accuracy(a),
        }

    def model(self, own: nn.Module | Maker | None = None, device: str = "cpu") -> TrainedModel:
        """Return what was learned, ready to predict.

        A model that was handed over in Python must be given again, for its code: its class, or an object of it. One by
        file is found there, as long as the file is what it was.
        """
        from cflag.results.model import load_model

        if self.folder is None:
            raise UserError("this result has no run folder, and its model is there")
        return load_model(self.folder, own, device)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, one per round."""
        return [] if self.folder is None else read_metrics(self.folder / "metrics.jsonl")

    def to_dict(self) -> dict[str, Any]:
        """Return what result.json holds."""
        raw = asdict(self)
        raw.pop("folder")
        if self.together:
            raw.pop("plan")
        first = {"schema": SCHEMA, "method": raw.pop("method"), "seed": raw.pop("seed")}
        named = {"score": raw.pop("score"), "average_score": self.average_score}
        return {**first, **named, **self.summary(), "accuracy_matrix": self.accuracy_matrix, **raw}

    @classmethod
    def load(cls, folder: Path | str) -> Result:
        """Read a finished run back."""
        folder = Path(folder)
        check_digests(folder)
        if not (folder / "result.json").exists():
            raise no_run(folder, "holds no finished run: there is no result.json in it")
        raw = read_json(folder / "result.json")
        if raw.get("schema") not in READABLE:
            raise UserError(f"{folder} was written by another version of cflag; run it again in a new folder")
        try:
            return cls._read(raw, folder)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{folder / 'result.json'} is damaged ({error!r}); {WHAT_TO_DO}") from None

    @classmethod
    def _read(cls, raw: dict[str, Any], folder: Path) -> Result:
        names = ("method", "seed", "matrices", "initial_accuracy", "client_matrices", "costs", "config", "versions")
        return cls(
            **{name: raw[name] for name in names},
            by_task=raw["by_task"] if "by_task" in raw else raw["config"]["scenario"] == "task",
            diagnostics=raw.get("diagnostics", {}),
            figures=_figures(raw),
            folder=folder,
            milestones=raw["milestones"] if "milestones" in raw else _ends(raw),
            measures=raw.get("measures", {}),
            plan=raw.get("plan"),
            score=Score.from_dict(raw["score"]) if "score" in raw else ACCURACY,
            beside=[Beside(Score.from_dict(each["score"]), each["matrix"]) for each in raw.get("beside", [])],
        )


def _ends(raw: dict[str, Any]) -> list[int]:
    """Return the last round of each task: results of earlier versions do not say, as everybody was together."""
    return [(task + 1) * raw["config"]["rounds"] for task in range(len(raw["accuracy_matrix"]))]


def _figures(raw: dict[str, Any]) -> tuple[Figure, ...]:
    """Return the figures that a result declares; an older one does not say, so its method does where it is known."""
    if "figures" in raw:
        return tuple(Figure.from_dict(figure) for figure in raw["figures"])
    known: tuple[Figure, ...] = ()
    with suppress(UserError):
        known = registry.get("method", raw["method"]).figures
    return known


def versions() -> dict[str, str]:
    """Return the versions a result depends on."""
    import numpy
    import torch

    import cflag

    found = {
        "cflag": cflag.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    commit = _commit(Path(cflag.__file__).parents[2])
    return {**found, "commit": commit} if commit else found


def _commit(checkout: Path) -> str:
    """Return the commit of the checkout this runs from, with a mark if files were changed; none if it is installed."""
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=-changed", "--match="]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git here, or not our checkout
        return ""


def no_run(folder: Path, said: str) -> UserError:
    """Return the error of a folder that is no run; name the runs in it, where `--methods` or `--seeds` made some."""
    inner = sorted(str(path.parent) for path in folder.glob("*/config.toml"))
    if not inner:
        return UserError(f"{folder} {said}")
    more = f" and {len(inner) - 3} more" if len(inner) > 3 else ""
    return UserError(f"{folder} is no run itself; name one of those in it: {', '.join(inner[:3])}{more}")
