"""The private side: a client's current data, memory, random streams and what it keeps between rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cflag.conversation import Cost, Own, RoundContext, loggable
from cflag.data.samples import Samples
from cflag.learning.drift import Watch
from cflag.learning.estimators import Components
from cflag.learning.gradient_table import GradientTable, Workspace
from cflag.learning.stack import Alone, Place
from cflag.memory.base import Memory
from cflag.rng import stream, torch_seed

if TYPE_CHECKING:
    from cflag.data.heads import Heads
    from cflag.learning.learner import Learner, Loss
    from cflag.privacy.shield import SampleLedger
    from cflag.problems.base import Problem

T = TypeVar("T")


class Client:
    """What a method sees of a client while it answers a question.

    `params` and `buffers` are set to the global model before every question: a method may move them freely. `start`
    is the global model x_t itself; leave it as it is. `state` holds tensors and JSON values that survive restarts;
    assign to change them.
    """

    def __init__(
        self, number: int, seed: int, learner: Learner, memory: Memory, workspace: Workspace | None = None
    ) -> None:
        self.number = number
        self.memory = memory
        self.state: dict[str, Any] = {}
        self.data: Samples
        self.withdrawn = 0
        """How many of the samples that this client was dealt must not be used any more."""
        self.start: Tensor
        self.context = RoundContext(0, -1, 0, 0)
        self.own: Own | None = None
        """Where this client is, where clients are not all in the same task."""
        self.watch: Watch | None = None
        """What notices drift, where nobody tells."""
        self.watched: Tensor | None = None
        """The losses of earlier rounds that `watch` still needs."""
        self.cost = Cost()
        self.logs: dict[str, float | str] = {}
        self._losses: list[tuple[str, float, int]] = []
        self.ledger: SampleLedger | None = None
        """Where a private run protects samples: how often each was used."""
        self._seed = seed
        self._shared = learner
        self.place: Place = Alone(learner)
        """Where it computes: with the process's model to itself, or beside other clients."""
        self._workspace = workspace or Workspace()
        self._scratch: dict[str, tuple[Any, Tensor]] = {}
        self._question = ""
        self._replay: np.random.Generator | None = None
        self._replays = 0

    @property
    def params(self) -> Tensor:
        """The local parameters x_{i,k}, flat; change them in place."""
        return self.place.params

    @params.setter
    def params(self, value: Tensor) -> None:
        if value is not self.place.params:  # `client.params -= step` ends here with the same tensor
            self.place.params.copy_(value)

    @property
    def _learner(self) -> Learner:
        """The process's one model, at this client's parameters."""
        return self.place.learner()

    @property
    def buffers(self) -> Tensor:
        """The local batch-norm statistics, flat (empty for a model without)."""
        return self._shared.buffers

    @property
    def slices(self) -> dict[str, slice]:
        """Where each trained parameter lies in `params`, by its name in the model's state."""
        return self._shared.slices

    @property
    def task(self) -> int:
        """The number of the current task, from 0."""
        return self.context.task if self.own is None else self.own.task

    @property
    def past(self) -> tuple[int, ...]:
        """The tasks that this client has left; where nobody tells, those of earlier rounds.

        Where samples pass by, there are none before its memory has taken some in.
        """
        if self.own is None:
            return tuple(range(self.context.task))
        return self.own.past if len(self.memory) or not self.own.streams else ()

    @property
    def told(self) -> bool:
        """Whether this client is told when a task begins and ends."""
        return self.own is None or self.own.told

    @property
    def pieces(self) -> int:
        """Into how many mini-batches samples that pass by once are cut, in order; 0: the method cuts and mixes them."""
        return 0 if self.own is None else self.own.pieces

    @property
    def recalls(self) -> bool:
        """Whether all who take part have a past: those who do in a mixed round are asked for theirs apart."""
        return bool(self.context.moment.left) and not self.context.moment.mixed

    @property
    def old(self) -> tuple[int, ...]:
        """The tasks, beside the current one, that a model from the past knows: left by anyone, or by this client.

        Where nobody tells, nobody knows which one is the current.
        """
        known = self.context.moment.left if self.own is None or self.own.open is None else self.own.past
        return tuple(task for task in known if task != self.task or not self.told)

    @property
    def share(self) -> float:
        """p_i: this client's part of all current samples."""
        return self.size / self.context.samples

    @property
    def size(self) -> int:
        """n_i: how many samples this client was dealt, its weight in means; one that is forgotten changes no weight."""
        return len(self.data) + self.withdrawn

    @property
    def peers(self) -> int:
        """N: how many clients take part in this round."""
        return self.context.clients

    def rng(self, purpose: str) -> np.random.Generator:
        """Return this client's random stream for a purpose in this round."""
        return stream(self._seed, purpose, self.number, self.context.task, self.context.round)

    def value_and_grad(self, samples: Samples, loss: Loss | None = None) -> tuple[float, Tensor]:
        """Return the mean loss (or another one) on samples and its flat gradient at `params`, counted as cost."""
        old = len(samples) - samples.of(self.task)
        if self.ledger is not None:
            self._spend(len(samples), old)
            return nan, self.ledger.gradient(self._learner, samples, loss)  # no loss: nothing of it may leave
        value, gradient = self.place.value_and_grad(samples, loss)
        self.note(value, len(samples), old)
        return value, gradient

    def note(self, loss: float, count: int, old: int = 0) -> None:
        """Enter a gradient on so many samples, and on so many old ones among them, into the account."""
        self._spend(count, old)
        self._losses.append(("memory_loss" if old == count else "loss", loss, count))

    def _spend(self, count: int, old: int) -> None:
        self.cost.memory += old
        self.cost.current += count - old

    def batches(self, size: int) -> Iterator[Samples]:
        """Yield mini-batches of the current samples, pass after pass, each in a new order."""
        return Components(self, size, "shuffled").batches()

    def replay(self, count: int) -> Samples | None:
        """Draw memory samples for a local step; each call of a round draws anew. None while the memory is empty."""
        if self._replay is None:
            self._replay = self.rng("replay")
        drawn, self._replays = self.memory.draw(self._replay, count), self._replays + 1
        return None if drawn is None else self.augmented(drawn, "replay", self._replays)

    def remembered(self, purpose: str, count: int = 0) -> Samples | None:
        """Draw memory samples that stay the same for a purpose within a round; None while the memory is empty."""
        drawn = self.memory.draw(self.rng(purpose), count)
        return None if drawn is None else self.augmented(drawn, purpose)

    def augmented(self, samples: Samples, purpose: str, draw: int = 0) -> Samples:
        """Return samples varied as `[augment]` says: the same way for the same purpose and draw within a round."""
        augment, here = self._shared.augment, self.context
        if augment is None:
            return samples
        rng = stream(self._seed, f"augment {purpose}", self.number, here.task, here.round, draw)
        return replace(samples, x=augment(samples.x, rng))

    def outputs(self, samples: Samples, params: Tensor | None = None, buffers: Tensor | None = None) -> Tensor:
        """Return the model's outputs on samples, or those of another model: a teacher."""
        if params is None:
            return self._learner.outputs(samples)
        own = self.params.clone(), self.buffers.clone()
        self.params.copy_(params)
        self.buffers.copy_(own[1] if buffers is None else buffers)
        outputs = self._learner.outputs(samples)
        self.params.copy_(own[0])
        self.buffers.copy_(own[1])
        return outputs

    @property
    def batch_norm(self) -> bool:
        """Whether the model has batch norm that learns, which a sample alone cannot teach."""
        return self._shared.batch_norm

    @property
    def problem(self) -> Problem:
        """What labels are, and the loss."""
        return self._shared.problem

    def features(self, samples: Samples) -> Tensor:
        """Return what the model's last dense layer takes in for these samples."""
        return self._learner.features(samples)

    @property
    def heads(self) -> Heads:
        """Which outputs belong to which task."""
        return self._shared.heads

    def own_loss(self, outputs: Tensor, samples: Samples) -> Tensor:
        """Return the problem's loss of samples of the current task over that task's own outputs.

        Where nobody tells the task, they are those of the classes among the current samples. A user's own loss has no
        heads to choose from.
        """
        own = self.heads.own[self.task] if self.told else self._present()
        own = own.to(outputs.device)
        return self._shared.problem.loss(outputs.masked_fill(~own, -torch.inf), samples.y)

    def _present(self) -> Tensor:
        """Return which outputs are those of the classes among the current samples; all where they have none."""
        present = torch.full((self.heads.own.shape[1],), not self.data.classified)
        if self.data.classified:
            present[self.data.y] = True
        return present

    def preview(self, predict: Callable[[Learner, Samples], Tensor]) -> None:
        """Test the global model on the current samples before they are learned; log the outcome, and a drift in it.

        Right answers are counted where samples have a single class.
        """
        scores = predict(self._learner, self.data)
        if self.data.classified:
            right = self._learner.tested(scores, self.data)[:, 0 if self.heads.by_task else 1]
            self.log(right=int(right.sum()), tested=len(right))
        if self.watch is not None:
            self.watched, place = self.watch.look(self.watched, self._learner.losses(scores, self.data))
            self.log(noticed=place is not None)

    def probabilities(self, samples: Samples) -> Tensor:
        """Return the model's predicted probability of each class, at `params`, closed heads at zero."""
        return self._learner.probabilities(samples)

    def mean_squared_gradient(self, samples: Samples) -> Tensor:
        """Return the mean of the samples' own squared gradients, counted like any other gradients."""
        self.cost.current += len(samples)
        if self.ledger is not None:
            return self.ledger.squared_gradient(self._learner, samples)
        return self._learner.mean_squared_gradient(samples)

    def log(self, **values: float | str) -> None:
        """Note something about this client for the metrics; no method's result may depend on it."""
        self.logs.update(loggable(values))

    def new_table(self, count: int) -> GradientTable:
        """Return a table for `count` gradients, in the precision that its bound allows."""
        return self._workspace.table(count, self.params)

    def compute(self, name: str, make: Callable[[], T]) -> T:
        """Make something that a later question of the same round will want, and try to keep it."""
        self._begin(name)
        made = make()
        if self._workspace.keep(self, made):
            self._scratch[name] = (made, self.buffers.clone())
        self.reseed(self._question)
        return made

    def recall(self, name: str, make: Callable[[], T]) -> T:
        """Return what `compute` made in this round, once; if it is gone, make it again with the same result.

        Batch-norm statistics are left as `compute` left them. Making it again is not counted: the algorithm asked for
        it once.
        """
        if name in self._scratch:
            made, buffers = self._scratch.pop(name)
            if not self._scratch:
                self._workspace.dropped(self)
            self.buffers.copy_(buffers)
        else:
            cost, losses = replace(self.cost), list(self._losses)
            self._begin(name, again=True)
            made = make()
            self.cost, self._losses = cost, losses
            if self.ledger is not None:
                self.ledger.again = False
        self.reseed(self._question)
        return made  # type: ignore[no-any-return]

    def _begin(self, name: str, again: bool = False) -> None:
        """Begin on something that may have to be made again, with the same result."""
        if self.ledger is not None:
            self.ledger.restart(name)
            self.ledger.again = again
        self.reseed(name)

    def kept(self) -> list[object]:
        """Return all that must survive a restart, so that a change can be told by identity."""
        return [self.memory.samples, self.watched, *self.state.keys(), *self.state.values()]

    def drop_scratch(self) -> None:
        """Drop what was kept for later questions: it will be made again."""
        self._scratch.clear()
        self._workspace.dropped(self)

    def begin_question(
        self, question: str, context: RoundContext, start: Tensor | None = None, own: Own | None = None
    ) -> None:
        """Start on a question at the global model, with a clean account and this question's own randomness."""
        self.start = self.params.clone() if start is None else start
        if context.when != self.context.when:
            self.drop_scratch()
        self.context, self.own = context, own
        self.cost, self.logs, self._losses, self._replay, self._replays = Cost(), {}, [], None, 0
        self._shared.seen = context.moment.seen
        self.place.close(self._closed())
        self._question = question
        if self.ledger is not None:
            self.ledger.begin(self.task, context.round)
        self.reseed(question)

    def tilt(self, shift: Tensor) -> None:
        """Add a number to each output, minus infinity to close it, wherever a loss looks until the question ends."""
        closed, shift = self._closed(), shift.to(self.params)
        self.place.close(shift if closed is None else closed + shift)

    def _closed(self) -> Tensor | None:
        """Return what closes the outputs that are not open for this client; None where all are."""
        return None if self.own is None or self.own.open is None else _closing(self.own.open, self.params)

    def end_question(self) -> None:
        """Close the account: log the mean loss on current and on memory samples."""
        for name in ("loss", "memory_loss"):
            seen = [(loss, n) for kind, loss, n in self._losses if kind == name]
            if seen:
                self.logs[name] = sum(loss * n for loss, n in seen) / sum(n for _, n in seen)

    def reseed(self, purpose: str) -> None:
        """Let dropout and the like, which draw from torch's own generator, begin anew.

        Each question does so by its name; a method that asks one twice in a round must tell the two apart.
        """
        if self.ledger is not None:
            self.ledger.turn_to(purpose)
        here = self.context
        seed = torch_seed(self._seed, purpose, self.number, here.task, here.round)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would note down a stack trace for CUDA each time
        if self.params.is_cuda:
            torch.cuda.manual_seed(seed)


def _closing(open_: Tensor, like: Tensor) -> Tensor:
    """Return what closes all other outputs when it is added to them."""
    return torch.zeros(open_.shape, dtype=like.dtype).masked_fill(~open_, -torch.inf).to(like.device)
