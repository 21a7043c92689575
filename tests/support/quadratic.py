"""A laboratory for tests: clients whose components are ½ (a·x − b)², so every gradient is a·(a·x − b)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cflag import registry
from cflag.config import Config, resolve
from cflag.data.benchmark import Benchmark
from cflag.data.samples import Samples
from cflag.data.source import Source, Split
from cflag.engines.host import Host
from cflag.engines.local import LocalEngine
from cflag.learning.learner import Learner
from cflag.server import Server
from cflag.session import Session

Row = Sequence[float]
"""a_1, ..., a_d, b of one component."""


class Linear(nn.Module):
    """x as the one parameter; its outputs are the residuals a·x − b."""

    def __init__(self, start: Row) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        return rows[:, :-1] @ self.x - rows[:, -1]


def half_square(outputs: Tensor, samples: Samples) -> Tensor:
    return 0.5 * (outputs**2).mean()


def lose_scratch(host: Host) -> None:
    """Let no client keep anything between two questions."""
    setattr(host.workspace, "keep", lambda *_: False)  # noqa: B010 (mypy forbids the assignment)


class Lab:
    """Clients with a past (task 1) and current data (task 2), ready for rounds on task 2."""

    def __init__(
        self,
        past: Sequence[Sequence[Row]],
        current: Sequence[Sequence[Row]],
        start: Row,
        workers: int = 1,
        **settings: Any,
    ) -> None:
        both = [(row, task, client) for task, part in enumerate((past, current)) for client, rows in enumerate(part)
                for row in rows]  # fmt: skip
        split = Split(
            torch.tensor([list(row) for row, _, _ in both], dtype=torch.float64),
            torch.tensor([task for _, task, _ in both]),
            torch.tensor([client for _, _, client in both]),
        )
        raw: dict[str, Any] = {"clients": len(past), "tasks": 2, "scenario": "class", "class_order": "natural",
               "partition": "subject", "batch": 1, "workers": workers, "source": "custom", "model": "custom",
               "memory": {"per_task": 100, "sample": 100}, **settings}  # fmt: skip
        self.config: Config = resolve(raw)
        benchmark = Benchmark(Source("quadratic", split, split, 2), self.config)
        self.learner = Learner(Linear(start), benchmark.heads, benchmark.normalise, loss=half_square)
        self.method = registry.get("method", self.config.method)(self.config.settings, self.config)
        self.host = Host(benchmark, self.method, self.learner, self.config.memory, 0)
        self.engine = LocalEngine(self.host, workers)
        start_model = (self.learner.params.clone(), self.learner.buffers.clone())
        self.server = Server(*start_model, self.config.rounds, self.learner)
        self.session = Session(self.method, self.engine, self.server)
        self.session.enter(0)
        self.session.end_task()
        self.session.enter(1)
        self.engine.settle()

    def round(self) -> Tensor:
        """Run one round; return x_{t+1}."""
        self.session.round()
        self.server.round += 1
        return self.server.params

    def log(self, name: str) -> list[Any]:
        """Return what each client logged in the last round."""
        return [self.engine.account.logs[k].get(name) for k in sorted(self.engine.account.logs)]
