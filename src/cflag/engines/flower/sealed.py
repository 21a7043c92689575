"""A sealed answer: how both sides of secure aggregation lay an answer out as one vector.

Flower has SecAgg+ as a workflow for its older strategies; with it the server learns weighted means and nothing else. A
question travels in place of a strategy's fit instructions; the answer, laid out as one vector, in place of the fitted
parameters, with n_i as the weight. Numbers are rounded at random to multiples of 2 RANGE / 2^22, so means differ from
plain ones by about 1e-5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

RANGE = 8.0
"""The largest number that can be carried, times p_i; larger ones are refused rather than clipped."""

LEAST = 3
"""Clients whose answers are in a mean, at least: of two, each knows the other's answer from the mean."""

Layout = dict[str, list[int]]
"""The names and shapes of an answer's parts; all clients' are the same."""


def lay_out(answer: Mapping[str, Any]) -> tuple[Tensor, Layout]:
    """Return an answer as one vector, and where its parts are in it."""
    layout = {name: list(getattr(answer[name], "shape", ())) for name in sorted(answer)}
    parts = [torch.as_tensor(answer[name], dtype=torch.float64).reshape(-1) for name in sorted(answer)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64), layout


def take_apart(vector: np.ndarray[Any, Any], layout: Layout) -> dict[str, Any]:
    """Return the tensors and numbers that `lay_out` put into a vector."""
    flat, answer = torch.from_numpy(vector), {}
    for name, shape in layout.items():
        size = int(np.prod(shape)) if shape else 1
        part, flat = flat[:size], flat[size:]
        answer[name] = part.reshape(shape) if shape else float(part)
    return answer
