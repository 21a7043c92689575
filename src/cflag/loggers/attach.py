"""How loggers follow a run (`log = "tensorboard,mlflow"`).

They get what metrics.jsonl has, from the process that writes it, so a round is logged once whatever the engine. The
run folder stays the truth: a logger that starts, or starts again, first takes from there what it does not have yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cflag.config import Config, log_names
from cflag.errors import InterruptedRunError, UserError
from cflag.loggers.base import Logger, State, Status
from cflag.loggers.mlflow import MlflowLogger
from cflag.loggers.tensorboard import TensorBoardLogger
from cflag.results.display import Display, Quiet

if TYPE_CHECKING:
    from cflag.results.folder import RunFolder

LOGGERS: dict[str, type[Logger]] = {"mlflow": MlflowLogger, "tensorboard": TensorBoardLogger}


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
    state = State(folder)
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
