"""An experiment: clients learn one task after another, together. Read this file first.

config → benchmark → clients → engine ⇄ method → run folder → result
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from torch import nn

from cflag.account import Counts
from cflag.build import build_benchmark, build_learner, build_method
from cflag.checkpoint import restore_checkpoint, save_checkpoint
from cflag.config import Config
from cflag.data.source import Source
from cflag.data.spec import Spec
from cflag.diagnostics import STREAM_FIGURE
from cflag.engines.engine import Engine
from cflag.engines.host import Host
from cflag.engines.local import LocalEngine
from cflag.errors import UserError
from cflag.learning.learner import OwnLoss
from cflag.loggers.attach import attached, catch_up, require_loggers
from cflag.memory.gate import at_work
from cflag.models.lora import merged
from cflag.models.reference import Maker
from cflag.privacy.accounting import BudgetError
from cflag.privacy.noise import forget_key, noise_key
from cflag.privacy.shield import Shield
from cflag.privacy.warden import Warden
from cflag.problems.base import scoring
from cflag.process import cores, forks_can_learn, one_thread
from cflag.results.display import Display, Quiet
from cflag.results.folder import RunFolder
from cflag.results.history import History, Played
from cflag.results.metrics import read_metrics
from cflag.results.model import describe_model
from cflag.results.result import Result
from cflag.server import Server
from cflag.session import Session
from cflag.stopping import explain_failures, stop_requests


class Experiment:
    """A benchmark, a method and a model. `source` and `model` may be your own instead of registered names."""

    def __init__(
        self,
        config: Config,
        source: Source | None = None,
        model: nn.Module | Maker | None = None,
        loss: OwnLoss | None = None,
        spec: Spec | None = None,
    ) -> None:
        self.config = config
        self._has_data = spec is None
        if spec is None:
            self.benchmark = build_benchmark(config, source)
            spec = self.benchmark.spec
        self.spec = spec
        self.method = build_method(config)
        self.scoring = scoring(config.problem, config.score)
        self.learner = build_learner(config, spec, model, loss)
        self._initial = (self.learner.params.clone(), self.learner.buffers.clone())

    def learn(self, engine: Engine, folder: RunFolder, display: Display) -> Result:
        """The story: task after task, round after round, from wherever the folder says the run is."""
        tasks, session = len(self.spec.tasks), self.session(engine, folder.path)
        rounds = session.plan.total
        history = restore_checkpoint(folder, self._numbers(), session, display.note) or History(self.spec.by_task)
        own = 0 if engine.schedule.together else rounds
        display.start(self.config.method, tasks, self.config.rounds, history.done, own, self.scoring.score)
        if not history.tests:
            history.new_tests.append(engine.test(session.server, range(tasks), {}))

        while history.done < rounds:
            with at_work(folder.path):  # between two rounds others may change what memories hold
                started = time.perf_counter()
                try:
                    session.play(history.done)
                    counts = self._evaluate(session)
                except BudgetError as spent:
                    history = self._stop_early(session, folder, display, spent)
                    break
                seconds = time.perf_counter() - started
                settled, last, own_tasks = engine.settle(), session.is_milestone, session.own_tasks()
                record = history.record(session.server, settled, counts, seconds, last, own_tasks, self.scoring)
                save_checkpoint(folder, self._numbers(), session, history, record)
            display.update(record)
            if history.done == 2 * self.config.rounds:
                self._advise(session, folder, display)

        self.learner.load(session.server.params, session.server.buffers)
        figures = (*self.method.figures, *([STREAM_FIGURE] if engine.schedule.streams else []))
        played = Played(engine.schedule, engine.has(), folder.tests(history.tests))
        result = history.result(self.config, folder.path, figures, played)
        model = self.learner.model
        self._describe(session, folder, history.done)
        folder.finish(result, merged(model) if self.config.lora.merge else dict(model.state_dict()))
        forget_key(folder.path)
        return result

    def _describe(self, session: Session, folder: RunFolder, done: int) -> None:
        """Write down what it takes to use the model."""
        server = session.server
        session.enter(*divmod(done - 1, server.rounds))  # a resumed run may have had no round left to play
        raw = self.benchmark.raw if self._has_data else None
        beside = self.method.eval_payload(server)
        describe_model(folder.path, self.config, self.spec, server.moment.seen, raw, beside)

    def _numbers(self) -> dict[str, Any]:
        """Return what a checkpoint belongs to: the config, and the backbone on whose features the model learns."""
        origin = {"weights of the backbone": self.spec.origin} if self.spec.origin else {}
        return self.config.numbers() | origin

    def _advise(self, session: Session, folder: RunFolder, display: Display) -> None:
        """Let the method say what of its settings does not fit: once in a run, after the first task with a past."""
        records = [record for record in read_metrics(folder.metrics) if record["task"] == 2]
        for line in self.method.advice(self.config.method, session.server, records):
            folder.say(line)
            display.note(line)

    def _stop_early(self, session: Session, folder: RunFolder, display: Display, spent: BudgetError) -> History:
        """The privacy budget ends a run after its last finished round; the result is of the tasks finished by then."""
        released = 0.0 if session.engine.warden is None else session.engine.warden.epsilon()
        history = restore_checkpoint(folder, self._numbers(), session, display.note)
        finished = 0 if history is None else history.tests - 1
        if history is None or not finished:
            raise UserError(f"{spent}; no task was finished; raise the budget or privacy.noise, or play fewer rounds")
        line = f"{spent}; stopped: the result is that of the {finished} finished tasks"
        folder.say(line)
        display.note(line)
        history.costs["epsilon"] = released  # of the unfinished round's first questions, too
        return history

    def _evaluate(self, session: Session) -> Counts | None:
        """Test all tasks when someone leaves one; in between, every so many rounds, those seen so far."""
        here = session.server
        if session.is_milestone:
            return session.evaluate(range(len(self.spec.tasks)))
        if (here.round + 1) % self.config.eval_every:
            return None
        return session.evaluate(here.moment.seen, counted=False)

    def run(self, out: Path, display: Display | None = None) -> Result:
        """Run from the beginning into a new folder, on this machine."""
        self._check_engine()
        require_loggers(self.config.log)
        return self.run_in(RunFolder.create(out, self.config), display or Quiet())

    def resume(self, folder: Path, display: Display | None = None) -> Result:
        """Go on after the last round that was finished; the numbers are those of a run that never stopped."""
        return self.run_in(RunFolder.open(folder), display or Quiet())

    def run_in(self, folder: RunFolder, display: Display) -> Result:
        """Carry the run of a folder to its end, on this machine."""
        if folder.finished:
            result = folder.result()
            folder.draw_missing(result)
            catch_up(display, self.config, folder)
            return result
        self._check_engine()
        require_loggers(self.config.log)
        with explain_failures(folder.path), folder.locked(), one_thread(), stop_requests() as stopped:
            if not self.config.privacy.on:
                folder.describe_data(self.benchmark.class_counts(), self.benchmark.source.name)
                for line in self.benchmark.notes():
                    display.note(line)
            host = self.host(folder.path)
            host.keeper.watch(folder.path)
            return self.carry(LocalEngine(host, self._workers(display), stopped, self.config.mean), folder, display)

    def carry(self, engine: Engine, folder: RunFolder, display: Display) -> Result:
        """Let an engine carry the run to its end, loggers following, and close it."""
        try:
            with attached(display, self.config, folder) as shown:
                return self.learn(engine, folder, shown)
        finally:
            engine.close()

    def session(self, engine: Engine | None = None, folder: Path | None = None) -> Session:
        """Return a fresh session, by default on an engine in this process alone."""
        config = self.config
        engine = engine or LocalEngine(self.host(folder), workers=1, mean=config.mean)
        key = noise_key(config.privacy, config.seed, folder) if config.privacy.on else b""
        engine.warden = Warden.of(config.privacy, config.method, key, config.secure)
        tail = round(config.average_tail * config.rounds)
        return Session(self.method, engine, self.server(), config.cohort_size(), tail)

    def host(self, folder: Path | None = None) -> Host:
        """Return the clients, not yet begun; in `folder` a private run keeps the key of its noise."""
        config = self.config
        key = noise_key(config.privacy, config.seed, folder) if config.privacy.on else b""
        shield = Shield.of(config.privacy, config.method, key)
        parts = self.benchmark, self.method, self.learner
        return Host(*parts, config.memory, config.seed, shield=shield, stack=config.stack)

    def server(self) -> Server:
        """Return the server with the initial model."""
        params, buffers = self._initial
        return Server(params.clone(), buffers.clone(), self.config.rounds, self.learner, self.config.seed)

    def _check_engine(self) -> None:
        if self.config.engine != "local":
            raise UserError(f"engine = '{self.config.engine}': an Experiment runs on this machine; use cflag.run(...)")

    def _workers(self, display: Display) -> int:
        if not self.config.workers and self.learner.device.type != "cpu":
            return 1
        wanted = min(self.config.workers or cores(), self.config.clients)
        if wanted > 1 and not forks_can_learn():
            display.note(
                "one process instead of several: this one computed gradients, and this torch lets no fork of it do "
                "so; the numbers are the same"
            )
            return 1
        return wanted
