"""Tables of component gradients: the only thing in a process that may be large, so it is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from cflag.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client


class GradientTable:
    """A client's component gradients, one per row: the ∇g_{i,j} at the points where each j was last visited.

    A row is the gradient itself as it was computed; none is copied. A table in half precision holds a row as numbers of
    16 bits times the row's largest, so that an entry is off by at most 2⁻¹² of the row's largest, whatever the
    gradient's size. All sums are made of the rows as they are held: errors do not pile up from step to step.
    """

    def __init__(self, count: int, like: Tensor, half: bool, workspace: Workspace) -> None:
        self.rows: list[Tensor] = [like.new_empty(0)] * count
        self.half = half
        self.scales = torch.ones(count, dtype=like.dtype, device=like.device)
        self.size = count * like.numel() * (2 if half else like.element_size())
        self._workspace = workspace

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[j] for j in range(len(self)))

    def __getitem__(self, j: int) -> Tensor:
        return self.rows[j].to(self.scales.dtype) * self.scales[j] if self.half else self.rows[j]

    def __setitem__(self, j: int, row: Tensor) -> None:
        """Hold a gradient, which is the table's from now on."""
        if not self.half:
            alone = row.untyped_storage().nbytes() < 2 * row.nbytes
            self.rows[j] = row if alone else row.clone()  # or it would keep the whole stack's
            return
        largest = row.abs().max()
        self.scales[j] = torch.where(largest > 0, largest, 1.0)
        self.rows[j] = (row / self.scales[j]).half()

    def replace(self, j: int, row: Tensor) -> Tensor:
        """Hold another row j; return what the table's row changed by."""
        old = self[j]
        self[j] = row
        return self[j] - old if self.half else torch.sub(self.rows[j], old, out=old)  # nobody has the old one any more

    def __del__(self) -> None:
        self._workspace.used -= self.size


class Workspace:
    """What clients of one process keep between the questions of a round, at most `limit` bytes of it.

    Where there is no room for another table, the client that kept one last gives it up and will make it again.
    """

    def __init__(self, limit: int = 2**31) -> None:
        self.limit = limit
        self.used = 0
        self._kept: dict[int, tuple[Client, int]] = {}

    def table(self, count: int, like: Tensor) -> GradientTable:
        """Return a table of `count` rows: in half precision where it would be too large otherwise."""
        size = count * like.nbytes
        half = size > self.limit
        if half:
            size = count * like.numel() * 2
        if size > self.limit:
            raise UserError(
                f"a client's {count} component gradients need {size / 1e9:.1f} GB even in half precision, more than "
                f"table_bytes = {self.limit}; raise it, or use larger mini-batches or cflag.estimator = 'minibatch'"
            )
        while self.used + size > self.limit and self._kept:
            client, _ = self._kept[next(reversed(self._kept))]
            client.drop_scratch()
        self.used += size
        return GradientTable(count, like, half, self)

    def keep(self, client: Client, made: Any) -> bool:
        """Say whether a client may keep what it made for a later question; tables have their room already."""
        size = sum(t.nbytes for t in (made if isinstance(made, tuple) else (made,)) if isinstance(t, torch.Tensor))
        if self.used + size > self.limit:
            return False
        self.used += size
        self._kept[client.number] = client, self._kept.get(client.number, (client, 0))[1] + size
        return True

    def dropped(self, client: Client) -> None:
        """A client keeps nothing any more."""
        self.used -= self._kept.pop(client.number, (client, 0))[1]

    def clear(self) -> None:
        """A new round: nothing of the last one is wanted."""
        for client, _ in list(self._kept.values()):
            client.drop_scratch()
