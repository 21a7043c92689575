"""The host: the clients that one process serves, with the one model they share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cflag import process, registry
from cflag.build import build_benchmark, build_learner, build_method
from cflag.client import Client
from cflag.config import Config
from cflag.conversation import Answer, Ask, Own, Reply, RoundContext, Value
from cflag.data.benchmark import Benchmark
from cflag.data.samples import Samples
from cflag.data.source import Source
from cflag.engines.bundles import Bundle, bundled
from cflag.engines.holdings import Holdings
from cflag.errors import UserError
from cflag.files import WHAT_TO_DO, load_client_state
from cflag.learning.choir import Choir, told
from cflag.learning.drift import Watch
from cflag.learning.gradient_table import Workspace
from cflag.learning.learner import Learner, OwnLoss
from cflag.learning.stack import Alone, Place, Stack
from cflag.memory.base import Memory, MemoryOptions
from cflag.memory.keeper import Keeper, dated
from cflag.methods.base import Method
from cflag.privacy.noise import digest, noise_key
from cflag.privacy.shield import Shield
from cflag.states.log import Place as StatePlace
from cflag.states.log import client_name

Saved = StatePlace | Path
"""Where a client's state is: in a log of the run's, or in a file of its own."""
Whom = tuple[int, Saved | None]
"""A client's number, and where its state is as it was last saved; None for one that never changed."""
Begun = tuple[Client, list[object]]
"""A client with a question before it, and what it kept before."""


class Sink(Protocol):
    """Where the states of clients that changed go."""

    def name(self, client: int) -> str:
        """Return the name of a client's state there."""
        ...

    def write(self, states: Iterable[tuple[int, Mapping[str, Any]]]) -> Any:
        """Write states; they are safely on disk when this returns. Return what whoever gave the sink wants to know."""
        ...


NONE_LEFT = "all its samples of this task are forgotten"
"""Why a client does not answer that has nothing to learn from any more."""


@dataclass(frozen=True)
class GlobalModel:
    """What the server sends with a question: its parameters and batch-norm statistics."""

    params: Tensor
    buffers: Tensor


class Host:
    """Answers questions for clients one after the other; a client is created when it is first needed.

    Every public function is a generator of replies, so that a host works the same in this process, behind a pipe, or
    behind a network. Any host can serve any client: whoever asks says where its state was saved, and a host that does
    not have that state yet loads it.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        method: Method,
        learner: Learner,
        memory: MemoryOptions,
        seed: int,
        data_limit: int = 2**28,
        shield: Shield | None = None,
        stack: int = 1,
    ) -> None:
        self.benchmark = benchmark
        self.method = method
        self.learner = learner
        self.memory = memory
        self.seed = seed
        self.shield = shield
        self.alone = Alone(learner)
        self.stack = Stack(learner, stack if shield is None else 1)
        self.clients: dict[int, Client] = {}
        self.saved: dict[int, str] = {}
        """The name under which each client's state was saved or loaded last."""
        self.changed: set[int] = set()
        self.schedule = benchmark.schedule
        self.part_of: dict[int, tuple[int, range]] = {}
        """The task whose samples each client has, and which of them."""
        self.data = Holdings(data_limit)
        self.answering: set[int] = set()
        """Those who answer side by side at present: they keep their samples, whatever the limit."""
        self.same_as_one: dict[tuple[object, ...], bool] = {}
        """In which tasks, which questions, and with what sent along, clients answered as one with the bits of each."""
        self.workspace = Workspace(method.local.table_bytes)
        self.context: RoundContext | None = None
        self.keeper = Keeper(memory, self.schedule)

    def answer(
        self, whom: Sequence[Whom], ask: Ask, model: GlobalModel, context: RoundContext
    ) -> Iterator[Reply | None]:
        """Let each client answer a question, starting from the global model; None: all its samples are forgotten."""
        return (reply for some in self.answers(whom, ask, model, context) for reply in some)

    def answers(
        self, whom: Sequence[Whom], ask: Ask, model: GlobalModel, context: RoundContext
    ) -> Iterator[list[Reply | None]]:
        """Do the same, with replies as they come: those of clients that answer side by side together."""
        if not self.changed and self.keeper.look():  # someone changed what memories hold, or what may be learned from
            self._drop_clients()
        if self.context is None or context.when != self.context.when:
            self.workspace.clear()
        self.context = context
        size = self._side_by_side([number for number, _ in whom])
        for start in range(0, len(whom), size):
            yield self._answered(whom[start : start + size], ask, model, context)

    def bundles(
        self, groups: Sequence[Sequence[Whom]], ask: Ask, model: GlobalModel, context: RoundContext
    ) -> Iterator[list[Reply | Bundle | None]]:
        """Do the same for groups of clients, whose answers are summed here; one by itself answers as ever."""
        answers = self.answers([one for group in groups for one in group], ask, model, context)
        return bundled(answers, [[number for number, _ in group] for group in groups], ask.question, context)

    def _side_by_side(self, numbers: Sequence[int]) -> int:
        """Return how many clients may answer at once: their tables, which none of them gives up then, must fit."""
        if self.stack.size == 1 or not numbers:
            return 1
        components = -(-int(self.benchmark.all_sizes[numbers].max()) // self.method.local.batch)
        tables = self.workspace.limit // max(1, components * self.learner.params.nbytes)
        return max(1, min(self.stack.size, tables))

    def _answered(
        self, whom: Sequence[Whom], ask: Ask, model: GlobalModel, context: RoundContext
    ) -> list[Reply | None]:
        """Let clients answer, side by side where there are several."""
        self.learner.load(model.params, model.buffers)
        start = model.params.to(self.learner.device)
        if len(whom) == 1:
            return [self._answer(whom[0], self.alone, ask, start, context)]
        self.answering = {number for number, _ in whom}
        if not self._may_answer_as_one(ask):
            return self._each(whom, ask, start, context)
        lines = (context.task, ask.question, *sorted(ask.sent))  # what is sent decides which of a question's lines run
        if lines in self.same_as_one:
            return (self._as_one if self.same_as_one[lines] else self._each)(whom, ask, start, context)
        as_one = told(self._as_one(whom, ask, start, context))
        each = self._each(whom, ask, start, context)
        if sum(reply is not None for reply in each) > 1:  # of one client a row is all there is
            self.same_as_one[lines] = as_one == told(each)
        return each

    def _may_answer_as_one(self, ask: Ask) -> bool:
        """Say whether the method says so: a class that derives from one which does may have other lines."""
        return ask.question in vars(type(self.method)).get("elementwise", ()) and self.learner.augment is None

    def _each(self, whom: Sequence[Whom], ask: Ask, start: Tensor, context: RoundContext) -> list[Reply | None]:
        """Let clients answer side by side, each by itself."""
        pairs = zip(whom, self.stack.seats(len(whom), start), strict=True)
        return self.stack.run([partial(self._answer, one, seat, ask, start, context) for one, seat in pairs])

    def _as_one(self, whom: Sequence[Whom], ask: Ask, start: Tensor, context: RoundContext) -> list[Reply | None]:
        """Let clients answer as one; those without samples take no seat."""
        seats = self.stack.seats(len(whom), start)
        begun: dict[int, Begun] = {}
        for one in whom:
            if client := self._begin(one, seats[len(begun)], ask, start, context):
                begun[one[0]] = client
        if not begun:
            return [None] * len(whom)
        choir = Choir(self.stack, [client for client, _ in begun.values()], type(self.method).__name__)
        answers = choir.answers(getattr(self.method, ask.question)(choir, **ask.sent))
        replies = {n: self._end(own, ask, answer) for (n, own), answer in zip(begun.items(), answers, strict=True)}
        return [replies.get(number) for number, _ in whom]

    def _answer(self, one: Whom, place: Place, ask: Ask, start: Tensor, context: RoundContext) -> Reply | None:
        """Let one client answer, at its place."""
        begun = self._begin(one, place, ask, start, context)
        return begun and self._end(begun, ask, getattr(self.method, ask.question)(begun[0], **ask.sent))

    def _begin(self, one: Whom, place: Place, ask: Ask, start: Tensor, context: RoundContext) -> Begun | None:
        """Put a client at its place, with a question before it; None where it has no samples."""
        number, saved = one
        own = self.own(number, context)
        task = context.task if own is None else own.task
        client = self.client(number, task, saved, self.age(number, own, context))
        if not len(client.data):
            return None
        before = client.kept()
        self.keeper.expire(number, client.memory, context)
        client.place = place
        client.begin_question(ask.question, context, start, own)
        return client, before

    def _end(self, begun: Begun, ask: Ask, answer: Answer) -> Reply:
        """Take a client's answer, and note whether what it keeps has changed."""
        client, before = begun
        client.end_question()
        client.place = self.alone
        after = client.kept()
        if len(after) != len(before) or any(a is not b for a, b in zip(after, before, strict=True)):
            self.changed.add(client.number)
        return self._reply(client, ask.question, answer)

    def _reply(self, client: Client, question: str, answer: Answer) -> Reply:
        """Return what leaves the client: in a private run an answer that may, and no logs."""
        if self.shield is None:
            return Reply(answer, client.size, client.cost, client.logs)
        uses = 0
        if client.ledger is not None:
            self.changed.add(client.number)
            uses = client.ledger.most()
        return Reply(self.shield.answered(question, answer), client.size, client.cost, {}, uses)

    def evaluate(
        self,
        groups: Sequence[Sequence[int]],
        tasks: Sequence[int],
        model: GlobalModel,
        seen: Sequence[int],
        sent: Mapping[str, Value],
    ) -> Iterator[Tensor]:
        """Test the held-out samples of groups of clients; see `Counts` for what is counted of each client and task."""
        self.learner.load(model.params, model.buffers)
        self.learner.seen, self.learner.closed = tuple(seen), None
        for group in groups:
            sizes = torch.tensor([self.benchmark.test_size(client, task) for task in tasks for client in group])
            problem, outputs = self.learner.problem, self.benchmark.spec.classes
            width, kind = 2 * problem.width(outputs), torch.long if problem.whole else torch.float64
            counts = torch.zeros(len(sizes), width + 1, dtype=kind)
            counts[:, -1] = sizes
            if sizes.any():
                samples = Samples.cat([self.benchmark.tests(group, task) for task in tasks])
                sums = self.learner.tested(self.method.predict(self.learner, samples, **sent), samples)
                owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
                counts[:, :width].index_add_(0, owner, sums.to(kind))
            rows = counts.view(len(tasks), len(group), width + 1).transpose(0, 1)
            yield rows if self.shield is None else self._tested(rows, group, tasks, model)

    def _tested(self, rows: Tensor, group: Sequence[int], tasks: Sequence[int], model: GlobalModel) -> Tensor:
        """Return the counts of a private run as they may leave: each client's noise is its own."""
        assert self.shield is not None
        name = digest(model.params)
        own = [self.shield.tested(row, number, *tasks, name) for number, row in zip(group, rows, strict=True)]
        return torch.stack(own)

    def save(self, sink: Sink) -> Iterator[Any]:
        """Save the clients that changed since the last time; hand back what the sink says."""
        numbers = sorted(self.changed)
        said = sink.write((number, self._state(self.clients[number])) for number in numbers)
        self.saved.update({number: sink.name(number) for number in numbers})
        self.changed.clear()
        yield said

    def own(self, number: int, context: RoundContext) -> Own | None:
        """Return where a client is by its own clock; None where all are in the same task."""
        if self.schedule.together and context.own is None:
            return None
        done, plan, has = self._done(context), self.schedule.plan, self.benchmark.size
        told = self.schedule.told
        before = plan.past(number, done) if told else plan.began(number, done - 1)
        past = tuple(task for task in before if has(number, task))
        open_ = None
        if self.schedule.settings.heads == "own":
            open_ = torch.zeros(self.benchmark.spec.classes, dtype=torch.bool)
            for task in plan.began(number, done):
                open_[self.benchmark.labels(number, task)] = True
        pieces = max(1, self.method.local.steps) if self.schedule.one_pass else 0
        task = plan.task(number, done, self.benchmark.has[number])
        return Own(task, past, open_, pieces, told, self.schedule.streams)

    def age(self, number: int, own: Own | None, context: RoundContext) -> int:
        """Return how many rounds of its task a client has had."""
        return 0 if own is None else self._done(context) - int(self.schedule.plan.first[number, own.task])

    def _done(self, context: RoundContext) -> int:
        return context.task * self.schedule.frame.rounds + context.round

    def client(self, number: int, task: int, saved: Saved | None = None, age: int = 0) -> Client:
        """Return a client as it was last saved, or as it is where it has changed since, with its data in a round."""
        client = self._client(number, saved)
        self._hand_out(client, task, age)
        return client

    def peak_mb(self) -> Iterator[float]:
        """Yield the largest memory this process ever had."""
        yield process.peak_mb()

    def _client(self, number: int, saved: Saved | None) -> Client:
        """Return the client as it was last saved, or as it is where it has changed since."""
        client = self.clients.get(number)
        name = None if saved is None else saved.name
        if client is not None and (number in self.changed or self.saved.get(number) == name):
            return client
        kind = self.memory.kind if self.method.uses_memory else "none"
        memory: Memory = registry.get("memory", kind)(self.memory)
        if self.benchmark.has_pictures:
            memory.encode = self.benchmark.encoded
        if number in self.part_of:
            self._take_back(number)
        client = self.clients[number] = Client(number, self.seed, self.learner, memory, self.workspace)
        client.ledger = self.shield.ledger(number) if self.shield is not None else None
        client.watch = Watch.of(self.schedule.settings)
        if saved is not None:
            state = self._load(number, saved)
            memory.restore(_part(state, "memory."))
            memory.dates = state.get("dates", {})
            client.state = _part(state, "state.")
            client.watched = state.get("watched")
            if client.ledger is not None:
                client.ledger.uses = {int(task): uses for task, uses in _part(state, "uses.").items()}
            self.saved[number] = saved.name
        return client

    def _hand_out(self, client: Client, task: int, age: int) -> None:
        """Give a client its current samples; beyond the limit, those of the clients asked longest ago are dropped."""
        part = self.schedule.portion(self.benchmark.size(client.number, task), age)
        if self.part_of.get(client.number) != (task, part):
            dealt = self.benchmark.train(client.number, task)
            if client.ledger is not None:
                dealt = replace(dealt, index=torch.arange(len(dealt)))
            dealt = dealt if len(part) == len(dealt) else dealt[slice(part.start, part.stop)]
            client.data = self.keeper.allowed(client.number, dealt)
            client.withdrawn = len(dealt) - len(client.data)
            self.part_of[client.number] = (task, part)
            self.data.drop(client.number)
        self.data.put(client.number, client.data)
        while self.data.too_much and self.data.oldest() not in {client.number, *self.answering}:
            self._take_back(self.data.oldest())

    def _drop_clients(self) -> None:
        """Forget all that is in this process's memory: what is on disk counts."""
        self.workspace.clear()
        for number in list(self.part_of):
            self._take_back(number)
        self.clients.clear()
        self.saved.clear()

    def _take_back(self, number: int) -> None:
        del self.clients[number].data, self.part_of[number]
        self.data.drop(number)

    @staticmethod
    def _load(number: int, saved: Saved) -> dict[str, Any]:
        """Load a client's state; refuse another client's, which a state folder may have been given by mistake."""
        if saved.name.partition(".")[0] != client_name(number):
            raise UserError(f"{saved} is not client {number}'s state, but another client's; {WHAT_TO_DO}")
        return saved.load() if isinstance(saved, StatePlace) else load_client_state(saved)

    @staticmethod
    def _state(client: Client) -> dict[str, Any]:
        state: dict[str, Any] = {f"memory.{k}": v for k, v in client.memory.state().items()}
        dates = {"dates": dated(client.memory)} if len(client.memory) else {}
        uses = {} if client.ledger is None else client.ledger.uses
        counted = {f"uses.{task}": count for task, count in uses.items()}
        watched = {} if client.watched is None else {"watched": client.watched}
        return {**state, **dates, **counted, **watched, **{f"state.{k}": v for k, v in client.state.items()}}


def host_of(
    config: Config,
    source: Source | None = None,
    model: nn.Module | None = None,
    loss: OwnLoss | None = None,
    folder: Path | None = None,
) -> Host:
    """Build the benchmark, the method and the learner of a config, and the host of its clients.

    In `folder` a private run keeps the key of its noise.
    """
    benchmark, method = build_benchmark(config, source), build_method(config)
    learner = build_learner(config, benchmark.spec, model, loss)
    key = noise_key(config.privacy, config.seed, folder) if config.privacy.on else b""
    shield = Shield.of(config.privacy, config.method, key)
    return Host(benchmark, method, learner, config.memory, config.seed, shield=shield, stack=config.stack)


def _part(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
