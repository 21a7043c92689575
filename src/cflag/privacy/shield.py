"""The client's side: what leaves is clipped, and where samples are protected it is noised before it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor

from cflag.conversation import Answer, Value
from cflag.data.samples import Samples
from cflag.errors import CflagError
from cflag.learning.learner import Learner, Loss
from cflag.privacy.accounting import Spending
from cflag.privacy.noise import Noise, digest
from cflag.privacy.options import PrivacyOptions
from cflag.privacy.rules import NOISED, NONNEGATIVE, RULES, WITHHELD, Part


class Shield:
    """What the clients of one process do about privacy; answers pass through it before anyone else sees them."""

    def __init__(self, options: PrivacyOptions, method: str, key: bytes) -> None:
        self.options = options
        self.questions = RULES[method]
        self.noise = Noise(key)

    @classmethod
    def of(cls, options: PrivacyOptions, method: str, key: bytes) -> Shield | None:
        """Return a shield where something is protected."""
        return cls(options, method, key) if options.on else None

    def answered(self, question: str, answer: Answer) -> Answer:
        """Return an answer as it may leave: as it is where its gradients were noised, else clipped part by part."""
        rules = self.questions.get(question)
        if rules is None or not set(answer) <= set(rules):
            raise CflagError(f"a private run has no rule for what '{question}' answers: {', '.join(answer)}")
        if self.options.unit == "sample":
            return answer
        kept = {name: value for name, value in answer.items() if rules[name] is not WITHHELD}
        return {
            name: clipped(value, self.options.clip) if hidden(rules[name]) else value for name, value in kept.items()
        }

    def ledger(self, number: int) -> SampleLedger | None:
        """Return the ledger of a client's samples, where they are protected."""
        return SampleLedger(self.options, self.noise, number) if self.options.unit == "sample" else None

    def share(self, question: str, answer: Answer, scale: float, *name: str | int) -> Answer:
        """Return a clipped answer with a client's own noise, `scale` times what one client can change by clip."""
        if self.options.unit != "client":
            return answer
        return noised(answer, self.questions[question], self.options, scale, self.noise, ("share", question, *name))

    def tested(self, counts: Tensor, *name: str | int) -> Tensor:
        """Return counts of right answers, rows of (right, right, samples), as they may leave."""
        if self.options.unit != "sample" or self.options.held_out == "public":
            return counts
        return noised_counts(counts, self.options.noise * sqrt(2), self.noise, *name)


class SampleLedger:
    """One client's samples: how often each was used, in all questions, rounds, tasks and replays; and their gradients.

    A sample is known by its task and its index there, which it keeps in the memory. What is nobody's secret has a
    negative index.
    """

    def __init__(self, options: PrivacyOptions, noise: Noise, number: int) -> None:
        self.options = options
        self.uses: dict[int, Tensor] = {}
        self.again = False
        """Whether something is made again that was made in this round: the same numbers, so no use."""
        self._spending = Spending(options)
        self._noise = noise
        self._number = number
        self._where: tuple[int, int] = (0, 0)
        self._purpose = ""
        self._calls: dict[str, int] = {}

    def begin(self, task: int, round_: int) -> None:
        """A question begins."""
        self._where, self._calls = (task, round_), {}

    def turn_to(self, purpose: str) -> None:
        """Noise is for another purpose from now on."""
        self._purpose = purpose

    def restart(self, purpose: str) -> None:
        """What is made for a purpose is made from its beginning."""
        self._calls.pop(purpose, None)

    def gradient(self, learner: Learner, samples: Samples, loss: Loss | None) -> Tensor:
        """Return the mean of the samples' gradients, each clipped, with noise on their sum."""
        self._count(samples)
        clip = self.options.clip
        return self._released(learner, samples, learner.clipped_sum(samples, clip, loss), clip)

    def squared_gradient(self, learner: Learner, samples: Samples) -> Tensor:
        """Return the mean of the samples' squared gradients: ‖g²‖ ≤ ‖g‖² ≤ clip², and no square is negative."""
        self._count(samples)
        clip = self.options.clip
        total = learner.clipped_square_sum(samples, clip)
        return self._released(learner, samples, total, clip**2).clamp_(min=0)

    def most(self) -> int:
        """Return how often the sample that was used most was used."""
        return max((int(uses.max()) for uses in self.uses.values() if len(uses)), default=0)

    def _released(self, learner: Learner, samples: Samples, total: Tensor, sensitivity: float) -> Tensor:
        assert samples.index is not None
        call = self._calls[self._purpose] = self._calls.get(self._purpose, -1) + 1
        name = (self._number, *self._where, self._purpose, call, digest(learner.params, samples.task, samples.index))
        noise = self._noise.like(total, "gradient", *name)
        return total.add_(noise, alpha=self.options.noise * sensitivity).div_(len(samples))

    def _count(self, samples: Samples) -> None:
        """Count one more use of each sample; stop before the budget is exceeded."""
        if samples.index is None:
            raise CflagError("a private run cannot tell whose samples these are, so it cannot count their uses")
        index = samples.index.cpu()
        for task in samples.of_task:
            mine = index[(samples.task.cpu() == task) & (index >= 0)]
            if len(mine.unique()) < len(mine):
                raise CflagError("a mini-batch holds a sample twice: its privacy cannot be accounted for")
            if len(mine) and not self.again:
                known = self.uses.get(task, torch.zeros(0, dtype=torch.long))
                grown = torch.zeros(max(len(known), int(mine.max()) + 1), dtype=torch.long)
                grown[: len(known)] = known
                grown[mine] += 1
                self.uses[task] = grown
        task, round_ = self._where
        where = f"client {self._number} in task {task + 1}, round {round_ + 1}"
        self._spending.require(self.most() * self._spending.each, where)


def hidden(part: Part) -> bool:
    """Whether a part must be noised."""
    return part in (NOISED, NONNEGATIVE)


def clipped(value: Value, clip: float) -> Value:
    """Return a tensor or a number shortened to a norm."""
    norm = float(value.norm()) if isinstance(value, Tensor) else abs(value)
    return value * (clip / norm) if norm > clip else value


def noised(
    answer: Mapping[str, Value],
    rules: Mapping[str, Part],
    options: PrivacyOptions,
    scale: float,
    noise: Noise,
    name: tuple[str | int, ...],
) -> dict[str, Value]:
    """Return parts with noise of z √K `scale` clip: each of the K parts has its own clip, all together √K of it."""
    parts = [key for key, v in answer.items() if hidden(rules[key]) and (not isinstance(v, Tensor) or v.numel())]
    deviation = options.noise * sqrt(len(parts)) * options.clip * scale
    released = dict(answer)
    for key in parts:
        value = torch.as_tensor(answer[key])
        made = value + deviation * noise.like(value, *name, key)
        released[key] = made if isinstance(answer[key], Tensor) else float(made)
    return released


def noised_counts(counts: Tensor, deviation: float, noise: Noise, *name: str | int) -> Tensor:
    """Return counts whose first two columns have noise, as whole numbers between none and all."""
    right, all_ = counts[..., :2].double(), counts[..., 2:]
    noisy = (right + deviation * noise.like(right, "test", *name)).round().long()
    return torch.cat([torch.minimum(noisy.clamp(min=0), all_), all_], dim=-1)
