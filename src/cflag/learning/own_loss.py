"""A loss of the user's own: of outputs and samples, or, as torch's losses are, of outputs and targets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from cflag.data.samples import Samples
from cflag.errors import UserError

if TYPE_CHECKING:
    from cflag.learning.learner import Learner, Loss

TARGETS = ("target", "targets", "labels", "y", "y_true")
"""What the second parameter of a loss of outputs and targets is called."""


def own_loss(loss: Callable[..., Tensor], learner: Learner) -> Loss:
    """Return a user's loss as one of outputs and samples.

    A module of `torch.nn`, a function of `torch.nn.functional`, and anything else whose second parameter is called
    `target`, `targets`, `labels` or `y` gets outputs with those of other heads closed, and labels.
    """
    if not callable(loss):
        raise UserError(
            f"loss = {loss!r}: give a function of (outputs, samples), or a loss such as nn.CrossEntropyLoss()"
        )
    if isinstance(loss, type):
        raise UserError(f"loss = {loss.__name__} is a class: give an object of it, {loss.__name__}()")
    if _second(loss) not in TARGETS:
        return loss
    _refuse(loss, learner)
    if isinstance(loss, nn.Module):
        loss = loss.to(learner.device)

    def of_targets(outputs: Tensor, samples: Samples) -> Tensor:
        masked = learner.masked(outputs, samples.task)
        return loss(*learner.problem.pair(masked, samples.y))

    return of_targets


def _second(loss: Callable[..., Any]) -> str:
    """Return the name of the second parameter; nothing where nobody can tell."""
    try:
        names = list(inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters)
    except (TypeError, ValueError):
        return ""
    return names[1] if len(names) > 1 else ""


def _refuse(loss: Callable[..., Tensor], learner: Learner) -> None:
    """Refuse losses that are no mean over samples, or that look at closed outputs."""
    name = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", "loss")
    if getattr(loss, "reduction", "mean") != "mean":
        raise UserError(f"loss = {name}: it must be a mean over samples: set reduction = 'mean'")
    if learner.heads.shared:
        return
    closes = f"loss = {name}: tasks have outputs of their own here, and it would look at closed ones, too"
    if getattr(loss, "label_smoothing", 0):
        raise UserError(f"{closes}; set label_smoothing = 0, or write it as a function of (outputs, samples)")
    if not learner.problem.one_of_many:
        raise UserError(f"{closes}; write it as a function of (outputs, samples)")
