"""The engine for one machine: clients are spread over this process and as many workers as there are cores beside.

Answers are summed in the order of the clients' numbers, whichever process they come from, so the number of workers
changes no number in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflag.account import Counts
from cflag.conversation import Ask, Cost, Mean, Reply, Value
from cflag.engines.bundles import Bundle, in_bundles
from cflag.engines.deal import Deal
from cflag.engines.engine import Engine, Total
from cflag.engines.finite import check_finite
from cflag.engines.host import NONE_LEFT, GlobalModel, Host, Whom
from cflag.engines.lanes import HereLane, Lane, WorkerLane, copied
from cflag.errors import InterruptedRunError
from cflag.means.base import PLAIN, MeanOptions
from cflag.process import cores
from cflag.server import Server
from cflag.states.store import StateStore

TEST_BATCH = 500
"""Clients with few held-out samples are tested together, this many samples at a time, for any number of workers."""


class LocalEngine(Engine):
    """Carries conversations between one server and the clients of this machine."""

    def __init__(
        self, host: Host, workers: int, stopped: Callable[[], bool] = lambda: False, mean: MeanOptions = PLAIN
    ) -> None:
        super().__init__(host.benchmark.schedule, mean, host.method.ratios)
        self.benchmark = host.benchmark
        count = min(workers, len(self.everyone))
        self.here = HereLane(host)
        self.lanes: list[Lane] = [self.here, *[WorkerLane(host, k, count <= cores()) for k in range(1, count)]]
        self.stopped = stopped
        self.files: StateStore | None = None
        """Where clients' states were last saved, once one was or the run was resumed."""
        self._lane_of: dict[int, int] = {}
        self._deal = Deal(len(self.lanes))

    def ask(self, ask: Ask, server: Server, cohort: Sequence[int] | None = None) -> Mean:
        """Put a question to every client of a cohort; return the weighted mean of the answers, Σ p_i answer_i."""
        numbers = self.everyone if cohort is None else cohort
        context = self.context(server, numbers)
        self.count_down(ask, server, numbers)
        each = self.kind.needs_each or bool(self.options.outlier) or self.options.max_share < 1
        groups = [[number] for number in numbers] if each else in_bundles(numbers)
        answers = self._answers(groups, ask, GlobalModel(server.params, server.buffers), context)
        replies = self._usable(answers, ask, server)
        if each:
            return self.mean_of(dict(self._held(replies)), context)
        total = Total(self, context, numbers)
        for members, reply in replies:
            if isinstance(reply, Bundle):
                total.add_bundle(members, reply)
            else:
                total.add(members[0], reply)
        return total.result()

    def evaluate(self, server: Server, tasks: Sequence[int], sent: Mapping[str, Value | None]) -> Counts:
        """Test the global model, and what a method sends with it, on every client's held-out samples of these tasks."""
        model = GlobalModel(server.params, server.buffers)
        given = {name: value for name, value in sent.items() if value is not None}
        groups = list(self._test_groups(tasks, self.testers(server)))
        shares = [groups[k :: len(self.lanes)] for k in range(len(self.lanes))]
        self._send("evaluate", shares, list(tasks), model, server.moment.seen, given)
        tested = [(group, self._receive(k % len(self.lanes))) for k, group in enumerate(groups)]
        return self.placed({n: row for group, rows in tested for n, row in zip(group, rows, strict=True)}, tasks)

    def all_sizes(self) -> NDArray[np.int64]:
        """Return how many samples each client has of each task."""
        return self.benchmark.all_sizes

    def has(self) -> NDArray[np.bool_]:
        """Return which clients have samples of which tasks."""
        return self.benchmark.has

    def save(self, store: StateStore, stamp: str) -> None:
        """Save the clients that changed, each worker to a log of its own."""
        tails = store.tails(stamp, len(self.lanes))
        for lane, tail in zip(self.lanes, tails, strict=True):
            lane.send("save", tail)
        for k, tail in enumerate(tails):
            store.take(tail, *self._receive(k))
        store.compact(stamp)
        self.restore(store)
        self.deal_anew()  # what is saved any lane can load

    def deal_anew(self) -> None:
        """Let any lane serve any client from now on: a round is over, and nothing of a client is in one lane alone."""
        self._lane_of.clear()
        self._deal.settle()

    def restore(self, store: StateStore) -> None:
        """Clients are from now on what a store says; each is loaded when it is first asked."""
        self.files = store

    def peak_mb(self) -> float:
        """Return the largest memory of this process and of its workers, added."""
        for lane in self.lanes:
            lane.send("peak_mb")
        peaks: list[float] = [self._receive(k) for k in range(len(self.lanes))]
        return sum(peaks)

    def close(self) -> None:
        """Stop the workers."""
        for lane in self.lanes:
            lane.close()

    def _answers(
        self, groups: Sequence[Sequence[int]], *args: Any
    ) -> Iterator[tuple[Sequence[int], Reply | Bundle | None]]:
        """Yield (clients, their reply) in the order given, all lanes working at once.

        Those of a group have one reply together, unless they are in several lanes.
        """
        # A client that was asked since the last save stays where it is: its changes and its scratch are there.
        self._lane_of |= self._deal.lanes([[n for n in group if n not in self._lane_of] for group in groups])
        groups = [part for group in groups for part in self._in_one_lane(group)]
        shares: list[list[list[Whom]]] = [[] for _ in self.lanes]
        for group in groups:
            whom: list[Whom] = [(n, None if self.files is None else self.files.get(n)) for n in group]
            shares[self._lane_of[group[0]]].append(whom)
        if len(groups) < sum(map(len, groups)):
            self._send("bundles", shares, *args)
        else:
            self._send("answers", [[one for (one,) in share] for share in shares], *args)
        for group in groups:
            yield group, self._receive(self._lane_of[group[0]])

    def _in_one_lane(self, group: Sequence[int]) -> list[Sequence[int]]:
        """Return a group as it is where one lane has all of it, or else its clients one by one."""
        together = len({self._lane_of[number] for number in group}) == 1
        return [group] if together else [[number] for number in group]

    def _usable(
        self, answers: Iterable[tuple[Sequence[int], Reply | Bundle | None]], ask: Ask, server: Server
    ) -> Iterator[tuple[Sequence[int], Reply | Bundle]]:
        """Yield the replies of those who can answer, once they are known to be numbers; the others are missing."""
        for group, reply in answers:
            if isinstance(reply, Reply):
                check_finite(reply, group[0], ask.question, (server.task, server.round))
            for number, cost in zip(group, _costs(reply), strict=True):
                if cost is None:
                    self.account.missing[number] = NONE_LEFT
                else:
                    self._deal.spent(number, cost)
            if reply is not None:
                yield group, reply

    @staticmethod
    def _held(replies: Iterable[tuple[Sequence[int], Reply | Bundle]]) -> Iterator[tuple[int, Reply]]:
        """Yield replies that stay."""
        for (number,), reply in replies:
            yield number, copied(reply)

    def _send(self, command: str, shares: Sequence[Sequence[Any]], *args: Any) -> None:
        """Give every lane its share of a command."""
        for lane, share in zip(self.lanes, shares, strict=True):
            lane.send(command, share, *args)

    def _receive(self, lane: int) -> Any:
        """Return a lane's next reply; while that is still to come, this process does its own share."""
        asked = self.lanes[lane]
        while asked.waits() and not self.stopped() and self.here.work_ahead():
            pass
        reply = asked.receive()
        if self.stopped():
            raise InterruptedRunError("stopped")
        return reply

    def _test_groups(self, tasks: Sequence[int], testers: Sequence[int]) -> Iterator[list[int]]:
        """Yield clients in order, in groups with enough samples for a batch.

        A batch of another size may round the last bit otherwise, which counts do not show and sums do: where a problem
        has sums, every client is tested by itself, as it is on a machine of its own.
        """
        if not self.benchmark.problem.whole:
            yield from ([client] for client in testers)
            return
        group: list[int] = []
        samples = 0
        for client in testers:
            group.append(client)
            samples += sum(self.benchmark.test_size(client, task) for task in tasks)
            if samples >= TEST_BATCH:
                yield group
                group, samples = [], 0
        if group:
            yield group


def _costs(reply: Reply | Bundle | None) -> list[Cost | None]:
    """Return what each client of a group spent; None for one that has nothing to learn from any more."""
    if isinstance(reply, Bundle):
        return [None if note is None else Cost(note[1], note[2]) for note in reply.notes]
    return [None if reply is None else reply.cost]
