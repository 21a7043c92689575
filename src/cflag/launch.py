"""Starting runs: from Python by `run` and `resume`, and on the engine that a config names."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from cflag.config import CUSTOM, Config, resolve
from cflag.data.source import Source
from cflag.engines.flower import require_flower
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.learning.learner import OwnLoss
from cflag.loggers.attach import catch_up, require_loggers
from cflag.methods.base import Method
from cflag.models.reference import Maker, maker_of
from cflag.own import Own, method_name, taken
from cflag.results.display import Bar, Display, Quiet
from cflag.results.folder import RunFolder, new_folder
from cflag.results.result import Result
from cflag.stopping import explain_failures


def run(
    preset: str | None = None,
    *,
    source: Source | str | None = None,
    model: nn.Module | Maker | str | None = None,
    loss: OwnLoss | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Result:
    """Run a preset or TOML file with changes, for example `run("digits", method="cflag", cflag={"beta": 0.1})`.

    A `source` or `model`, by name or your own object, replaces the preset's; `method` may be a class of your own, and
    `model` a class or a function that makes it from (shape, outputs, options), or from nothing. Without a preset it is
    Split-Digits, or plain defaults where the source is your own. The run folder is `out`, or a new one under `runs/`.
    """
    raw, own = taken(preset, source, model, loss, settings)
    config = resolve(raw)
    if loss is not None and config.engine != "local":
        raise UserError(f"engine = '{config.engine}' starts processes that know no loss of your own: use 'local'")
    experiment = own.experiment(config)
    check_engine(config)
    require_loggers(config.log)
    name = f"{Path(preset or config.source).stem}-{config.method}-{config.seed}"
    folder = RunFolder.create(Path(out) if out is not None else new_folder(name), config)
    return carry(experiment, folder, _bar() if progress else Quiet())


def resume(
    folder: str | Path,
    *,
    source: Source | None = None,
    model: nn.Module | Maker | None = None,
    loss: OwnLoss | None = None,
    method: type[Method] | None = None,
) -> Result:
    """Resume a run folder; a run with a source, model, loss or method of your own needs the same ones again."""
    begun = RunFolder.open(Path(folder))
    if method is not None:
        method_name(method)
    made = model if model is None or isinstance(model, nn.Module) else maker_of(model, "model")
    return carry(Own(source, made, loss).experiment(begun.config()), begun, Quiet())


def carry(experiment: Experiment, folder: RunFolder, display: Display) -> Result:
    """Carry the run of a folder to its end, on the engine that its config names."""
    config = experiment.config
    if config.engine == "local":
        return experiment.run_in(folder, display)
    if folder.finished:
        return finished(folder, display)
    check_engine(config, folder)
    require_loggers(config.log)
    with explain_failures(folder.path), require_flower():
        from cflag.engines.flower.processes.deploy import simulate

        if not config.privacy.on:
            folder.describe_data(experiment.benchmark.class_counts(), experiment.benchmark.source.name)
            for line in experiment.benchmark.notes():
                display.note(line)
        return simulate(folder, config, display)


def finished(folder: RunFolder, display: Display) -> Result:
    """Return a finished run's result, and log what loggers lack of it; parts of one's own need not be here."""
    result = folder.result()
    folder.draw_missing(result)
    try:
        config = folder.config()
    except UserError:
        return result
    catch_up(display, config, folder)
    return result


def check_engine(config: Config, folder: RunFolder | None = None) -> None:
    """Refuse an engine that cannot carry a run from here, before anything is written."""
    if config.engine == "flower" and folder is not None:
        raise UserError(f"{folder.path} is a deployment's; go on with: cflag deploy --resume {folder.path}")
    if config.engine == "flower":
        raise UserError("engine = 'flower' is for fleets; use: cflag deploy, or cflag server")
    if config.engine == "flower-sim":
        if CUSTOM in (config.source, config.model):
            raise UserError("engine = 'flower-sim' starts processes that know registered sources and models only")
        if Own().here_only(config):
            raise UserError(
                "engine = 'flower-sim' starts processes that lack a part which only this one has registered: put it "
                "into a file and name that in plugins"
            )
        with require_flower():
            import_module("flwr")


def _bar() -> Bar:
    from rich.console import Console

    return Bar(Console())
