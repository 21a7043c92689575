"""Making samples from a model alone, without data: the server's half of TARGET.

A generator and its noise are trained so that a *teacher*, the model, assigns what they make to wanted classes with
confidence, so that the teacher's batch-norm layers see the statistics they remember, and so that a *student* which
learned from the samples so far still disagrees with the teacher.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import nn

from cflag.data.samples import Samples
from cflag.learning.distillation import distillation
from cflag.learning.learner import Learner
from cflag.learning.optimizers import Adam
from cflag.learning.options import SynthesisOptions
from cflag.models.generator import NOISE, Generator
from cflag.models.trainable import set_training

if TYPE_CHECKING:
    from torch import Tensor

TEMPERATURE = 2.0
"""How soft the answers are from which the student learns."""

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Workshop:
    """Where the server makes samples: the teacher, a student of it, and what was made so far."""

    def __init__(self, learner: Learner, tasks: tuple[int, ...], options: SynthesisOptions) -> None:
        self.learner, self.heads, self.options = learner, learner.heads, options
        self.tasks = tasks
        self.old = self.heads.before(tasks)
        self.task_of = torch.tensor(tasks)[self.heads.own[list(tasks)].int().argmax(0)]
        self.student = fresh(learner.model)
        self.learn = Descent([p for p in self.student.parameters() if p.requires_grad], options.student_lr)
        self.parts: list[Samples] = []
        self.losses: list[dict[str, float]] = []

    def make(self) -> Samples:
        """Return all samples, in batches of at least `batch`; the student learns from each before the next."""
        classes, count = self.heads.outputs(self.tasks).nonzero().flatten(), self.options.samples
        labels = classes.repeat(-(-count // len(classes)))[:count][torch.randperm(count)]
        for y in labels.tensor_split(max(1, count // self.options.batch)):
            self.parts.append(self.batch(y))
            self.teach()
        return Samples.cat(self.parts)

    def batch(self, y: Tensor) -> Samples:
        """Train a new generator, and its noise, to make samples of these labels."""
        learner = self.learner
        generator = Generator(learner.sample_shape, unit=learner.sample_dtype == torch.uint8)
        # Faster on a CPU, as in the learner; torch's own types do not know this argument of a module.
        generator.to(learner.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        noise = torch.randn(len(y), NOISE).to(learner.device).requires_grad_()
        descend = Descent([noise, *generator.parameters()], self.options.generator_lr)
        learner.model.eval()
        self.student.eval()
        for _ in range(self.options.generator_steps):
            descend(self.total(**self.terms(generator(noise), y)))
        with torch.no_grad():
            made = Samples(stored(generator(noise), learner.sample_dtype).cpu(), y, self.task_of[y])
            self.losses.append({name: value.item() for name, value in self.terms(made.x, y).items()})
        return replace(made, logits=learner.outputs(made).cpu())

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return what the generator minds: wrong answers, unlikely statistics and (it likes it) disagreement."""
        inputs = self.learner.inputs(x)
        outputs, gap = outputs_and_gap(self.learner.model, inputs)
        teacher, student = (self.heads.mask(o, self.task_of[y], self.tasks) for o in (outputs, self.student(inputs)))
        wrong = torch.nn.functional.cross_entropy(teacher, y.to(teacher.device))
        return {"classification": wrong, "bn": gap, "disagreement": disagreement(teacher, student)}

    def total(self, classification: Tensor, bn: Tensor, disagreement: Tensor) -> Tensor:
        """Return the generator's loss."""
        return classification + self.options.bn * bn - self.options.adversarial * disagreement

    def teach(self) -> None:
        """Let the student learn from everything made so far what the teacher says about it."""
        pool = Samples.cat(self.parts)
        set_training(self.student)
        for _ in range(self.options.student_steps):
            some = pool[torch.randperm(len(pool))[: self.options.batch]].to(self.learner.device)
            assert some.logits is not None
            outputs = self.student(self.learner.inputs(some.x))
            self.learn(distillation(outputs, some.logits, self.old, TEMPERATURE))

    def accuracy(self, made: Samples) -> float:
        """Return how many samples the teacher gives the label they were made for."""
        assert made.logits is not None
        return float((self.heads.mask(made.logits, made.task, self.tasks).argmax(1) == made.y).float().mean())

    def logs(self) -> dict[str, float]:
        """Return the mean losses of the finished batches."""
        return {f"synthetic_{name}": fmean(row[name] for row in self.losses) for name in self.losses[0]}


class Descent:
    """Adam on a few tensors; torch.optim would be slow to import and leave gradients in the shared model."""

    def __init__(self, tensors: Sequence[Tensor], lr: float) -> None:
        self.tensors, self.lr = tensors, lr
        self.rules = [Adam() for _ in tensors]

    def __call__(self, loss: Tensor) -> None:
        """Take one step down."""
        gradients = torch.autograd.grad(loss, self.tensors, materialize_grads=True)
        with torch.no_grad():
            for tensor, rule, gradient in zip(self.tensors, self.rules, gradients, strict=True):
                tensor -= self.lr * rule(gradient)


def fresh(model: nn.Module) -> nn.Module:
    """Return a model of the same form that has learned nothing; drawn on the CPU, as all that is random.

    Frozen layers stay as they are, and so do parameters of a module that cannot reset them.
    """
    student = copy.deepcopy(model).cpu()
    for module in student.modules():
        trained = any(p.requires_grad for p in module.parameters(recurse=False))
        if trained and callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    return student.to(next(model.parameters()).device)


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return generated samples as the sources hold theirs: images, in [0, 1] so far, become bytes."""
    return (x * 255).round().to(dtype) if dtype == torch.uint8 else x.to(dtype)


def outputs_and_gap(model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return a model's outputs, and how far the batch's channel means and variances are from those it remembers.

    The gap is summed over batch-norm layers, Σ ‖mean − running mean‖ + ‖var − running var‖; zero without any.
    """
    gaps: list[Tensor] = []

    def compare(layer: nn.Module, taken: tuple[Tensor, ...]) -> None:
        variance, mean = torch.var_mean(taken[0], [d for d in range(taken[0].dim()) if d != 1])
        gaps.append((mean - layer.get_buffer("running_mean")).norm())
        gaps.append((variance - layer.get_buffer("running_var")).norm())

    with ExitStack() as hooks:
        for layer in model.modules():
            if isinstance(layer, BATCH_NORMS) and layer.track_running_stats:
                hooks.enter_context(layer.register_forward_pre_hook(compare))
        outputs: Tensor = model(inputs)
    return outputs, sum(gaps, outputs.new_zeros(()))


def disagreement(teacher: Tensor, student: Tensor) -> Tensor:
    """Return KL(teacher ‖ student) of masked logits, averaged; samples with another answer count as zero.

    Where the answers are already different there is nothing to gain: such a sample is beyond the boundary.
    """
    log_p, log_q = teacher.log_softmax(1), student.log_softmax(1)
    apart = log_p.exp() * (log_p - log_q).masked_fill(log_p.isneginf(), 0.0)  # closed outputs: 0 · (∞ − ∞)
    return (apart.sum(1) * (teacher.argmax(1) == student.argmax(1))).mean()
