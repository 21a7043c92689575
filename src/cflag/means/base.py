"""What every mean can do, the settings they share, and the frame of those that must see all answers at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from cflag.conversation import Answer, Mean, Value
from cflag.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 2**20
"""Numbers, over all clients, that coordinate-wise work takes in hand at a time."""


@dataclass(frozen=True)
class MeanOptions:
    """How answers become one, and which of them are not believed; by default the weighted mean of all of them."""

    kind: str = "mean"
    liars: int = 1
    """How many of the clients asked may answer anything; of no effect on `mean`."""
    trim: float = 0.2
    """Of `trimmed`: the share of answers that is cut off at either end, at least `liars`."""
    clip: float = 1.0
    """Of `clipped`: how long an answer may be, in median lengths."""
    outlier: float = 0.0
    """A client is refused, by name, where a tensor of its answer is longer than this many median lengths; 0 is off."""
    max_share: float = 1.0
    """The largest weight p_i that a client can have, however many samples it claims."""
    max_claim: float = 1000.0
    """With `flower`: a client that claims more samples of a task than this many times the median is refused."""

    @property
    def plain(self) -> bool:
        """Whether all answers count, with the weights that their samples give them."""
        return self.kind == "mean" and not self.outlier and self.max_share == 1

    def check(self, table: str) -> None:
        """Refuse numbers that cannot work."""
        if self.liars < 0:
            raise UserError(f"{table}.liars = {self.liars} must not be negative")
        if not 0 <= self.trim < 0.5:
            raise UserError(f"{table}.trim = {self.trim} must be at least 0 and below 0.5: it is cut off at both ends")
        if self.clip <= 0:
            raise UserError(f"{table}.clip = {self.clip} must be positive")
        if self.outlier and self.outlier <= 1:
            raise UserError(f"{table}.outlier = {self.outlier} must be above 1, or 0 for off")
        if not 0 < self.max_share <= 1:
            raise UserError(f"{table}.max_share = {self.max_share} must be above 0 and at most 1")
        if self.max_claim <= 1:
            raise UserError(f"{table}.max_claim = {self.max_claim} must be above 1")

    def check_run(self, kind: type[AnswerMean], clients: int, secure: bool, sums: str) -> None:
        """Refuse a mean that a run cannot have; `sums` says what its method needs sums over clients for, if it does."""
        if secure and (kind.needs_each or self.outlier or self.max_share < 1):
            what = f"kind = '{self.kind}'" if kind.needs_each else "outlier" if self.outlier else "max_share"
            raise UserError(f"mean.{what} needs single answers, which secure = true hides: leave one of them out")
        if kind.needs_each and sums:
            raise UserError(f"mean.kind = '{self.kind}' gives no sums over clients; the method needs one for {sums}")
        if clients < kind.least(self):
            raise UserError(
                f"mean.kind = '{self.kind}' with mean.liars = {self.liars} needs at least {kind.least(self)} clients "
                f"in a round, not {clients}"
            )


PLAIN = MeanOptions()


class AnswerMean(ABC):
    """Takes in the answers to one question, in the order of the clients' numbers, and makes one of them.

    `ratios` are the method's (`Method.ratios`): parts of an answer that are weighted by another part of it.
    """

    needs_each: ClassVar[bool] = True
    """Whether it must see single answers; only a mean that does not goes together with secure aggregation."""

    def __init__(self, options: MeanOptions = PLAIN, ratios: Mapping[str, str] | None = None) -> None:
        self.options = options
        self.ratios = ratios or {}

    @classmethod
    def least(cls, options: MeanOptions) -> int:
        """Return how many answers it takes for the assumed liars to be outvoted."""
        return 1

    @abstractmethod
    def add(self, answer: Answer, weight: float, number: int) -> None:
        """Take in a client's answer with its weight p_i; the answer must stay as it is until the result is there."""

    @abstractmethod
    def result(self) -> Mean:
        """Return what the answers come to; the weights add up to one."""


class RobustMean(AnswerMean):
    """Holds all answers, and combines each of their parts by itself: a kind says in `combine` how.

    A part that others are weighted by (`ratios`: C-FLAG-SGD sends f m and f, and divides the mean of one by that of the
    other) is taken off first: what is combined are the m, with weights p_i f_i. A client with f ≤ 0 has no say in m.
    """

    def __init__(self, options: MeanOptions = PLAIN, ratios: Mapping[str, str] | None = None) -> None:
        super().__init__(options, ratios)
        self.answers: list[Answer] = []
        self.weights: list[float] = []

    @classmethod
    def least(cls, options: MeanOptions) -> int:
        """More than half must be honest."""
        return 2 * options.liars + 1

    @abstractmethod
    def combine(self, rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Return one vector for many, one of each client; leave them as they are. The weights add up to one."""

    def add(self, answer: Answer, weight: float, number: int) -> None:
        """Keep an answer."""
        self.answers.append(answer)
        self.weights.append(weight)

    def result(self) -> Mean:
        """Combine part after part."""
        first = self.answers[0]
        paired = {name: factor for name, factor in self.ratios.items() if name in first and factor in first}
        mean = Mean()
        for name in first:
            if name not in paired and name not in paired.values():
                mean[name] = self._combined([answer[name] for answer in self.answers], self.weights)
        for name, factor in paired.items():
            mean |= self._weighted(name, factor)
        return mean

    def _weighted(self, name: str, factor: str) -> Mean:
        """Return a part times its factor, and the factor, so that their ratio is the part's robust mean."""
        factors = [float(answer[factor]) for answer in self.answers]
        voters = [k for k, f in enumerate(factors) if f > 0]
        if len(voters) < self.least(self.options):  # liars could outvote those who have something to say
            return Mean({name: self.answers[0][name] * 0.0, factor: 0.0})
        most = self.options.clip * median([factors[k] for k in voters])
        bounded = [self.weights[k] * min(factors[k], most) for k in voters]
        total = sum(bounded)
        values = [self.answers[k][name] / factors[k] for k in voters]
        return Mean({name: self._combined(values, [w / total for w in bounded]) * total, factor: total})

    def _combined(self, values: Sequence[Value], weights: Sequence[float]) -> Value:
        first = values[0]
        if not isinstance(first, torch.Tensor):
            rows = [torch.tensor([value], dtype=torch.float64) for value in values]
            return float(self.combine(rows, weights))
        if not first.numel():
            return first.clone()
        rows = [value.reshape(-1) for value in values if isinstance(value, torch.Tensor)]
        return self.combine(rows, weights).to(first.dtype).reshape(first.shape)


def blocks(rows: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield a few coordinates of all rows at a time, (n, k): little more memory is needed than the rows have."""
    step = max(1, CHUNK // len(rows))
    for k in range(0, len(rows[0]), step):
        yield torch.stack([row[k : k + step] for row in rows])


def by_coordinate(rows: Sequence[Tensor], function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of coordinates, (n, k) → (k,), block by block."""
    return torch.cat([function(block) for block in blocks(rows)])


def median(values: Sequence[float]) -> float:
    """Return the lower median: with less than half of them liars', it is not above all honest values."""
    return sorted(values)[(len(values) - 1) // 2]
