"""m as the mean over all clients' memory samples: a memory of few samples says less about the past than a full one.

Answers are averaged with p_i, the shares of *current* samples. A factor turns p_i into the share of memory samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cflag.conversation import Answer, Mean

if TYPE_CHECKING:
    from cflag.client import Client


def by_samples(client: Client, m: Tensor | None) -> Answer:
    """Return a client's m_i (None: its memory is empty) so that the mean can be taken over memory samples."""
    factor = len(client.memory) / len(client.data)
    return {"m": torch.zeros_like(client.params) if m is None else factor * m, "factor": factor}


def over_all_samples(mean: Mean) -> Tensor | None:
    """Return m = Σ n_i m_i / Σ n_i with n_i the memory samples of client i; None while all memories are empty."""
    m: Tensor | None = mean.m / mean.factor if mean.get("factor") else None
    return m
