"""What engines count: the cost of a round, what clients logged in it, and how many test samples were right."""

from __future__ import annotations

from torch import Tensor

from cflag.conversation import Cost, Reply

Counts = Tensor
"""(clients, tasks, 2 width + 1): the problem's sums with the task known, the same without, and samples.

For classes the sums are right answers, one number.
"""


class Account:
    """What a round cost, and what clients logged in it."""

    def __init__(self) -> None:
        self.cost = Cost()
        self.bytes_up = 0
        self.bytes_down = 0
        self.logs: dict[int, dict[str, float | str]] = {}
        self.missing: dict[int, str] = {}
        """Clients that were asked and gave no usable answer, and why."""
        self.uses: dict[int, int] = {}
        """Where a private run protects samples: how often each client's most used one was used, in all."""
        self.epsilon: float | None = None
        """In a private run: ε so far."""
        self.prequential = (0, 0)
        """Where samples pass by: right answers on them before they were learned, and how many were tested."""
        self.noticed: list[int] = []
        """The clients that noticed a drift in their samples."""
        self.anonymous = False
        """Whether nothing is known of single clients: secure aggregation, and private runs."""

    def add(self, number: int, reply: Reply, size: int) -> None:
        """Enter a client's reply, and its answer's size; if it logs a name twice in a round, the first value counts."""
        self.cost += reply.cost
        self.bytes_up += size
        self.uses[number] = reply.uses
        if reply.logs:
            self.logs[number] = {**reply.logs, **self.logs.get(number, {})}

    def participants(self) -> list[int]:
        """Return the clients that logged something: those that took part in the round itself."""
        return sorted(self.logs)
