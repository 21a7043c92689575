"""m as the mean over all clients' memory samples: a memory of few samples says less about the past than a full one.

Answers are averaged with p_i, the shares of *current* samples. A factor turns p_i into the share of memory samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, repeat
from typing import TYPE_CHECKING

import torch

from cflag.conversation import Answer, Mean

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client
    from cflag.data.samples import Samples


def by_samples(client: Client, m: Tensor | None) -> Answer:
    """Return a client's m_i (None: its memory is empty) so that the mean can be taken over memory samples."""
    factor = len(client.memory) / client.size
    return {"m": torch.zeros_like(client.params) if m is None else factor * m, "factor": factor}


def over_all_samples(mean: Mean) -> Tensor | None:
    """Return m = Σ n_i m_i / Σ n_i with n_i the memory samples of client i; None while all memories are empty."""
    m: Tensor | None = mean.m / mean.factor if mean.get("factor") else None
    return m


def in_two_parts(client: Client, samples: Samples, first: int, name: str) -> Tensor:
    """Return the gradient on samples; that on the `first` of them is kept, under a name, for `along_the_path`."""
    rest = samples[first:]
    of_rest = client.value_and_grad(rest)[1] if len(rest) else None
    r = client.compute(name, lambda: client.value_and_grad(samples[:first])[1])
    return r if of_rest is None else torch.lerp(r, of_rest, len(rest) / len(samples))


def along_the_path(client: Client, m: Tensor | None, followed: Samples | None, name: str) -> Iterator[Tensor | None]:
    """Return m where it was taken, then m + r_k − r_0 at each later model of the client: m's drift correction.

    r is the gradient on a few of the very samples that m was made of, so r_k − r_0 is how m changed as these see it,
    free of the noise of a new draw. With nothing to follow m stands still.
    """
    if m is None or followed is None:
        return repeat(m)
    rest = m - client.recall(name, lambda: client.value_and_grad(followed)[1])
    return chain([m], (rest + client.value_and_grad(followed)[1] for _ in count()))


def weight_of(m: Tensor, v: Tensor, pull: float, interference: bool) -> float:
    """Return α_k: the interference rule of Algorithm 2 for one step. After it ⟨m, v + α_k m⟩ ≥ pull ‖m‖².

    An m shorter than √ε ‖v‖, ε the rounding of a number, has no direction to speak of: α_k is `pull`, where the rule
    would turn v away from rounding.
    """
    norm = float(m @ m)
    if norm == 0.0:
        return 0.0
    if not interference or norm <= torch.finfo(m.dtype).eps * float(v @ v):
        return pull
    return pull + max(0.0, -float(m @ v) / norm)
