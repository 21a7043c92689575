"""What the clients of a process hold of their samples, within a limit."""

from __future__ import annotations

from cflag.data.samples import Samples


class Holdings:
    """How many bytes each client holds, in the order in which clients were last asked, and a limit to the sum."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sizes: dict[int, int] = {}
        self.total = 0

    @property
    def too_much(self) -> bool:
        """Whether all clients together hold more than they may."""
        return self.total > self.limit

    def put(self, client: int, data: Samples) -> None:
        """Note what a client, the latest, holds; until it is dropped it holds the same."""
        size = self.sizes.pop(client, None)
        if size is None:
            size = sum(t.nbytes for t in data.tensors().values())
            self.total += size
        self.sizes[client] = size

    def drop(self, client: int) -> None:
        """Note that a client holds nothing any more."""
        self.total -= self.sizes.pop(client, 0)

    def oldest(self) -> int:
        """Return the client that was asked longest ago."""
        return next(iter(self.sizes))
