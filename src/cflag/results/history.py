"""What a run has found out so far: it grows by a record per round and is part of every checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflag.account import Account, Counts
from cflag.config import Config
from cflag.data.schedules.base import Schedule
from cflag.diagnostics import Figure, totals
from cflag.errors import UserError
from cflag.problems.base import Scoring, scoring
from cflag.problems.score import ACCURACY
from cflag.results.measures import CLASSES, Outcomes, masked, measure, plan_to_dict
from cflag.results.metrics import ROUND, SPENT, chained, read_metrics
from cflag.results.result import Beside, Result, versions
from cflag.server import Server


@dataclass(frozen=True)
class Played:
    """What was played: by which schedule, who has samples of which tasks, all tests from the one before the run on."""

    schedule: Schedule
    has: NDArray[np.bool_]
    tests: Iterable[Counts]


@dataclass
class History:
    """Rounds done, how many tests there were, sums of the costs, and where the files stand."""

    by_task: bool = True
    """Whether the scenario tells a sample's task: which of the two readings is the run's own."""
    done: int = 0
    tests: int = 0
    """Tests in files of their own, before the first task and after each: a checkpoint must not grow with them."""
    new_tests: list[Counts] = field(default_factory=list)
    """Tests that are still to be saved."""
    costs: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0))
    states: dict[str, list[Any]] = field(default_factory=dict)
    """What the checkpoint says of clients' states; see `StateStore.named`."""
    metrics_bytes: int = 0
    metrics_checksum: str = ""
    """Of the lines of the metrics so far; see `chained`."""
    peak_mb: float = 0.0
    model_sent: list[int] = field(default_factory=list)
    """The clients that have the present global model, so that it is not counted as sent again."""

    def record(
        self,
        server: Server,
        account: Account,
        counts: Counts | None,
        seconds: float,
        milestone: bool = False,
        own_tasks: Sequence[int] = (),
        read: Scoring = CLASSES,
    ) -> dict[str, Any]:
        """Take in a finished round; return its line for the metrics. After a milestone all tasks were tested.

        `own_tasks` has the task of every client, where they have clocks of their own; `read` reads the test.
        """
        self.done += 1
        if milestone and counts is not None:
            self.new_tests.append(counts)
        per_client = _columns(account, own_tasks)
        spent = {
            "gradients_current": account.cost.current,
            "gradients_memory": account.cost.memory,
            "bytes_up": account.bytes_up,
            "bytes_down": account.bytes_down,
            "seconds": round(seconds, 4),
        }
        for name, value in spent.items():
            self.costs[name] += value
        private = {} if account.epsilon is None else {"epsilon": account.epsilon}
        self.costs.update(private)
        everyone = max(len(server.sizes), len(own_tasks))
        partial = not account.anonymous and (len(account.participants()) < everyone or account.missing)
        seen = _seen(counts, self.by_task, server.moment.seen, milestone, read)
        known = [value for value in seen.values() if value is not None]
        return {
            "task": server.task + 1,
            "round": server.round + 1,
            "loss": _weighted(per_client.get("loss"), account, server),
            "memory_loss": _weighted(per_client.get("memory_loss"), account, server),
            "accuracy": sum(known) / len(known) if known else None,
            "accuracies": [seen.get(task) for task in range(max(seen) + 1)] if seen else None,
            **_taken_logs(server),
            **({"cohort": account.participants()} if partial else {}),
            **({"missing": {str(n): why for n, why in sorted(account.missing.items())}} if account.missing else {}),
            "clients": per_client,
            **({"prequential": account.prequential[0] / account.prequential[1]} if account.prequential[1] else {}),
            **({"noticed": account.noticed} if account.noticed else {}),
            **private,
            **spent,
        }

    def count_line(self, line: bytes) -> None:
        """Take note of a line that was added to the metrics."""
        self.metrics_bytes += len(line)
        self.metrics_checksum = chained(self.metrics_checksum, line)

    def to_dict(self) -> dict[str, Any]:
        """Return the history for a checkpoint."""
        return {name: value for name, value in vars(self).items() if name != "new_tests"}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> History:
        """Take back what `to_dict` returned, after a trip through a file."""
        return cls(**raw)

    def result(self, config: Config, folder: Path, figures: Sequence[Figure], played: Played) -> Result:
        """Sum the run up; `figures` are what its method declares."""
        initial, *after_task = tests = list(played.tests)
        read = scoring(config.problem, config.score)
        each_client = [[read.values(row, self.by_task) for row in counts] for counts in after_task]
        known = all(len(counts) == config.clients for counts in after_task)
        plan, together = played.schedule.plan, played.schedule.together
        tested = Outcomes.of(tests, plan, played.has, self.by_task, read)
        records = read_metrics(folder / "metrics.jsonl")
        pooled = scores if together else _known
        measures = measure(tested, [record["accuracy"] for record in records], single=known)
        measures["all"] |= _prequential(records)
        others = [score for score in read.problem.scores if score != read.score]
        return Result(
            method=config.method,
            seed=config.seed,
            matrices={
                "task": [pooled(counts, True, read) for counts in after_task],
                "class": [pooled(counts, False, read) for counts in after_task],
            },
            initial_accuracy=scores(initial, self.by_task, read),
            # Under secure aggregation all clients' counts come in one row: there is nothing to say of each.
            client_matrices=[[row[k] for row in each_client] for k in range(config.clients)] if known else [],
            costs={**self.costs, "peak_mb": round(self.peak_mb, 1)},
            config=config.to_dict(),
            versions=versions(),
            by_task=self.by_task,
            diagnostics=totals(figures, records),
            figures=tuple(figures),
            folder=folder,
            milestones=(tested.rounds + 1).tolist(),
            measures=measures,
            plan=None if together else plan_to_dict(masked(plan, played.has)),
            score=read.score,
            beside=[Beside(s, [_known(c, self.by_task, Scoring(read.problem, s)) for c in after_task]) for s in others],
        )


def _prequential(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of the prequential accuracy over rounds; nothing where no samples passed by."""
    curve = [record["prequential"] for record in records if "prequential" in record]
    return {"prequential": fmean(curve)} if curve else {}


def _seen(
    counts: Counts | None, by_task: bool, tasks: Sequence[int], all_tested: bool, read: Scoring
) -> dict[int, float | None]:
    """Return the scores on the tasks seen so far; counts are of all tasks, or of those."""
    if counts is None:
        return {}
    found = scores(counts, by_task, read)
    return {task: found[task if all_tested else place] for place, task in enumerate(tasks)}


def scores(counts: Counts, by_task: bool, read: Scoring = CLASSES) -> list[Any]:
    """Return the score on each task over all clients' held-out samples, with their task known or not.

    Where nobody tested a task none of its answers was right; a score that is no share of right answers is None.
    """
    nothing = 0.0 if read.score == ACCURACY else None
    return [nothing if value is None else value for value in _known(counts, by_task, read)]


def _known(counts: Counts, by_task: bool, read: Scoring) -> list[float | None]:
    """Return the same, None where nobody who is left has samples."""
    return read.values(counts.sum(0), by_task)


def _taken_logs(server: Server) -> dict[str, float]:
    """Take over what the server logged in this round; it must not hide what every round has."""
    logs, server.logs = server.logs, {}
    for name in ROUND:
        if name in logs:
            raise UserError(f"the method logs '{name}', which every round has already; log it under another name")
    return logs


def _columns(account: Account, own_tasks: Sequence[int]) -> dict[str, list[Any]]:
    """Turn the clients' logs into one list per name, in the order of clients; with the task that each is in."""
    rows = [account.logs[number] for number in account.participants()]
    names = sorted({name for row in rows for name in row})
    logged = {name: [row.get(name) for row in rows] for name in names}
    if not own_tasks or account.anonymous:
        return logged
    return {"task": [own_tasks[number] + 1 for number in account.participants()], **logged}


def _weighted(values: list[Any] | None, account: Account, server: Server) -> float | None:
    """Return Σ p_i value_i over the clients that took part."""
    if values is None or not all(isinstance(value, int | float) for value in values):
        return None
    sizes = [server.sizes[number] for number in account.participants()]
    return float(sum(v * n for v, n in zip(values, sizes, strict=True)) / sum(sizes))
