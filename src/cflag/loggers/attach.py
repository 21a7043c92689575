"""How loggers follow a run (`log = "tensorboard,mlflow"`).

They get the lines of metrics.jsonl from the process that writes them, so a round is logged once on every engine. The
run folder has everything: a logger that starts, or starts again, first takes what it lacks from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from cflag import registry
from cflag.config import Config, log_names
from cflag.data.schedules.base import own_rounds, total_rounds
from cflag.errors import InterruptedRunError, UserError
from cflag.loggers.base import Logger, State, Status
from cflag.problems.score import ACCURACY, Score
from cflag.results import drawing
from cflag.results.display import Display, Quiet
from cflag.results.folder import RunFolder


def require_loggers(log: str) -> None:
    """Refuse loggers whose package is missing, before a run writes anything; the package is not imported for it."""
    for name in log_names(log):
        kind: type[Logger] = registry.get("logger", name)
        if any(find_spec(module) is None for module in kind.modules()):
            raise UserError(f"log = '{log}' needs {kind.title}; install it with: pip install '{kind.package}'")


def _make(name: str, config: Config, folder: RunFolder) -> Logger:
    logger: Logger = registry.get("logger", name)(name, config, folder)
    return logger


class Several(Quiet):
    """Several displays as one."""

    def __init__(self, displays: Sequence[Display]) -> None:
        self.displays = displays

    def start(self, name: str, tasks: int, rounds: int, done: int, own: int = 0, score: Score = ACCURACY) -> None:
        """Start all of them."""
        for display in self.displays:
            display.start(name, tasks, rounds, done, own, score)

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
def attached(display: Display, config: Config, folder: RunFolder) -> Iterator[Display]:
    """Attach the config's loggers to a display for as long as a run goes on, and tell them how it ended."""
    loggers = [Careful(name, config, folder, display) for name in log_names(config.log)]
    shown = Several([display, *loggers])
    status: Status = "FAILED"
    try:
        yield shown
        if loggers:
            drawing.wait()  # they take the figures along
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
    """Tell loggers how a run ended that another process carried, in case it ended before it could tell them."""
    try:
        yield
        catch_up(display, config, folder)
    except BaseException as error:
        for name in log_names(config.log):
            with suppress(Exception):  # the run's own error matters more
                _make(name, config, folder).abandon(_status(error))
        raise


def catch_up(display: Display, config: Config, folder: RunFolder) -> None:
    """Log what loggers lack of a finished run, because they failed or the process was killed at the very end."""
    state = State(folder)
    for name in [] if folder.in_use() else log_names(config.log):
        if not state.of(name).get("finished"):
            logger = Careful(name, config, folder, display)
            logger.status = "FINISHED"
            logger.start(config.method, config.tasks, config.rounds, total_rounds(config), own_rounds(config))
            logger.stop()


def _status(error: BaseException) -> Status:
    stopped = (InterruptedRunError, KeyboardInterrupt, SystemExit)
    return "KILLED" if isinstance(error, stopped) else "FAILED"


class Careful(Quiet):
    """A logger that may fail without harm: a note says so once, the run goes on, and at its end it is tried again."""

    def __init__(self, name: str, config: Config, folder: RunFolder, display: Display) -> None:
        self.logger = _make(name, config, folder)
        self.folder = folder
        self.display = display
        self.status: Status = "FAILED"
        self.started: tuple[str, int, int, int, int] | None = None
        self.broken = False

    def start(self, name: str, tasks: int, rounds: int, done: int, own: int = 0, score: Score = ACCURACY) -> None:
        """Open the log."""
        self.started = (name, tasks, rounds, done, own)
        self._try(lambda: self.logger.start(name, tasks, rounds, done, own))

    def update(self, record: dict[str, Any]) -> None:
        """Log a round."""
        if not self.broken:
            self._try(lambda: self.logger.update(record))

    def stop(self) -> None:
        """Close the log; where it failed, open it again and log what is missing."""
        if self.started is None:
            return
        if self.broken:
            self.logger = _make(self.logger.name, self.logger.config, self.folder)
            with suppress(Exception):  # a note said so when it failed
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
                f"logging to {self.logger.title} failed ({why}); the run goes on, its folder has everything; what is "
                f"missing is logged at the end, or later with: cflag run --resume {self.folder.path}"
            )
            self.display.note(text)
            with suppress(OSError):
                self.folder.say(text)  # for whoever sees no display: fleets and comparisons
