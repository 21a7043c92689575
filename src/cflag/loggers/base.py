"""What loggers have in common: which numbers they get, which rounds they already have, what they keep.

A logger of your own is a class that derives from `Logger` and is registered:

    @register("logger", "mine")
    class MyLogger(Logger): ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from cflag import registry
from cflag.config import Config, flatten
from cflag.diagnostics import STREAM_FIGURE, Figure, client_mean, number
from cflag.files import read_json, write_sealed_json
from cflag.problems.base import scoring
from cflag.problems.score import ACCURACY, Score
from cflag.results.display import Quiet
from cflag.results.folder import RunFolder
from cflag.results.metrics import CLIENT, ROUND, read_metrics

Status = Literal["FINISHED", "FAILED", "KILLED"]

STATE = "loggers.json"
"""What loggers keep in the run folder: MLflow's id of the run, and which loggers have the whole run."""
NAMES = {
    "loss": "loss/current",
    "memory_loss": "loss/memory",
    "accuracy": "accuracy/mean",
    "epsilon": "privacy/epsilon",
}
"""What keys of metrics.jsonl are called; the part before the slash is a heading in both tools. Where the run's score is
another than accuracy, its name stands for that."""
SUMS = ("gradients_current", "gradients_memory", "bytes_up", "bytes_down")
"""What is logged as a sum over the rounds so far."""
TIME = "seconds"
"""Every round has it, so it tells which rounds a log has."""
SUMMARY = ("average_accuracy", "forgetting", "forgetting_max", "backward_transfer", "forward_transfer",
           "learning_accuracy")  # fmt: skip
MEASURED = ("accuracy_seen", "accuracy_anyone", "worst_tenth", "anytime_accuracy")
"""What else is logged of a finished run, from its measures over all clients."""


class Logger(Quiet, ABC):
    """Sends each round of a run elsewhere, once, whenever the run is stopped and resumed."""

    title: ClassVar[str] = "its logger"
    """What people call it."""
    package: ClassVar[str] = ""
    """What `pip install` needs to be given for its modules."""

    def __init__(self, name: str, config: Config, folder: RunFolder) -> None:
        self.name = name
        self.config = config
        self.folder = folder
        self.state = State(folder)
        self.figures: tuple[Figure, ...] = (*registry.get("method", config.method).figures, STREAM_FIGURE)
        self.score = scoring(config.problem, config.score).score
        self.logged: set[int] = set()
        self.spent: dict[str, float] = dict.fromkeys(SUMS, 0)

    @classmethod
    def modules(cls) -> Iterable[str]:
        """Return the modules it needs."""
        return []

    def start(self, name: str, tasks: int, rounds: int, done: int, own: int = 0, score: Score = ACCURACY) -> None:
        """Open the log and bring it up to date with the run folder."""
        records = read_metrics(self.folder.metrics)
        self.logged = self.open(len(records))
        for record in records:
            self.update(record)

    def update(self, record: dict[str, Any]) -> None:
        """Log a round, unless the log has it."""
        for name in SUMS:
            self.spent[name] += record[name]
        step = (record["task"] - 1) * self.config.rounds + record["round"]
        if step not in self.logged:
            self.logged.add(step)
            costs = {f"cost/{name}": value for name, value in self.spent.items()}
            self.log(step, {**scalars(record, self.figures, self.score), **costs, TIME: record[TIME]})

    def end(self, status: Status) -> None:
        """Sum a finished run up; close the log."""
        if status == "FINISHED":
            self.sum_up(read_json(self.folder.path / "result.json"))
        self.close(status)
        if status == "FINISHED":
            self.state.keep(self.name, finished=True)

    @abstractmethod
    def open(self, done: int) -> set[int]:
        """Open the log of a run with this many finished rounds; return the rounds it already has, counted from 1."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log a round's numbers."""

    @abstractmethod
    def sum_up(self, result: Mapping[str, Any]) -> None:
        """Log what result.json has."""

    @abstractmethod
    def close(self, status: Status) -> None:
        """Close the log."""

    def abandon(self, status: Status) -> None:
        """Note how a run ended that another process logged."""


def scalars(record: Mapping[str, Any], figures: Iterable[Figure], score: Score = ACCURACY) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl by their names in the logs; what is no number is left out."""
    named: dict[str, Any] = {score.named(name): record.get(key) for key, name in NAMES.items()}
    named |= {f"{score.name}/task_{k:02d}": value for k, value in enumerate(record.get("accuracies") or [], 1)}
    named |= _undeclared(record, {series.key for figure in figures for series in figure.series})
    for figure in figures:
        named |= figure.scalars(record)
    return {name: value for name, value in named.items() if number(value) is not None}


def _undeclared(record: Mapping[str, Any], declared: set[str]) -> dict[str, Any]:
    """Return what a method logs and does not declare; where clients and the server log a name, the server's counts."""
    clients = [key for key in record["clients"] if key not in declared.union(CLIENT)]
    server = [key for key in record if key not in declared.union(ROUND)]
    named = {f"method/{key}": client_mean(record, key) for key in clients}
    return {**named, **{f"method/{key}": record[key] for key in server}}


def summary(result: Mapping[str, Any]) -> dict[str, float]:
    """Return what a run came to, from result.json: its scores, its costs and what its method summed up."""
    score = Score.from_dict(result["score"]) if "score" in result else ACCURACY
    found = {f"result/{score.named(key)}": result[key] for key in SUMMARY}
    found |= {f"result/{score.named(key)}": result.get("measures", {}).get("all", {}).get(key) for key in MEASURED}
    totals = {**result.get("diagnostics", {}), **result["costs"]}
    found |= {f"total/{key}": value for key, value in totals.items()}
    return {name: value for name, value in found.items() if number(value) is not None}


def settings(config: Config) -> dict[str, Any]:
    """Return the config with dotted keys, without the tables of methods that are not run; lists become words."""
    raw = {key: value for key, value in config.to_dict().items() if key not in config.other_settings}
    return {key: value if isinstance(value, int | float | str) else str(value) for key, value in flatten(raw)}


class State:
    """What loggers keep in the run folder, each under its name."""

    def __init__(self, folder: RunFolder) -> None:
        self.path = folder.path / STATE

    def _all(self) -> dict[str, dict[str, Any]]:
        return read_json(self.path) if self.path.is_file() else {}

    def of(self, name: str) -> dict[str, Any]:
        """Return what a logger keeps."""
        return self._all().get(name, {})

    def keep(self, name: str, **values: Any) -> None:
        """Keep some more."""
        write_sealed_json(self.path, {**self._all(), name: {**self.of(name), **values}})
