"""The ServerApp: the experiment's loop, over Flower's grid instead of this machine's processes.

`cflag deploy`, `cflag server` and the simulation have a process that is it. For people with a SuperLink of their own
Flower starts it: flwr run APP cflag -c 'preset="digits" settings="rounds=3" out="/abs/path/run"'
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cflag.config import Config, load_raw, merge, parse_setting, resolve
from cflag.engines.flower.environment import KEYS
from cflag.engines.flower.processes.outcome import command_of, forget_outcome, write_outcome
from cflag.engines.flower.processes.waits import shorten
from cflag.engines.flower.server.engine import FlowerEngine
from cflag.engines.flower.server.post import POLL
from cflag.engines.flower.server.register import Register
from cflag.engines.flower.server.secure_engine import SecureFlowerEngine
from cflag.errors import CflagError, UserError
from cflag.experiment import Experiment
from cflag.loggers.attach import require_loggers
from cflag.memory.homes import stores
from cflag.process import one_thread
from cflag.results.display import Quiet
from cflag.results.folder import RunFolder, new_folder
from cflag.stopping import explain_failures

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Open the run folder that the run config names, or make it, and learn."""
    carry(grid, _folder(context.run_config))


def carry(grid: Grid, folder: RunFolder) -> None:
    """Carry the folder's experiment to its end, and leave word there if that fails."""
    try:
        run_server_app(grid, folder)
    except CflagError as error:
        write_outcome(folder, error)
        raise


def serve(socket: str, path: Path) -> None:
    """Be the server process of `cflag deploy` or `cflag server`, with a SuperLink behind a private socket."""
    from cflag.engines.flower.processes.grid import open_grid

    # Flower's way to end a process whose run the SuperLink has forgotten; whoever started this one starts it again.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with open_grid(socket) as grid:
        carry(grid, RunFolder.open(path))


def simulate(path: Path) -> None:
    """Be the process of a simulation: server and clients, the latter on Ray."""
    from cflag.engines.flower.processes.simulation import simulate

    simulate(server, RunFolder.open(path))


def run_server_app(grid: Grid, folder: RunFolder, say: Callable[[str], None] | None = None) -> None:
    """Carry the folder's experiment to its end."""
    if folder.finished:
        return
    forget_outcome(folder)
    config = folder.config()
    require_loggers(config.log)
    with explain_failures(folder.path, command_of(folder)), folder.locked(), one_thread():
        shorten(POLL)
        kind = SecureFlowerEngine if config.secure else FlowerEngine
        keys = Path(os.environ[KEYS]) if KEYS in os.environ else None
        engine = kind(grid, config, folder.name, say or folder.say, Register(folder.path, keys))
        experiment = Experiment(config, spec=engine.gather(stores(folder.path)[0].done()))
        experiment.carry(engine, folder, Quiet())


def _folder(run_config: Mapping[str, Any]) -> RunFolder:
    """Open the run folder `out`; without one, make one for the preset and settings."""
    out = str(run_config.get("out", ""))
    if out and (Path(out) / "config.toml").is_file():
        return RunFolder.open(Path(out))
    settings = [parse_setting(text) for text in str(run_config.get("settings", "")).split(";") if text.strip()]
    if any(key == "plugins" for key, _ in settings):  # whoever submits a run must not choose what this machine executes
        raise UserError("plugins cannot be set from afar: name them in the config.toml of a run folder on this machine")
    if any(key == "model" and ":" in str(value) for key, value in settings):
        raise UserError("a model of one's own cannot be set from afar: name it in the config.toml of a run folder here")
    config: Config = resolve(merge(load_raw(str(run_config["preset"])), [*settings, ("engine", "flower")]))
    require_loggers(config.log)
    return RunFolder.create(Path(out) if out else new_folder(f"flower-{config.method}-{config.seed}"), config)
