"""The gradient of a plain MLP by hand.

For small models autograd's bookkeeping costs several times what the gradient itself does. Here are the kernels that
autograd would call, in the same order, so the numbers are the same to the bit; a test holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

nll_loss = torch.ops.aten.nll_loss_forward.default
nll_loss_backward = torch.ops.aten.nll_loss_backward.default
log_softmax_backward = torch.ops.aten._log_softmax_backward_data.default
relu_backward = torch.ops.aten.threshold_backward.default

Slope = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The mean loss of outputs, and its slope at them."""
Slopes = Callable[[Tensor], tuple[list[float], Tensor]]
"""The same for the outputs of several nets, (nets, n, outputs)."""
SMALLEST = 400
"""Multiplications in a matrix product below which torch's batched one sums in another order than its plain one."""
LARGE = 2**14
"""Numbers of a layer from which on a copy of its gradient costs more than the call that saves it."""
ALIGNED = 16
"""What kernels read begins at multiples of so many numbers, as a tensor of its own does: some sum by where it is."""


def cross_entropy_slope(masked: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross entropy of masked outputs, and its slope at them."""
    log_p = masked.log_softmax(1)
    value, count = nll_loss(log_p, labels, None, 1, -100)
    delta = nll_loss_backward(torch.ones_like(value), log_p, labels, None, 1, -100, count)
    return value, log_softmax_backward(delta, log_p, 1, log_p.dtype)


def cross_entropy_slopes(masked: Tensor, labels: Sequence[Tensor]) -> tuple[list[float], Tensor]:
    """Return the mean cross entropies of several nets' masked outputs, (nets, n, outputs), and their slopes."""
    log_p = masked.log_softmax(2)
    losses = [nll_loss(own, y, None, 1, -100) for own, y in zip(log_p.unbind(0), labels, strict=True)]
    value, count = losses[0]
    rows = log_p.flatten(0, 1)
    delta = nll_loss_backward(torch.ones_like(value), rows, torch.cat(list(labels)), None, 1, -100, count)
    slopes = log_softmax_backward(delta, rows, 1, rows.dtype).view(masked.shape)
    return torch.stack([value for value, _ in losses]).tolist(), slopes


def side_by_side(joined: Tensor, count: int) -> Tensor:
    """Return `count` mini-batches, joined in one tensor, apart: each begins where a tensor of its own might."""
    apart = joined.view(count, -1, *joined.shape[1:])
    size = apart[0].numel()
    if size % ALIGNED == 0:
        return apart
    rows = aligned_rows(count, apart[0])[:, :size]
    rows.copy_(apart.flatten(1))
    return rows.view(apart.shape)


def _square(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return a loss, and its slope, that sees every output: half the sum of squares."""
    return outputs.square().sum() / 2, outputs


def _squares(outputs: Tensor) -> tuple[list[float], Tensor]:
    return [_square(own)[0].item() for own in outputs], outputs


def aligned_rows(count: int, like: Tensor) -> Tensor:
    """Return so many rows for a vector each, beginning where a vector of its own might; they may be longer than it."""
    return like.new_empty(count, -(-like.numel() // ALIGNED) * ALIGNED)


class DenseNet:
    """Linear layers with ReLU between them, and the loss of what comes out."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        # Detached, so that no kernel looks for a graph; they still share the memory of the model's parameters.
        self.layers = [(weight.detach(), bias.detach()) for weight, bias in layers]
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
        return value.item(), grads

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
        values, grads = self.values_and_grads(rows, side_by_side(x.flatten(0, 1), nets), _squares)
        same = True
        for k, layers in enumerate(zip(*(zip(w, b[:, 0], strict=True) for w, b in self._stacked(rows)), strict=True)):
            value, grad = DenseNet(layers).value_and_grad(x[k], _square)
            same = same and value == values[k] and torch.equal(grad, grads[k])
        return same

    def values_and_grads(self, rows: Tensor, x: Tensor, slope: Slopes) -> tuple[list[float], Tensor]:
        """Return the losses and gradients of several nets, one row of parameters each, on (nets, n, ...) samples."""
        layers = self._stacked(rows)
        inputs = [x.flatten(2)]
        for weight, bias in layers[:-1]:
            inputs.append(torch.baddbmm(bias, inputs[-1], weight.transpose(1, 2)).relu_())
        weight, bias = layers[-1]
        values, delta = slope(torch.baddbmm(bias, inputs[-1], weight.transpose(1, 2)))
        grads = aligned_rows(len(rows), rows[0])[:, : rows.shape[1]]
        for k, (weight, bias) in reversed(list(enumerate(self._stacked(grads)))):
            weight.copy_(delta.transpose(1, 2).bmm(inputs[k]))  # bmm into rows apart from each other is slower
            torch.sum(delta, 1, keepdim=True, out=bias)
            if k:
                delta = relu_backward(delta.bmm(layers[k][0]), inputs[k], 0)
        return values, grads

    def _stacked(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return weights (nets, outputs, inputs) and biases (nets, 1, outputs) of each layer, as parts of the rows."""
        found, pitch, start = [], rows.stride(0), rows.storage_offset()
        for weight, bias in self.layers:
            outputs, inputs = weight.shape
            end = start + weight.numel()
            found.append((rows.as_strided((len(rows), outputs, inputs), (pitch, inputs, 1), start),
                          rows.as_strided((len(rows), 1, outputs), (pitch, outputs, 1), end)))  # fmt: skip
            start = end + bias.numel()
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
