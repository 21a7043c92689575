"""Starting runs: from Python by `run` and `resume`, and on the engine that a config names."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from cflag.config import CUSTOM, Config, flatten, load_raw, merge, resolve
from cflag.data.source import Source
from cflag.engines.flower import require_flower
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.learning.learner import OwnLoss
from cflag.loggers.attach import catch_up, require_loggers
from cflag.results.display import Bar, Display, Quiet
from cflag.results.folder import RunFolder, new_folder
from cflag.results.result import Result
from cflag.stopping import explain_failures


def run(
    preset: str | None = None,
    *,
    source: Source | str | None = None,
    model: nn.Module | str | None = None,
    loss: OwnLoss | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Result:
    """Run a preset or TOML file with changes, for example `run("digits", method="cflag", cflag={"beta": 0.1})`.

    A `source` or `model`, by name or your own object, replaces the preset's; without a preset it is Split-Digits, or
    plain defaults where the source is your own. The run folder is `out`, or a new one under `runs/`.
    """
    raw = load_raw(preset or "digits") if preset or not isinstance(source, Source) else {}
    for key, part, kind in (("source", source, Source), ("model", model, nn.Module)):
        if isinstance(part, kind):
            settings[key] = CUSTOM
        elif isinstance(part, str):
            settings[key] = part
        elif part is not None:
            raise UserError(f"{key} must be a name or an object of {kind.__name__}, not {part!r}")
    if isinstance(source, Source) and "problem" not in raw:
        settings.setdefault("problem", source.problem)
    config = resolve(merge(raw, flatten(settings)))
    if loss is not None and config.engine != "local":
        raise UserError(f"engine = '{config.engine}' starts processes that know no loss of your own: use 'local'")
    own_source = source if isinstance(source, Source) else None
    own_model = model if isinstance(model, nn.Module) else None
    experiment = Experiment(config, own_source, own_model, loss)
    check_engine(config)
    require_loggers(config.log)
    name = f"{Path(preset or config.source).stem}-{config.method}-{config.seed}"
    folder = RunFolder.create(Path(out) if out is not None else new_folder(name), config)
    return carry(experiment, folder, _bar() if progress else Quiet())


def resume(folder: str | Path, **parts: Any) -> Result:
    """Resume a run folder; a run with a source, model or loss of your own needs the same ones again."""
    begun = RunFolder.open(Path(folder))
    return carry(Experiment(begun.config(), **parts), begun, Quiet())


def carry(experiment: Experiment, folder: RunFolder, display: Display) -> Result:
    """Carry the run of a folder to its end, on the engine that its config names."""
    config = experiment.config
    if config.engine == "local":
        return experiment.run_in(folder, display)
    if folder.finished:
        result = folder.result()
        catch_up(display, config, folder)
        return result
    check_engine(config, folder)
    require_loggers(config.log)
    with explain_failures(folder.path), require_flower():
        from cflag.engines.flower.processes.deploy import simulate

        if not config.privacy.on:
            folder.describe_data(experiment.benchmark.class_counts())
            for line in experiment.benchmark.notes():
                display.note(line)
        return simulate(folder, config, display)


def check_engine(config: Config, folder: RunFolder | None = None) -> None:
    """Refuse an engine that cannot carry a run from here, before anything is written."""
    if config.engine == "flower" and folder is not None:
        raise UserError(f"{folder.path} is a deployment's; go on with: cflag deploy --resume {folder.path}")
    if config.engine == "flower":
        raise UserError("engine = 'flower' is for fleets; use: cflag deploy, or cflag server")
    if config.engine == "flower-sim":
        if CUSTOM in (config.source, config.model):
            raise UserError("engine = 'flower-sim' starts processes that know registered sources and models only")
        with require_flower():
            import_module("flwr")


def _bar() -> Bar:
    from rich.console import Console

    return Bar(Console())
