"""The learner: one model whose parameters are views of one flat vector.

A process has one learner, however many clients it serves: aggregation, rates, Γ and checkpoints are vector
operations, and nothing copies a model per client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from cflag.augmentations.base import Augment
from cflag.data.heads import Heads
from cflag.data.samples import Samples
from cflag.errors import UserError
from cflag.learning.dense import Array, DenseNet, Nets, cross_entropy_slopes
from cflag.learning.own_loss import own_loss
from cflag.models.trainable import HEAD, Joined, set_training
from cflag.problems.base import Problem
from cflag.problems.classes import Classes

Loss = Callable[[Tensor, Samples], Tensor]
"""The mean loss of a model's outputs on samples."""
OwnLoss = Loss | Callable[[Tensor, Tensor], Tensor]
"""A user's own, which may be one of outputs and targets as torch's are: see `own_loss`."""

ROWS = 2**25
"""Numbers of the gradients of single samples that are held at once."""


def _flatten(tensors: Sequence[Tensor], device: str, channels_last: bool) -> Tensor:
    """Move tensors into one contiguous vector and make each a view of its part."""
    if not tensors:
        return torch.zeros(0, device=device)
    flat = _cat([t.detach() for t in tensors], channels_last)
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        if channels_last and tensor.dim() == 4:
            outputs, inputs, height, width = tensor.shape
            tensor.data = part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        else:
            tensor.data = part.view(tensor.shape)
    return flat


def _cat(tensors: Sequence[Tensor], channels_last: bool) -> Tensor:
    """Join tensors into one flat vector, a convolution's weights with their channels last where asked for."""
    if channels_last:
        tensors = [t.permute(0, 2, 3, 1) if t.dim() == 4 else t for t in tensors]
    return torch.cat([t.reshape(-1) for t in tensors])


def _slices(model: nn.Module) -> dict[str, slice]:
    """Return the part of the flat vector that each trained parameter is."""
    found: dict[str, slice] = {}
    start = 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found[name] = slice(start, start + parameter.numel())
            start += parameter.numel()
    return found


def shortened(rows: Tensor, clip: float) -> Tensor:
    """Return rows, each shortened to a norm; one that is not finite counts as nothing, as its norm bounds nothing."""
    norms = rows.norm(dim=1, keepdim=True)
    finite = torch.where(norms.isfinite(), rows, 0.0)
    factors: Tensor = clip / norms.nan_to_num(nan=clip, posinf=clip).clamp(min=clip)
    return finite * factors


class Learner:
    """A model with flat `params` and `buffers`, and the loss it is trained on.

    `channels_last` is the order of memory in which convolutions are fastest on a CPU, for models that do not mind: a
    `view` in a user's own model would.
    """

    def __init__(
        self,
        model: nn.Module,
        heads: Heads,
        normalise: Callable[[Tensor], Tensor] = lambda x: x,
        device: str = "cpu",
        loss: OwnLoss | None = None,
        channels_last: bool = False,
        problem: Problem | None = None,
    ) -> None:
        self.problem = problem or Classes()
        self.model = model.to(device)
        set_training(model)
        self.device = torch.device(device)
        self.heads = heads
        self.normalise = normalise
        self.seen: tuple[int, ...] = (0,)
        """The tasks whose outputs are open, where a sample's own task is not known."""
        self.closed: Tensor | None = None
        """What is added to logits to close outputs of classes that a client has not seen; None: no more are closed."""
        self.augment: Augment | None = None
        """What varies samples while clients learn from them."""
        self.own_unit: Callable[[Tensor], Tensor] = lambda values: values
        """Turns answers, and labels as they are learned, into the labels' own unit."""
        self._loss = None if loss is None else own_loss(loss, self)
        self._channels_last = channels_last
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if not self._parameters:
            raise UserError("the model has no parameters to train")
        # Integer buffers (a count of batches) have no mean; each question starts with the initial ones.
        self._integers = [(b, b.clone()) for b in model.buffers() if not b.is_floating_point()]
        learning = [b for module in model.modules() if module.training for b in module.buffers(recurse=False)]
        buffers = [b for b in dict.fromkeys(learning) if b.is_floating_point()]
        for name, tensors in (("parameters", self._parameters), ("floating-point buffers", buffers)):
            if len({t.dtype for t in tensors}) > 1:
                raise UserError(f"the model's {name} must all have one dtype")
        self.params = _flatten(self._parameters, device, channels_last)
        self.slices = _slices(model)
        """Where each parameter lies in the flat vector, by its name in the model's state."""
        # Batch-norm statistics: averaged like parameters, but no gradient and no inner product sees them.
        self.buffers = _flatten(buffers, device, channels_last)
        self._dense = DenseNet.of(model) if loss is None else None
        self._net = self.nets(self.params.unsqueeze(0)) if self._dense else []
        self._by_hand = type(self.problem).loss is Classes.loss
        self.batch_norm = any(isinstance(module, _BatchNorm) and module.training for module in model.modules())
        """Whether the model cannot learn from a sample alone."""

    def _input(self, x: Tensor) -> Tensor:
        """Turn raw samples into the model's inputs, in its own precision."""
        x = self.normalise(x).to(self.params.dtype)
        if x.dim() != 4:
            return x
        return x.contiguous(memory_format=torch.channels_last if self._channels_last else torch.contiguous_format)

    def _training(self, mode: bool) -> None:
        """Switch the model between learning and answering; a walk through all its modules, so only where it must be."""
        if self.model.training != mode:
            set_training(self.model, mode)

    def load(self, params: Tensor, buffers: Tensor) -> None:
        """Take over a global model."""
        self.params.copy_(params)
        self.buffers.copy_(buffers)
        for now, initial in self._integers:
            now.copy_(initial)

    def check(self, samples: Samples, outputs: int) -> None:
        """Refuse a model that cannot answer for these samples with so many outputs."""
        self.sample_shape, self.sample_dtype = tuple(samples.x.shape[1:]), samples.x.dtype
        try:
            shape = tuple(self.outputs(samples).shape)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(f"the model cannot take samples of shape {tuple(samples.x.shape[1:])}: {reason}") from None
        wanted = self.problem.answers(outputs, tuple(samples.y.shape[1:]))
        if self._loss is None and shape != (len(samples), *wanted):
            there = f"there are {outputs} classes" if wanted == (outputs,) and self._by_hand else f"expected {wanted}"
            raise UserError(f"the model returns {shape[1:]} outputs per sample; {there}")

    def loss(self, outputs: Tensor, samples: Samples) -> Tensor:
        """Return the mean loss of outputs for samples: the problem's over the open heads, or the user's own."""
        if self._loss is not None:
            return self._loss(outputs, samples)
        return self.problem.loss(self.masked(outputs, samples.task), samples.y)

    def masked(self, outputs: Tensor, tasks: Tensor) -> Tensor:
        """Return outputs with closed ones at minus infinity."""
        masked = self.heads.mask(outputs, tasks, self.seen)
        return masked if self.closed is None else masked + self.closed

    def value_and_grad(self, samples: Samples, loss: Loss | None = None) -> tuple[float, Tensor]:
        """Return the mean loss (or another one) on samples and its gradient as a new flat vector."""
        here = samples.to(self.device)
        if self._dense is not None and loss is None:
            values, gradients = self.values_and_grads(self._net, here, [self.closed])
            return values[0], gradients[0]
        self._training(True)
        try:
            outputs = self.model(self._input(here.x))
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise UserError(
                f"batch norm cannot learn from a mini-batch of {len(samples)} on maps this small; "
                "use norm = 'group', another batch size or larger images"
            ) from None
        value = (loss or self.loss)(outputs, here)
        return value.item(), self._gradient(value)

    def stacks(self, samples: int | None = None) -> bool:
        """Say whether gradients of several clients can be computed together; with the same bits for so many samples."""
        return self._dense is not None and (samples is None or self._dense.stacks(samples))

    def nets(self, rows: Tensor) -> Nets:
        """Return rows of parameters, one client's each, as `values_and_grads` takes them; they stay where they are."""
        assert self._dense is not None
        return self._dense.nets(rows.numpy())

    def values_and_grads(
        self, nets: Nets, samples: Samples, closed: Sequence[Tensor | None]
    ) -> tuple[list[float], Tensor]:
        """Return what `value_and_grad` does for several clients, a row each: their parameters and closed outputs.

        Their mini-batches are as large as each other and come one after the other.
        """
        assert self._dense is not None
        x = self._input(samples.x).numpy()
        return self._dense.values_and_grads(
            nets, x.reshape(len(closed), -1, *x.shape[1:]), lambda outputs: self._slopes_at(outputs, samples, closed)
        )

    def _slopes_at(
        self, outputs: Array, samples: Samples, closed: Sequence[Tensor | None]
    ) -> tuple[list[float], Array]:
        """Return the mean losses of several clients' outputs, (clients, outputs, n), and their slopes."""
        if self._by_hand:
            self._mask(outputs, samples, closed)
            return cross_entropy_slopes(outputs, samples.y.numpy())
        slopes, batches = [], samples.split(len(samples) // len(closed))
        for own, batch, shut in zip(torch.from_numpy(outputs).mT, batches, closed, strict=True):
            self.closed = shut
            slopes.append(self._slope(own.contiguous(), batch))
        return [value for value, _ in slopes], torch.stack([slope for _, slope in slopes]).mT.contiguous().numpy()

    def _mask(self, outputs: Array, samples: Samples, closed: Sequence[Tensor | None]) -> None:
        """Put closed ones of several clients' outputs at minus infinity: what `masked` does, in place."""
        if self.heads.closes(self.seen):
            shift = self.heads.shift(samples.task, self.seen).numpy()
            outputs += shift.reshape(len(closed), -1, outputs.shape[1]).transpose(0, 2, 1)
        for own, shut in zip(outputs, closed, strict=True):
            if shut is not None:
                own += shut.numpy()[:, None]

    def sample_gradients(self, samples: Samples, loss: Loss | None = None) -> Iterator[Tensor]:
        """Yield the samples' own gradients of the loss, one per row, as many at once as fit into memory.

        The loss must be a mean over samples: then what its slope at one output is, pulled back through the model, is
        that sample's gradient.
        """
        here = samples.to(self.device)
        x = self._input(here.x)
        self._training(True)
        try:
            with torch.no_grad():
                outputs = self.model(x)
            size = max(1, ROWS // self.params.numel())
            slopes = self._slopes(outputs, here, loss)
            for some, slope in zip(x.split(size), slopes.split(size), strict=True):
                yield self._pulled_back(some, slope)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise UserError(f"the gradients of single samples cannot be had of this model: {reason}") from None

    def clipped_sum(self, samples: Samples, clip: float, loss: Loss | None = None) -> Tensor:
        """Return the sum of the samples' own gradients, each shortened to a norm; what is not finite is left out."""
        if self._dense is not None:
            here = samples.to(self.device)
            outputs, inputs = self._dense.outputs(self._input(here.x))
            return self._dense.clipped_sum(self._slopes(outputs, here, loss), inputs, clip)
        total = torch.zeros_like(self.params)
        for rows in self.sample_gradients(samples, loss):
            total += shortened(rows, clip).sum(0)
        return total

    def clipped_square_sum(self, samples: Samples, clip: float) -> Tensor:
        """Return the sum of the squares of the samples' own gradients, each shortened to a norm before."""
        total = torch.zeros_like(self.params)
        for rows in self.sample_gradients(samples):
            total += shortened(rows, clip).square().sum(0)
        return total

    def _slope(self, outputs: Tensor, here: Samples) -> tuple[float, Tensor]:
        """Return the mean loss of outputs and its slope at them."""
        free = outputs.detach().requires_grad_()
        value = self.loss(free, here)
        return value.item(), torch.autograd.grad(value, free)[0]

    def _slopes(self, outputs: Tensor, here: Samples, loss: Loss | None) -> Tensor:
        """Return the slope of each sample's own loss at its outputs."""
        free = outputs.detach().requires_grad_()
        return torch.autograd.grad(len(here) * (loss or self.loss)(free, here), free)[0]

    def _pulled_back(self, x: Tensor, slopes: Tensor) -> Tensor:
        named = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

        def one(sample: Tensor, slope: Tensor) -> dict[str, Tensor]:
            def answer(params: dict[str, Tensor]) -> Tensor:
                output: Tensor = functional_call(self.model, params, (sample.unsqueeze(0),))
                return output

            pulled: dict[str, Tensor] = vjp(answer, named)[1](slope.unsqueeze(0))[0]
            return pulled

        grads = list(vmap(one)(x, slopes).values())
        if self._channels_last:
            grads = [g.permute(0, 1, 3, 4, 2) if g.dim() == 5 else g for g in grads]
        return torch.cat([g.reshape(len(x), -1) for g in grads], dim=1)

    def mean_squared_gradient(self, samples: Samples) -> Tensor:
        """Return the mean over samples of each one's squared gradient, with batch-norm statistics as they are."""
        self._training(False)
        total = torch.zeros_like(self.params)
        for one in samples.to(self.device).split(1):
            total += self._gradient(self.loss(self.model(self._input(one.x)), one)) ** 2
        return total / len(samples)

    def _gradient(self, loss: Tensor) -> Tensor:
        grads = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        return _cat(grads, self._channels_last)

    @torch.no_grad()
    def outputs(self, samples: Samples, batch: int = 500) -> Tensor:
        """Return the model's outputs, unmasked, with batch-norm statistics as they are."""
        self._training(False)
        return torch.cat([self.model(self._input(piece.x.to(self.device))) for piece in samples.split(batch)])

    def probabilities(self, samples: Samples) -> Tensor:
        """Return the predicted probabilities, closed heads at zero."""
        here = samples.to(self.device)
        return self.masked(self.outputs(here), here.task).softmax(1)

    def losses(self, scores: Tensor, samples: Samples) -> Tensor:
        """Return each sample's own loss for scores that a method gives: the problem's, or the user's."""
        here = samples.to(scores.device)
        if self._loss is not None:
            each = zip(scores.split(1), here.split(1), strict=True)
            return torch.stack([self.loss(score, one).detach() for score, one in each]).cpu()
        return self.problem.losses(self.masked(scores, here.task), here.y).cpu()

    def tested(self, scores: Tensor, samples: Samples) -> Tensor:
        """Return what each sample adds to the problem's sums, (n, 2 width): knowing its task, and not knowing it."""
        here = samples.to(scores.device)
        readings = self.heads.readings(scores, here.task, self.seen)
        y = self.own_unit(here.y)
        return torch.cat([self.problem.sums(self.own_unit(reading), y) for reading in readings], 1).cpu()

    def features(self, samples: Samples) -> Tensor:
        """Return what the model's last dense layer takes in, one row per sample."""
        return self.outputs_and_features(samples)[1]

    def outputs_and_features(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """Return the model's outputs, and what its last dense layer takes in for them."""
        seen: list[Tensor] = []
        with self._last_dense().register_forward_pre_hook(lambda _, taken: seen.append(taken[0])):
            outputs = self.outputs(samples)
        return outputs, torch.cat(seen)

    def _last_dense(self) -> nn.Linear:
        model = self.model.get_submodule(HEAD) if isinstance(self.model, Joined) else self.model
        dense = [module for module in model.modules() if isinstance(module, nn.Linear)]
        if not dense:
            raise UserError("this method needs features: the model must end in an nn.Linear layer")
        return dense[-1]

    def inputs(self, x: Tensor) -> Tensor:
        """Return raw samples as the model's inputs, with their gradient, for methods that run it themselves."""
        return self._input(x.to(self.device))
