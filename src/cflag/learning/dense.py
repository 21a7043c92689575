"""The gradient of a plain MLP by hand.

For small models autograd's bookkeeping costs several times what the gradient itself does. Here are the kernels that
autograd would call, in the same order, so the numbers are the same to the bit; a test holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import fsum

import torch
from torch import Tensor, nn
from torch.nn import functional as F

nll_loss_backward = torch.ops.aten.nll_loss_backward.default
log_softmax_backward = torch.ops.aten._log_softmax_backward_data.default
relu_backward = torch.ops.aten.threshold_backward.default

Slope = Callable[[Tensor], tuple[float, Tensor]]
"""The mean loss of outputs, and its slope at them."""
Slopes = Callable[[Tensor], tuple[list[float], Tensor]]
"""The same for the outputs of several nets, (nets, n, outputs)."""
Stacked = list[tuple[Tensor, Tensor]]
"""Several nets: the weights (nets, outputs, inputs) and biases (nets, 1, outputs) of each layer."""
SMALLEST = 400
"""Multiplications in a matrix product below which torch's batched one sums in another order than its plain one."""
LARGE = 2**14
"""Numbers of a layer from which on a copy of its gradient costs more than the call that saves it."""
ALIGNED = 16
"""What kernels read begins at multiples of so many numbers, as a tensor of its own does: some sum by where it is."""


def cross_entropy_slope(masked: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """Return the mean cross entropy of masked outputs, and its slope at them."""
    log_p = masked.log_softmax(1)
    return _mean_losses(log_p, labels, 1)[0], _slopes(log_p, labels, len(labels))


def cross_entropy_slopes(masked: Tensor, labels: Sequence[Tensor]) -> tuple[list[float], Tensor]:
    """Return the mean cross entropies of several nets' masked outputs, (nets, n, outputs), and their slopes."""
    log_p, all_labels = masked.log_softmax(2).flatten(0, 1), torch.cat(list(labels))
    return _mean_losses(log_p, all_labels, len(labels)), _slopes(log_p, all_labels, masked.shape[1]).view(masked.shape)


def _mean_losses(log_p: Tensor, labels: Tensor, nets: int) -> list[float]:
    """Return each net's mean loss: an exact sum, rounded once, so that no order of adding shows in it."""
    losses = log_p.gather(1, labels.unsqueeze(1)).flatten().tolist()
    count = len(losses) // nets
    return [-fsum(losses[start : start + count]) / count for start in range(0, len(losses), count)]


def _slopes(log_p: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return the slopes of mean losses over `count` samples each, at the outputs."""
    one, total = _one_and_total(count, log_p.dtype, log_p.device)
    delta = nll_loss_backward(one, log_p, labels, None, 1, -100, total)
    slopes: Tensor = log_softmax_backward(delta, log_p, 1, log_p.dtype)
    return slopes


@cache
def _one_and_total(count: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return what a mean loss is one of, and the weight that it is divided by, as the kernel wants them."""
    return torch.ones((), dtype=dtype, device=device), torch.tensor(float(count), dtype=dtype, device=device)


def side_by_side(joined: Tensor, count: int) -> Tensor:
    """Return `count` mini-batches, joined in one tensor, apart: each begins where a tensor of its own might."""
    apart = joined.view(count, -1, *joined.shape[1:])
    size = apart[0].numel()
    if size % ALIGNED == 0:
        return apart
    rows = aligned_rows(count, apart[0])[:, :size]
    rows.copy_(apart.flatten(1))
    return rows.view(apart.shape)


def _square(outputs: Tensor) -> tuple[float, Tensor]:
    """Return a loss, and its slope, that sees every output: half the sum of squares."""
    return outputs.square().sum().item() / 2, outputs


def _squares(outputs: Tensor) -> tuple[list[float], Tensor]:
    return [_square(own)[0] for own in outputs], outputs


def aligned_rows(count: int, like: Tensor) -> Tensor:
    """Return so many rows for a vector each, beginning where a vector of its own might; they may be longer than it."""
    return like.new_empty(count, _pitch(like.numel()))


def _pitch(numbers: int) -> int:
    """Return how far apart vectors of so many numbers begin."""
    return -(-numbers // ALIGNED) * ALIGNED


class DenseNet:
    """Linear layers with ReLU between them, and the loss of what comes out."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        # Detached, so that no kernel looks for a graph; they still share the memory of the model's parameters.
        self.layers = [(weight.detach(), bias.detach()) for weight, bias in layers]
        self.shapes = [tuple(weight.shape) for weight, _ in self.layers]
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
        return cls([(layer.weight, layer.bias) for layer in layers]) if plain and trained else None

    def value_and_grad(self, x: Tensor, slope: Slope) -> tuple[float, Tensor]:
        """Return the mean loss and its gradient, flat in the model's order."""
        outputs, inputs = self.outputs(x if x.data_ptr() % (4 * ALIGNED) == 0 else x.clone())
        value, delta = slope(outputs)
        grads, end = self.layers[0][0].new_empty(self.count), self.count
        for k in range(len(self.layers) - 1, -1, -1):
            weight, bias = self.layers[k]
            middle = end - bias.numel()
            start = middle - weight.numel()
            grads[middle:end] = delta.sum(0)
            own = grads[start:middle].view(weight.shape)
            if start % ALIGNED == 0 and weight.numel() >= LARGE:
                torch.mm(delta.t(), inputs[k], out=own)  # a copy would take as long as a step
            else:
                own.copy_(delta.t().mm(inputs[k]))
            if k:
                delta = relu_backward(delta.mm(weight), inputs[k], 0)
            end = start
        return value, grads

    def stacks(self, samples: int, nets: int = 16) -> bool:
        """Say whether mini-batches of this size have the same gradients, to the bit, together and alone.

        Tried on random nets, as it depends on how a machine's kernels sum, and that on where in memory they read: with
        16 nets every place is tried. Small products, for which torch has another kernel, may agree by chance.
        """
        if samples * min(weight.numel() for weight, _ in self.layers) < SMALLEST:
            return False
        draw, like = torch.Generator().manual_seed(0), self.layers[0][0]
        rows = aligned_rows(nets, like.new_empty(self.count))[:, : self.count]
        rows.copy_(torch.randn(rows.shape, generator=draw) * 0.2)
        x = torch.randn(nets, samples, like.shape[1], generator=draw).to(rows)
        values, grads = self.values_and_grads(self.stacked(rows), side_by_side(x.flatten(0, 1), nets), _squares)
        same = True
        for k, layers in enumerate(zip(*(zip(w, b[:, 0], strict=True) for w, b in self.stacked(rows)), strict=True)):
            value, grad = DenseNet(layers).value_and_grad(x[k], _square)
            same = same and value == values[k] and torch.equal(grad, grads[k])
        return same

    def values_and_grads(self, nets: Stacked, x: Tensor, slope: Slopes) -> tuple[list[float], Tensor]:
        """Return the losses and gradients, a row each, of several nets on (nets, n, ...) samples."""
        inputs = [x if x.dim() == 3 else x.flatten(2)]
        for weight, bias in nets[:-1]:
            inputs.append(torch.baddbmm(bias, inputs[-1], weight.transpose(1, 2)).relu_())
        weight, bias = nets[-1]
        values, delta = slope(torch.baddbmm(bias, inputs[-1], weight.transpose(1, 2)))
        grads = x.new_empty(x.shape[0], _pitch(self.count))
        for k, (weight, bias) in zip(range(len(nets) - 1, -1, -1), reversed(self.stacked(grads)), strict=True):
            weight.copy_(delta.transpose(1, 2).bmm(inputs[k]))  # bmm into rows apart from each other is slower
            torch.sum(delta, 1, keepdim=True, out=bias)
            if k:
                delta = relu_backward(delta.bmm(nets[k][0]), inputs[k], 0)
        return values, grads[:, : self.count]

    def stacked(self, rows: Tensor) -> Stacked:
        """Return the nets whose parameters are rows, in the rows' memory."""
        found, nets, pitch, start = [], rows.shape[0], rows.stride(0), rows.storage_offset()
        for outputs, inputs in self.shapes:
            end = start + outputs * inputs
            found.append((rows.as_strided((nets, outputs, inputs), (pitch, inputs, 1), start),
                          rows.as_strided((nets, 1, outputs), (pitch, outputs, 1), end)))  # fmt: skip
            start = end + outputs
        return found

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
