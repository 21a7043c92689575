"""An experiment: clients learn one task after another, together. Read this file first.

config → benchmark → clients → engine ⇄ method → run folder → result
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cflag.account import Counts
from cflag.build import build_benchmark, build_learner, build_method
from cflag.config import CUSTOM, Config, flatten, load_raw, merge, resolve
from cflag.data.source import Source
from cflag.data.spec import Spec
from cflag.engines.engine import Engine
from cflag.engines.flower import require_flower
from cflag.engines.host import Host
from cflag.engines.local import LocalEngine
from cflag.errors import UserError
from cflag.learning.learner import Loss
from cflag.loggers.attach import attached, catch_up, require_loggers
from cflag.process import cores, one_thread
from cflag.results.dealt import class_counts
from cflag.results.display import Bar, Display, Quiet
from cflag.results.folder import RunFolder
from cflag.results.history import History
from cflag.results.result import Result
from cflag.rng import stream
from cflag.server import Server
from cflag.stopping import explain_failures, stop_requests

FORMAT = 3
"""The version of a checkpoint's contents; another one's vectors may lie in another order."""


class Experiment:
    """A benchmark, a method and a model. `source` and `model` may be your own instead of built-in names."""

    def __init__(
        self,
        config: Config,
        source: Source | None = None,
        model: nn.Module | None = None,
        loss: Loss | None = None,
        spec: Spec | None = None,
    ) -> None:
        self.config = config
        if spec is None:
            self.benchmark = build_benchmark(config, source)
            spec = self.benchmark.spec
        self.spec = spec
        self.method = build_method(config)
        self.learner = build_learner(config, spec, model, loss)
        self._initial = (self.learner.params.clone(), self.learner.buffers.clone())

    def run(self, out: Path, display: Display | None = None) -> Result:
        """Run from the beginning into a new folder."""
        require_loggers(self.config.log)
        return self._run(RunFolder.create(out, self.config), display or Quiet())

    def resume(self, folder: Path, display: Display | None = None) -> Result:
        """Go on after the last round that was finished; the numbers are those of a run that never stopped."""
        return self._run(RunFolder.open(folder), display or Quiet())

    def host(self) -> Host:
        """Return the clients, not yet begun."""
        return Host(self.benchmark, self.method, self.learner, self.config.memory, self.config.seed)

    def server(self) -> Server:
        """Return the server with the initial model."""
        params, buffers = self._initial
        return Server(params.clone(), buffers.clone(), self.config.rounds, self.learner, self.config.seed)

    def cohort(self, server: Server, away: frozenset[int] = frozenset()) -> Sequence[int] | None:
        """Draw the clients that take part in a round, or None where everyone does; others stand in for those away."""
        count = self.config.cohort_size()
        if count == self.spec.clients:
            return None
        rng = stream(self.config.seed, "cohort", server.task, server.round)
        drawn = rng.choice(self.spec.clients, size=count, replace=False).tolist()
        spare = rng.permutation([n for n in range(self.spec.clients) if n not in drawn]).tolist() if away else []
        present = [number for number in [*drawn, *spare] if number not in away]
        absent = [number for number in drawn if number in away]  # where too few are here, the engine waits for them
        return sorted([*present, *absent][:count])

    def _run(self, folder: RunFolder, display: Display) -> Result:
        if folder.finished:
            catch_up(display, self.config, folder)
            return Result.load(folder.path)
        require_loggers(self.config.log)
        if self.config.engine != "local":
            return self._simulate(folder, display)
        with explain_failures(folder.path), folder.locked(), one_thread(), stop_requests() as stopped:
            folder.describe_data(class_counts(self.benchmark))
            return self.learn(LocalEngine(self.host(), self._workers(), stopped), folder, display)

    def _simulate(self, folder: RunFolder, display: Display) -> Result:
        """Hand the run over to Flower's simulation."""
        if self.config.engine == "flower":
            raise UserError(f"{folder.path} is a deployment's; go on with: cflag deploy --resume {folder.path}")
        if CUSTOM in (self.config.source, self.config.model):
            raise UserError("engine = 'flower-sim' starts processes that know built-in sources and models only")
        with explain_failures(folder.path), require_flower():
            from cflag.engines.flower.processes.deploy import simulate

            folder.describe_data(class_counts(self.benchmark))
            return simulate(folder, self.config, display)

    def learn(self, engine: Engine, folder: RunFolder, display: Display) -> Result:
        """Let an engine carry the experiment to its end, from wherever the folder says it is."""
        try:
            with attached(display, self.config, folder) as shown:
                return self._learn(engine, folder, shown)
        finally:
            engine.close()

    def _learn(self, engine: Engine, folder: RunFolder, display: Display) -> Result:
        """The story: task after task, round after round."""
        tasks, rounds, method = len(self.spec.tasks), self.config.rounds, self.method
        server = self.server()
        history = self._restore(engine, folder, server)
        display.start(self.config.method, tasks, rounds, history.done)
        if history.initial is None:
            history.initial = engine.evaluate(server, range(tasks), {})

        for done in range(history.done, tasks * rounds):
            started = time.perf_counter()
            server.task, server.round = divmod(done, rounds)
            if not server.sizes or server.round == 0:
                server.sizes = engine.sizes(server.task)

            if server.round == 0:
                engine.converse_around(method.begin_task(server), server)
            engine.converse(method.round(server), server, self.cohort(server, engine.away()))
            if server.round == rounds - 1:
                engine.converse_around(method.end_task(server), server)

            counts = self._evaluate(engine, server)
            record = history.record(server, engine.settle(), counts, time.perf_counter() - started)
            self._checkpoint(engine, folder, server, history, record)
            display.update(record)

        return self._finish(folder, server, history)

    def _evaluate(self, engine: Engine, server: Server) -> Counts | None:
        """Test all tasks at the end of one, those seen so far in between, on schedule."""
        last = server.round == self.config.rounds - 1
        if not last and (server.round + 1) % self.config.eval_every:
            return None
        with nullcontext() if last else engine.uncounted():  # tests in between are for the curves alone
            engine.converse(self.method.before_eval(server), server)
        tasks = range(len(self.spec.tasks) if last else server.task + 1)
        return engine.evaluate(server, tasks, self.method.eval_payload(server))

    def _checkpoint(
        self, engine: Engine, folder: RunFolder, server: Server, history: History, record: dict[str, Any]
    ) -> None:
        """Write the round down so that everything after it can be lost."""
        history.clients.update(engine.save(folder.checkpoints, f"{server.task + 1}-{server.round + 1}"))
        history.metrics_bytes = folder.append(record)
        history.model_sent = engine.model_sent(server)
        history.peak_mb = max(history.peak_mb, engine.peak_mb())
        state = {f"state.{name}": value for name, value in server.state.items()}
        state |= {f"engine.{name}": value for name, value in engine.kept().items()}
        config = {"config": self.config.numbers(), "format": FORMAT}
        folder.save_checkpoint(
            {"params": server.params, "buffers": server.buffers, **config, **state, **history.to_dict()}
        )

    def _restore(self, engine: Engine, folder: RunFolder, server: Server) -> History:
        """Take up the last checkpoint, where there is one."""
        saved = folder.load_checkpoint()
        if saved is None:
            return History(self.spec.by_task)
        if saved.pop("format", None) != FORMAT:
            raise UserError(f"{folder.path} was begun by another version of cflag; start a new run")
        refuse_changed(saved.pop("config"), self.config.numbers(), folder.path)
        server.params.copy_(saved.pop("params"))
        server.buffers.copy_(saved.pop("buffers"))
        for name in [n for n in saved if n.startswith("state.")]:
            value = saved.pop(name)
            on_device = value.to(server.params.device) if isinstance(value, torch.Tensor) else value
            server.state[name.removeprefix("state.")] = on_device
        engine.take_back({n.removeprefix("engine."): saved.pop(n) for n in list(saved) if n.startswith("engine.")})
        history = History.from_dict(saved)
        engine.restore(folder.checkpoints, history.clients)
        engine.note_model_sent(server, history.model_sent)
        return history

    def _finish(self, folder: RunFolder, server: Server, history: History) -> Result:
        """Write down what the run found out."""
        self.learner.load(server.params, server.buffers)
        result = history.result(self.config, folder.path, self.method.figures)
        folder.finish(result, dict(self.learner.model.state_dict()))
        return result

    def _workers(self) -> int:
        if self.config.workers or self.learner.device.type != "cpu":
            return self.config.workers or 1
        return cores()


def run(
    preset: str | None = None,
    *,
    source: Source | str | None = None,
    model: nn.Module | str | None = None,
    loss: Loss | None = None,
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
    config = resolve(merge(raw, flatten(settings)))
    name = f"{Path(preset or config.source).stem}-{config.method}-{config.seed}"
    target = Path(out) if out is not None else new_folder(name)
    own_source = source if isinstance(source, Source) else None
    own_model = model if isinstance(model, nn.Module) else None
    return Experiment(config, own_source, own_model, loss).run(target, _bar() if progress else None)


def resume(folder: str | Path, **parts: Any) -> Result:
    """Resume a run folder; a run with a source, model or loss of your own needs the same ones again."""
    config = RunFolder.open(Path(folder)).config()
    return Experiment(config, **parts).resume(Path(folder))


def refuse_changed(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """A checkpoint belongs to the config it was made with; say which key was changed since."""
    for key, value in now.items():
        if key in before and before[key] != value:  # a key that did not exist then has its default, which is as it was
            raise UserError(
                f"{path / 'config.toml'}: '{key}' was changed since the checkpoint ({before[key]} to {value}); "
                "change it back, or start a new run"
            )


def new_folder(name: str, parent: Path = Path("runs")) -> Path:
    """Return runs/NAME, or runs/NAME-2 and so on where that is taken."""
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path


def _bar() -> Bar:
    from rich.console import Console

    return Bar(Console())
