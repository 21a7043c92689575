"""The gradient of a plain MLP by hand.

For small models autograd's bookkeeping costs several times what the gradient itself does. Here are the kernels that
autograd would call, in the same order, so the numbers are the same to the bit; a test holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

aten = torch.ops.aten


class DenseNet:
    """Linear layers with ReLU between them, and the cross entropy of what comes out."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        self.layers = layers

    @classmethod
    def of(cls, model: nn.Module) -> DenseNet | None:
        """Return the model as such a net; None where it is something else."""
        modules = list(model) if type(model) is nn.Sequential else []
        if modules and type(modules[0]) is nn.Flatten and modules[0].start_dim == 1:
            modules = modules[1:]
        layers = [module for module in modules[::2] if type(module) is nn.Linear]
        others = [module for module in modules[1::2] if type(module) is nn.ReLU]
        parameters = [p for layer in layers for p in (layer.weight, layer.bias)]
        plain = len(layers) + len(others) == len(modules) == 2 * len(layers) - 1
        trained = len({id(p) for p in parameters if p is not None and p.requires_grad}) == 2 * len(layers)
        return cls(layers) if plain and trained else None

    @torch.no_grad()
    def value_and_grad(self, x: Tensor, labels: Tensor, mask: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
        """Return the mean cross entropy of the masked outputs and its gradient, flat in the model's order."""
        inputs = [x.flatten(1)]
        for layer in self.layers[:-1]:
            inputs.append(F.linear(inputs[-1], layer.weight, layer.bias).relu_())
        outputs = F.linear(inputs[-1], self.layers[-1].weight, self.layers[-1].bias)
        log_p = mask(outputs).log_softmax(1)
        value, weight = aten.nll_loss_forward(log_p, labels, None, 1, -100)

        delta = aten.nll_loss_backward(torch.ones_like(value), log_p, labels, None, 1, -100, weight)
        delta = aten._log_softmax_backward_data(delta, log_p, 1, log_p.dtype)
        grads: list[Tensor] = []
        for k in range(len(self.layers) - 1, -1, -1):
            grads += [delta.sum(0), delta.t().mm(inputs[k]).view(-1)]
            if k:
                delta = aten.threshold_backward(delta.mm(self.layers[k].weight), inputs[k], 0)
        return value.item(), torch.cat(grads[::-1])
