"""What loggers have in common: which numbers they get, which rounds they have already, what they keep."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import isfinite
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

from cflag.config import Config, flatten
from cflag.files import write_json
from cflag.results.display import Quiet

if TYPE_CHECKING:
    from cflag.results.folder import RunFolder

Status = Literal["FINISHED", "FAILED", "KILLED"]

STATE = "loggers.json"
"""What loggers keep in the run folder: MLflow's id of the run, and who has logged it to its end."""
NAMES = {
    "loss": "loss/current",
    "memory_loss": "loss/memory",
    "accuracy": "accuracy/mean",
    "gamma": "forgetting/gamma",
    "gamma_adapted": "forgetting/gamma_adapted",
    "server_beta": "rates/server_beta",
}
"""What keys of metrics.jsonl are called; the part before the slash is a heading in both tools."""
RATES = ("alpha", "beta", "lambda")
SPENT = ("gradients_current", "gradients_memory", "bytes_up", "bytes_down")
TIME = "seconds"
"""Every round has it: a round whose time is there is there."""
SUMMARY = ("average_accuracy", "forgetting", "forgetting_max", "backward_transfer", "forward_transfer",
           "learning_accuracy")  # fmt: skip


class Logger(Quiet, ABC):
    """What TensorBoard and MLflow have in common: which numbers they get, and which rounds they have already."""

    name = ""
    title = ""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config = config
        self.folder = folder
        self.state = State(folder)
        self.logged: set[int] = set()
        self.spent: dict[str, float] = dict.fromkeys(SPENT, 0)

    @classmethod
    def modules(cls) -> Iterable[str]:
        """Return the modules it needs."""
        return [cls.name]

    def start(self, name: str, tasks: int, rounds: int, done: int) -> None:
        """Open the log and bring it up to date with the run folder."""
        records = _records(self.folder)
        self.logged = self.open(len(records))
        for record in records:
            self.update(record)

    def update(self, record: dict[str, Any]) -> None:
        """Log a round, unless it is there."""
        for name in SPENT:
            self.spent[name] += record[name]
        step = (record["task"] - 1) * self.config.rounds + record["round"]
        if step not in self.logged:
            self.logged.add(step)
            self.log(step, {**scalars(record), **{f"cost/{k}": v for k, v in self.spent.items()}, TIME: record[TIME]})

    def end(self, status: Status) -> None:
        """Sum a finished run up; close the log."""
        if status == "FINISHED":
            self.sum_up(json.loads((self.folder.path / "result.json").read_text()))
        self.close(status)
        if status == "FINISHED":
            self.state.keep(self.name, finished=True)

    @abstractmethod
    def open(self, done: int) -> set[int]:
        """Open the log of a run of which so many rounds are done; return the rounds that are in it."""

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


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl by their names in the logs; what is no number is left out."""
    named = {name: record.get(key) for key, name in NAMES.items()}
    named |= {f"accuracy/task_{k:02d}": value for k, value in enumerate(record.get("accuracies") or [], 1)}
    for key in RATES:
        values = [value for value in record["clients"].get(key, []) if _is_number(value)]
        named[f"rates/{key}"] = mean(values) if values else None
    named |= {f"synthetic/{key.removeprefix('synthetic_')}": value for key, value in record.items()
              if key.startswith("synthetic_")}  # fmt: skip
    return {name: value for name, value in named.items() if value is not None and _is_number(value)}


def summary(result: Mapping[str, Any]) -> dict[str, float]:
    """Return what a run came to, from result.json: its accuracies and its costs."""
    found = {f"result/{key}": result[key] for key in SUMMARY}
    found |= {f"total/{key}": value for key, value in result["costs"].items()}
    return {name: value for name, value in found.items() if _is_number(value)}


def settings(config: Config) -> dict[str, Any]:
    """Return the config with dotted keys, without the tables of methods that are not run."""
    raw = {key: value for key, value in config.to_dict().items() if key not in config.other_settings}
    return dict(flatten(raw))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value)


def _records(folder: RunFolder) -> list[dict[str, Any]]:
    if not folder.metrics.exists():
        return []
    return [json.loads(line) for line in folder.metrics.read_text().splitlines()]


class State:
    """What loggers keep in the run folder, each under its name."""

    def __init__(self, folder: RunFolder) -> None:
        self.path = folder.path / STATE

    def _all(self) -> dict[str, dict[str, Any]]:
        return json.loads(self.path.read_text()) if self.path.is_file() else {}

    def of(self, name: str) -> dict[str, Any]:
        """Return what a logger keeps."""
        return self._all().get(name, {})

    def keep(self, name: str, **values: Any) -> None:
        """Keep some more."""
        write_json(self.path, {**self._all(), name: {**self.of(name), **values}})
