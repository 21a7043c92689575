"""Tables of component gradients: the only thing in a process that may be large, so it is bounded and allocated once."""

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

    A table in half precision holds a row as numbers of 16 bits times the row's largest, so that an entry is off by at
    most 2⁻¹² of the row's largest, whatever the gradient's size. All sums are made of the rows as they are held: errors
    do not pile up from step to step.
    """

    def __init__(self, rows: Tensor, dtype: torch.dtype, workspace: Workspace) -> None:
        self.rows = rows
        self.scales = None if rows.dtype == dtype else torch.ones(len(rows), dtype=dtype, device=rows.device)
        self._workspace = workspace

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[j] for j in range(len(self)))

    def __getitem__(self, j: int) -> Tensor:
        return self.rows[j] if self.scales is None else self.rows[j].to(self.scales.dtype) * self.scales[j]

    def __setitem__(self, j: int, row: Tensor) -> None:
        if self.scales is not None:
            largest = row.abs().max()
            self.scales[j] = torch.where(largest > 0, largest, 1.0)
            row = row / self.scales[j]
        self.rows[j] = row

    def replace(self, j: int, row: Tensor) -> Tensor:
        """Hold another row j; return what the table's row changed by."""
        if self.scales is None:
            held = self.rows[j]
            change = row - held
            held.copy_(row)
            return change
        old = self[j]
        self[j] = row
        return self[j] - old

    def __del__(self) -> None:
        self._workspace.take_back(self.rows)


class Workspace:
    """What clients of one process keep between the questions of a round, at most `limit` bytes of it.

    Where there is no room for another table, the client that kept one last gives it up and will make it again.
    """

    def __init__(self, limit: int = 2**31) -> None:
        self.limit = limit
        self.used = 0
        self._kept: dict[int, tuple[Client, int]] = {}
        self._free: list[Tensor] = []

    def table(self, count: int, like: Tensor) -> GradientTable:
        """Return a table of `count` rows: in half precision where it would be too large otherwise."""
        dtype, size = like.dtype, count * like.nbytes
        if size > self.limit:
            dtype, size = torch.float16, count * like.numel() * 2
        if size > self.limit:
            raise UserError(
                f"a client's {count} component gradients need {size / 1e9:.1f} GB even in half precision, more than "
                f"table_bytes = {self.limit}; raise it, or use larger mini-batches or cflag.estimator = 'minibatch'"
            )
        while self.used + size > self.limit and self._kept:
            client, _ = self._kept[next(reversed(self._kept))]
            client.drop_scratch()
        self.used += size
        storage = self._storage(count * like.numel(), dtype, like.device)
        return GradientTable(storage.view(count, -1), like.dtype, self)

    def _storage(self, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory that was used before, where there is some that fits: new pages cost as much as a gradient."""
        fits = [t for t in self._free if t.numel() >= count and t.dtype == dtype and t.device == device]
        if fits:
            best = min(fits, key=torch.Tensor.numel)
            self._free = [t for t in self._free if t is not best]
            return best[:count]
        self._free.clear()
        return torch.empty(count, dtype=dtype, device=device)

    def take_back(self, rows: Tensor) -> None:
        """A table is gone: remember its memory for the next one."""
        self.used -= rows.nbytes
        whole = rows if rows._base is None else rows._base
        self._free.append(whole.view(-1))

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
