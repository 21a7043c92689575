"""The public side: the global model and what a method keeps at the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass
class Server:
    """What a method sees of the server.

    `state` holds tensors and JSON values that survive restarts. `sizes` are the numbers of current samples of the
    clients, which give the weights p_i.
    """

    params: Tensor
    """The global model x_t, flat."""
    buffers: Tensor
    """The global batch-norm statistics, flat; empty for a model without."""
    rounds: int
    """T, the number of rounds of each task."""
    task: int = 0
    round: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    remarks: dict[str, float] = field(default_factory=dict)

    def remark(self, **values: float) -> None:
        """Note something about this round for the metrics."""
        self.remarks.update(values)
