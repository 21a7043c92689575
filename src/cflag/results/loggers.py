"""TensorBoard and MLflow: a run's rounds also go where people look at many runs (`log = "tensorboard,mlflow"`).

They get what metrics.jsonl has, from the process that writes it, so a round is logged once whatever the engine. The
run folder stays the truth: a logger that starts, or starts again, first takes from there what it does not have yet.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

from cflag.config import Config, flatten, log_names
from cflag.errors import InterruptedRunError, UserError
from cflag.files import write_json
from cflag.results.display import Display, Quiet

if TYPE_CHECKING:
    from cflag.results.folder import RunFolder

Status = Literal["FINISHED", "FAILED", "KILLED"]

STATE = "loggers.json"
"""What loggers keep in the run folder: MLflow's id of the run, and who has logged it to its end."""
STORE, ARTIFACTS = "mlflow.db", "mlruns"
"""MLflow's store beside the run folder, where the environment names no other."""

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


def require_loggers(log: str) -> None:
    """Say what to install where a logger's package is missing; nothing is imported, which takes seconds."""
    for name in log_names(log):
        if any(find_spec(module) is None for module in LOGGERS[name].modules()):
            raise UserError(f"log = '{log}' needs {LOGGERS[name].title}; install it with: pip install 'cflag[{name}]'")


class Several(Quiet):
    """Several displays as one."""

    def __init__(self, displays: Sequence[Display]) -> None:
        self.displays = displays

    def start(self, name: str, tasks: int, rounds: int, done: int) -> None:
        """Start all of them."""
        for display in self.displays:
            display.start(name, tasks, rounds, done)

    def update(self, record: dict[str, Any]) -> None:
        """Show all of them a round."""
        for display in self.displays:
            display.update(record)

    def note(self, text: str) -> None:
        """Tell all of them."""
        for display in self.displays:
            display.note(text)

    def stop(self) -> None:
        """Stop all of them."""
        for display in self.displays:
            display.stop()


@contextmanager
def logged(display: Display, config: Config, folder: RunFolder) -> Iterator[Display]:
    """Let the config's loggers follow a run beside the display, and tell them how it ended."""
    loggers = [Careful(name, config, folder, display) for name in log_names(config.log)]
    shown = Several([display, *loggers])
    status: Status = "FAILED"
    try:
        yield shown
        status = "FINISHED"
    except BaseException as error:
        status = _status(error)
        raise
    finally:
        for logger in loggers:
            logger.status = status
        shown.stop()


@contextmanager
def ended_elsewhere(display: Display, config: Config, folder: RunFolder) -> Iterator[None]:
    """Say how a run ended whose loggers are in a process that was ended with it and may have said nothing."""
    try:
        yield
        catch_up(display, config, folder)
    except BaseException as error:
        for name in log_names(config.log):
            with suppress(Exception):  # there is an error on its way already
                LOGGERS[name](config, folder).abandon(_status(error))
        raise


def catch_up(display: Display, config: Config, folder: RunFolder) -> None:
    """Log what loggers missed of a finished run, because they were broken or the process died at the very end."""
    state = _State(folder)
    for name in [] if folder.in_use() else log_names(config.log):
        if not state.of(name).get("finished"):
            logger = Careful(name, config, folder, display)
            logger.status = "FINISHED"
            logger.start(config.method, config.tasks, config.rounds, config.tasks * config.rounds)
            logger.stop()


def _status(error: BaseException) -> Status:
    stopped = (InterruptedRunError, KeyboardInterrupt, SystemExit)
    return "KILLED" if isinstance(error, stopped) else "FAILED"


class Careful(Quiet):
    """A logger that may break without harm: it is said once, the run goes on, and at its end we try once more."""

    def __init__(self, name: str, config: Config, folder: RunFolder, display: Display) -> None:
        self.logger: Logger = LOGGERS[name](config, folder)
        self.folder = folder
        self.display = display
        self.status: Status = "FAILED"
        self.started: tuple[str, int, int, int] | None = None
        self.broken = False

    def start(self, name: str, tasks: int, rounds: int, done: int) -> None:
        """Open the log."""
        self.started = (name, tasks, rounds, done)
        self._try(lambda: self.logger.start(name, tasks, rounds, done))

    def update(self, record: dict[str, Any]) -> None:
        """Log a round."""
        if not self.broken:
            self._try(lambda: self.logger.update(record))

    def stop(self) -> None:
        """Close the log; where it was broken, open it anew and log what is missing."""
        if self.started is None:
            return
        if self.broken:
            self.logger = type(self.logger)(self.logger.config, self.folder)
            with suppress(Exception):  # it was said when it broke
                self.logger.start(*self.started)
                self.logger.end(self.status)
        else:
            self._try(lambda: self.logger.end(self.status))

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self.broken = True
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            text = (
                f"logging to {self.logger.title} failed ({why}); the run goes on, its folder has all; what is missing "
                f"is logged at the end, or later with: cflag run --resume {self.folder.path}"
            )
            self.display.note(text)
            with suppress(OSError):
                self.folder.say(text)  # for whoever sees no display: fleets and comparisons


class Logger(Quiet):
    """What TensorBoard and MLflow have in common: which numbers they get, and which rounds they have already."""

    name = ""
    title = ""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config = config
        self.folder = folder
        self.state = _State(folder)
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

    def open(self, done: int) -> set[int]:
        """Open the log of a run of which so many rounds are done; return the rounds that are in it."""
        raise NotImplementedError

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log a round's numbers."""
        raise NotImplementedError

    def sum_up(self, result: Mapping[str, Any]) -> None:
        """Log what result.json has."""
        raise NotImplementedError

    def close(self, status: Status) -> None:
        """Close the log."""
        raise NotImplementedError

    def abandon(self, status: Status) -> None:
        """Note how a run ended that another process logged."""


class TensorBoardLogger(Logger):
    """Event files in RUN/tensorboard."""

    name = "tensorboard"
    title = "TensorBoard"

    def open(self, done: int) -> set[int]:
        """Go on after the rounds that are there; any beyond those that are done count no more."""
        from torch.utils.tensorboard import SummaryWriter

        path = self.folder.path / "tensorboard"
        there = _events(path)
        self.summed_up = any(tag.startswith("result/") for tag, _ in there)
        self.writer = SummaryWriter(str(path), purge_step=done + 1 if there and not self.summed_up else None)
        if not there:
            self.writer.add_text("config", f"```toml\n{self.config.to_toml()}```", 0)
        return {step for tag, step in there if tag == TIME and step <= done}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a round at once: who looks wants to see it."""
        self._write([_scalar(name, value) for name, value in values.items()], step)

    def _write(self, parts: Iterable[Any], step: int) -> None:
        """Write one event, which is in the file as a whole or not at all."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        whole = Summary(value=[value for part in parts for value in part.value])
        self.writer._get_file_writer().add_summary(whole, step)
        self.writer.flush()

    def sum_up(self, result: Mapping[str, Any]) -> None:
        """Add what the run came to, its settings beside it, and the figures."""
        from torch.utils.tensorboard.summary import hparams

        found = summary(result)
        parts = [_scalar(name, value) for name, value in found.items()]
        parts += [_image(path) for path in sorted((self.folder.path / "figures").glob("*.png"))]
        parts += hparams(settings(self.config), dict(found))  # SummaryWriter.add_hparams would make a run of its own
        if not self.summed_up:
            self._write(parts, self.config.tasks * self.config.rounds)

    def close(self, status: Status) -> None:
        """Close the file."""
        self.writer.close()


class MlflowLogger(Logger):
    """A run in MLflow's store, which MLFLOW_TRACKING_URI names; else it is a database beside the run folder."""

    name = "mlflow"
    title = "MLflow"

    @classmethod
    def modules(cls) -> Iterable[str]:
        """The small mlflow package, and what a database of our own takes."""
        return ["mlflow"] if os.environ.get("MLFLOW_TRACKING_URI") else ["mlflow", "sqlalchemy", "alembic"]

    def open(self, done: int) -> set[int]:
        """Go on with the run whose id is in the run folder, or begin one."""
        self.client = self._client()
        run = self._kept() or self._new()
        self.run = run.info.run_id
        self.client.update_run(self.run, status="RUNNING")
        self._log_settings(run.data.params)
        return {metric.step for metric in self.client.get_metric_history(self.run, TIME)}

    def _client(self) -> Any:
        # Unless the environment says otherwise: tell nobody that it is used, and do not hold the run up for minutes
        # where a server is gone.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells of every table it makes
        self.home = self.folder.path.absolute().parent
        return MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or _own_store(self.home))

    def _kept(self) -> Any:
        """Return the run that was begun; None where the store does not have it, or it was deleted there."""
        from mlflow.exceptions import MlflowException

        kept = self.state.of(self.name).get("run")
        try:
            run = self.client.get_run(kept) if kept else None
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run if run and run.info.lifecycle_stage == "active" else None

    def _new(self) -> Any:
        run = self.client.create_run(self._experiment(), run_name=self.folder.path.absolute().name)
        self.state.keep(self.name, run=run.info.run_id)
        return run

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "cflag"
        found = self.client.get_experiment_by_name(name)
        if found is None:
            own = None if os.environ.get("MLFLOW_TRACKING_URI") else (self.home / ARTIFACTS).as_uri()
            try:
                return str(self.client.create_experiment(name, artifact_location=own))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another run of a comparison was faster
                    raise
            found = self.client.get_experiment_by_name(name)
        return str(found.experiment_id)

    def _log_settings(self, there: Mapping[str, str]) -> None:
        """Log the settings once: MLflow lets nobody change them, and some may be when a run is resumed."""
        from mlflow.entities import Param

        params = [Param(key, str(value)) for key, value in settings(self.config).items() if key not in there]
        for start in range(0, len(params), 100):  # the most that MLflow takes at once
            self.client.log_batch(self.run, params=params[start : start + 100])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log a round in one piece, so that none is there by half."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def sum_up(self, result: Mapping[str, Any]) -> None:
        """Add what the run came to, and its files."""
        found = summary(result)
        if not set(found) <= set(self.client.get_run(self.run).data.metrics):
            self.log(self.config.tasks * self.config.rounds, found)
        for name in ("config.toml", "metrics.jsonl", "result.json"):
            self.client.log_artifact(self.run, str(self.folder.path / name))
        self.client.log_artifacts(self.run, str(self.folder.path / "figures"), "figures")

    def close(self, status: Status) -> None:
        """Say how the run ended."""
        self.client.set_terminated(self.run, status)

    def abandon(self, status: Status) -> None:
        """Say it of a run that was begun and is not known to be finished."""
        kept = self.state.of(self.name)
        if "run" in kept and not kept.get("finished"):
            self._client().set_terminated(kept["run"], status)


def _own_store(home: Path) -> str:
    """Return the address of the store beside the runs, made where there is none.

    Making it takes many steps. A run that was killed, or two at once, would leave one that nobody can open: so it is
    made aside, by one process at a time, and put in its place in one step.
    """
    from mlflow import MlflowClient

    path, fresh = home / STORE, home / f"{STORE}.new"
    with open(home / f".{STORE}.lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if not path.exists():
            for left in (fresh, home / f"{fresh.name}-journal"):
                left.unlink(missing_ok=True)
            MlflowClient(tracking_uri=f"sqlite:///{fresh}").search_experiments(max_results=1)
            os.replace(fresh, path)
    return f"sqlite:///{path}"


LOGGERS: dict[str, type[Logger]] = {"mlflow": MlflowLogger, "tensorboard": TensorBoardLogger}


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


def _scalar(name: str, value: float) -> Any:
    from torch.utils.tensorboard.summary import scalar

    return scalar(name, value)  # in single precision: the reader behind TensorBoard's page leaves out what has more


def _image(path: Path) -> Any:
    import numpy as np
    from PIL import Image
    from torch.utils.tensorboard.summary import image

    with Image.open(path) as figure:
        return image(f"figures/{path.stem}", np.asarray(figure.convert("RGB")), dataformats="HWC")


def _events(path: Path) -> set[tuple[str, int]]:
    """Return the tags and steps in a folder of event files; a file that was cut short counts as far as it goes."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    files = sorted(path.glob("events.out.tfevents.*"))
    events = (event for file in files for event in EventFileLoader(str(file)).Load())
    return {(value.tag, event.step) for event in events for value in event.summary.value}


class _State:
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
