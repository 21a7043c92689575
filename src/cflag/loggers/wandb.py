"""Weights & Biases: a run in RUN/wandb, or on its server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from cflag.data.schedules.base import total_rounds
from cflag.loggers.base import Logger, Status, settings, summary
from cflag.registry import register

DEFAULTS = {
    "WANDB_MODE": "offline",  # nothing leaves this machine unless someone says so
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_INIT_TIMEOUT": "20",  # a server that is gone does not hold the run up for minutes
    "WANDB_FINISH_TIMEOUT": "60",
    "WANDB_FINISH_TIMEOUT_RAISES": "true",
}
"""What we set of W&B's environment where the user has not."""
_OPEN: dict[str, Any] = {}
"""The runs that this process logs to, by the names of ours."""
EXITS: dict[Status, int] = {"FINISHED": 0, "FAILED": 1, "KILLED": 130}


@register("logger", "wandb", "W&B: files in RUN/wandb for 'wandb sync', or its server with WANDB_MODE=online")
class WandbLogger(Logger):
    """A run of W&B: in RUN/wandb, from where `wandb sync` sends it, or on its server with WANDB_MODE=online."""

    title = "W&B"
    package = "cflag[wandb]"

    @classmethod
    def modules(cls) -> Iterable[str]:
        """Return its package."""
        return ["wandb"]

    def open(self, done: int) -> set[int]:
        """Go on with the run on the server. Files are written anew: W&B cannot append to those of a killed run."""
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        import wandb

        online = os.environ["WANDB_MODE"] == "online"
        if not online:
            shutil.rmtree(self.folder.path / "wandb", ignore_errors=True)
        left = _OPEN.pop(self.folder.name, None)
        if left is not None:  # this process failed to log to it, and tries again
            with suppress(Exception):
                left.finish(exit_code=1)
        try:
            self.run = self._init(online)
        except Exception:
            wandb.teardown()  # or W&B would say that a run of this name is in use, for as long as the process lives
            raise
        _OPEN[self.folder.name] = self.run
        return set(range(1, self.run.starting_step))

    def _init(self, online: bool) -> Any:
        import wandb

        mode: Any = os.environ["WANDB_MODE"]
        return wandb.init(
            mode=mode,
            dir=str(self.folder.path.absolute()),
            project=os.environ.get("WANDB_PROJECT") or "cflag",
            name=self.folder.path.absolute().name,
            id=self.folder.name,
            config=settings(self.config),
            resume="allow" if online else None,
            reinit="create_new",
            settings=_settings(),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log a round."""
        self.run.log(dict(values), step=step, commit=True)

    def sum_up(self, result: Mapping[str, Any]) -> None:
        """Put what the run came to into its summary; the figures are one step after the last round."""
        import wandb

        self.run.summary.update(summary(result))
        figures = sorted((self.folder.path / "figures").glob("*.png"))
        after = total_rounds(self.config) + 1
        if figures and self.run.starting_step <= after:
            self.run.log({f"figures/{path.stem}": wandb.Image(str(path)) for path in figures}, step=after, commit=True)

    def close(self, status: Status) -> None:
        """Say how the run ended."""
        self.run.finish(exit_code=EXITS[status])
        _OPEN.pop(self.folder.name, None)


def _settings() -> Any:
    """Return W&B's settings: the numbers alone, not the terminal, the code, the machine or its load."""
    import wandb

    return wandb.Settings(
        console="off", silent=True, symlink=False, disable_git=True, save_code=False, disable_job_creation=True,
        x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True, x_save_requirements=False,
    )  # fmt: skip
