"""The gradients of plain MLPs by hand, of one or of several at once.

For small models autograd's bookkeeping, and calling torch's kernels at all, costs several times what the gradient
itself does. numpy's calls are short, and its product of stacks of matrices is a loop over plain products: what a net
gets does not depend on how many are computed with it. The numbers are autograd's up to rounding; a test holds them to
that, and another one a stack to its nets alone, to the bit.

Inside the nets a sample is a column: weights stand on the left of products, which are faster that way round, and sums
over outputs go along rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import fsum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

Array = NDArray[Any]
Slopes = Callable[[Array], tuple[list[float], Array]]
"""The mean losses of several nets' outputs, (nets, outputs, n), and their slopes at them."""
Nets = list[tuple[Array, Array]]
"""Several nets: the weights (nets, outputs, inputs) and biases (nets, outputs, 1) of each layer."""
ALIGNED = 16
"""Vectors begin at multiples of so many numbers, as tensors do: some of torch's sums go by where they are."""
relu_backward = torch.ops.aten.threshold_backward.default


def aligned_rows(count: int, numbers: int, dtype: torch.dtype) -> Tensor:
    """Return rows for so many vectors, each beginning where a vector of its own might, with a gap after each."""
    return torch.empty(count, (numbers // ALIGNED + 1) * ALIGNED, dtype=dtype).narrow(1, 0, numbers)


def cross_entropy_slopes(masked: Array, labels: Array) -> tuple[list[float], Array]:
    """Return the mean cross entropies of several nets' masked outputs, (nets, outputs, n), and their slopes.

    A mean loss is an exact sum, rounded once, so that no order of adding shows in it.
    """
    nets, _, n = masked.shape
    shifted = masked - np.maximum.reduce(masked, 1, keepdims=True)
    own = _tops(*masked.shape) + labels.reshape(nets, n) * n
    reached = shifted.reshape(-1)[own]
    slopes = np.exp(shifted)
    totals = np.add.reduce(slopes, 1)
    losses = (np.log(totals) - reached).tolist()
    slopes *= np.divide(1 / n, totals)[:, None]
    slopes.reshape(-1)[own] -= 1 / n
    return [fsum(each) / n for each in losses], slopes


@cache
def _tops(nets: int, outputs: int, n: int) -> Array:
    """Return where, in all numbers of several matrices, each of their columns begins."""
    return np.arange(nets)[:, None] * (outputs * n) + np.arange(n)


def _squares(outputs: Array) -> tuple[list[float], Array]:
    """Return losses, and their slopes, that see every output: half the sums of squares."""
    return [fsum((own**2).ravel().tolist()) / 2 for own in outputs], outputs


class DenseNet:
    """The shape of a model of linear layers with ReLU between them; parameters are rows, flat in the model's order."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        # Detached, so that no kernel looks for a graph; they still share the memory of the model's parameters.
        self.layers = [(layer.weight.detach(), layer.bias.detach()) for layer in layers]
        self.shapes = [(layer.out_features, layer.in_features) for layer in layers]
        self.count = sum(p.numel() for layer in self.layers for p in layer)

    @classmethod
    def of(cls, model: nn.Module) -> DenseNet | None:
        """Return the model, whose parameters stay where they are, as such a net; None where it is something else."""
        modules = list(model) if type(model) is nn.Sequential else []
        if modules and type(modules[0]) is nn.Flatten and modules[0].start_dim == 1:
            modules = modules[1:]
        layers = [module for module in modules[::2] if type(module) is nn.Linear]
        others = [module for module in modules[1::2] if type(module) is nn.ReLU]
        parameters = [p for layer in layers for p in (layer.weight, layer.bias)]
        plain = len(layers) + len(others) == len(modules) == 2 * len(layers) - 1
        trained = len({id(p) for p in parameters if p is not None and p.requires_grad}) == 2 * len(layers)
        if not (plain and trained):
            return None
        known = all(p.device.type == "cpu" and p.dtype in (torch.float32, torch.float64) for p in parameters)
        return cls(layers) if known else None

    def nets(self, rows: Array) -> Nets:
        """Return the nets whose parameters are rows, in the rows' memory."""
        found, count, start = [], len(rows), 0
        for outputs, inputs in self.shapes:
            middle = start + outputs * inputs
            end = middle + outputs
            found.append((rows[:, start:middle].reshape(count, outputs, inputs), rows[:, middle:end, None]))
            start = end
        return found

    def values_and_grads(self, nets: Nets, x: Array, slopes: Slopes) -> tuple[list[float], Tensor]:
        """Return the mean losses and their gradients, a row each, of several nets on (nets, n, ...) samples."""
        with np.errstate(all="ignore"):  # a model that runs away is found out by its numbers
            inputs = [x.reshape(*x.shape[:2], -1).transpose(0, 2, 1)]
            for weight, bias in nets:
                outputs = np.matmul(weight, inputs[-1])
                outputs += bias
                inputs.append(np.maximum(outputs, 0, out=outputs) if len(inputs) < len(nets) else outputs)
            values, delta = slopes(inputs.pop())
            grads = aligned_rows(len(x), self.count, self.layers[0][0].dtype)
            parts = self.nets(grads.numpy())
            for k in range(len(nets) - 1, -1, -1):
                weight, bias = parts[k]
                np.matmul(delta, inputs[k].transpose(0, 2, 1), out=weight)
                np.add.reduce(delta, 2, out=bias, keepdims=True)
                if k:
                    delta = np.matmul(nets[k][0].transpose(0, 2, 1), delta)
                    delta *= inputs[k] > 0
        return values, grads

    def stacks(self, samples: int, nets: int = 16) -> bool:
        """Say whether mini-batches of this size have the same gradients, to the bit, together and alone.

        Tried on random nets, as it depends on a machine's kernels, which may sum by where in memory they read: with 16
        nets every place is tried.
        """
        draw = np.random.default_rng(0)
        rows = draw.normal(size=(nets, self.count)).astype(self.layers[0][0].numpy().dtype) / 5
        x = draw.normal(size=(nets, samples, self.shapes[0][1])).astype(rows.dtype)
        values, grads = self.values_and_grads(self.nets(rows), x, _squares)
        for k in range(nets):
            (value,), grad = self.values_and_grads(self.nets(rows[k : k + 1].copy()), x[k : k + 1].copy(), _squares)
            if value != values[k] or not torch.equal(grad[0], grads[k]):
                return False
        return True

    def outputs(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs, and what each layer takes in."""
        inputs = [x.flatten(1)]
        for weight, bias in self.layers[:-1]:
            inputs.append(F.linear(inputs[-1], weight, bias).relu_())
        return F.linear(inputs[-1], *self.layers[-1]), inputs

    def clipped_sum(self, slopes: Tensor, inputs: list[Tensor], clip: float) -> Tensor:
        """Return the sum of the samples' gradients, each shortened to a norm, without holding any of them.

        A layer's gradient for a sample is δ aᵀ and δ, so its squared norm is ‖δ‖² (‖a‖² + 1).
        """
        deltas = [slopes]
        for k in range(len(self.layers) - 1, 0, -1):
            deltas.insert(0, relu_backward(deltas[0].mm(self.layers[k][0]), inputs[k], 0))
        pairs = list(zip(deltas, inputs, strict=True))
        norms = torch.stack([delta.square().sum(1) * (a.square().sum(1) + 1) for delta, a in pairs]).sum(0).sqrt()
        factors = clip / norms.clamp(min=clip)
        finite = norms.isfinite()
        grads: list[Tensor] = []
        for delta, a in pairs:
            short = torch.where(finite[:, None], delta * factors[:, None], 0.0)
            grads += [short.t().mm(torch.where(finite[:, None], a, 0.0)).view(-1), short.sum(0)]
        return torch.cat(grads)
