"""What a problem is, and how its sums over samples become a score.

Every client tests on its own and sends nothing but sums. So a score is a function of sums over samples: what it gives
for the sum over all clients is exactly what it would give for all their samples at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from cflag import registry
from cflag.errors import DataError, UserError
from cflag.problems.score import Score

if TYPE_CHECKING:
    from torch import Tensor

Table = NDArray[np.float64]


class Problem(ABC):
    """What labels are, what a model answers, its loss, and its scores, the first of which is the default.

    A problem is stateless. Where it is given `outputs` of a model, closed ones are at minus infinity: those of other
    tasks, where tasks have outputs of their own. Samples are always the first dimension.
    """

    scores: ClassVar[tuple[Score, ...]]
    splits: ClassVar[bool] = False
    """Whether tasks may have outputs of their own, as the scenarios `task` and `class` give them."""
    one_of_many: ClassVar[bool] = False
    """Whether outputs compete by a softmax, so that a closed one, at minus infinity, is out of it."""
    whole: ClassVar[bool] = True
    """Whether its sums are counts, whole numbers."""

    @abstractmethod
    def labels(self, y: Tensor, where: str) -> Tensor:
        """Return labels in the type that the loss takes; refuse what cannot be labels, with a `DataError`."""

    @abstractmethod
    def outputs(self, y: Sequence[Tensor]) -> int:
        """Return how many outputs a model needs for labels like these: of the train and of the test half."""

    def check_range(self, y: Tensor, outputs: int, where: str) -> None:  # noqa: B027 (all may be in order)
        """Refuse labels that so many outputs cannot answer."""

    def answers(self, outputs: int, label: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a model's answer to one sample whose label has this shape."""
        return (outputs,)

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return each sample's own loss, (n,)."""

    def pair(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and labels as torch's own losses take them."""
        return outputs, y

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss over samples."""
        return self.losses(outputs, y).mean()

    @abstractmethod
    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return what each sample adds to the sums that scores are made of, (n, width)."""

    @abstractmethod
    def width(self, outputs: int) -> int:
        """Return how many sums there are."""

    @abstractmethod
    def score(self, name: str, sums: Table, samples: Table) -> Table:
        """Return one of the scores from sums over samples, (..., width), and how many there were; NaN for none."""

    def possible(self, sums: Table, samples: Table) -> bool:
        """Whether samples, so many, can have these sums: those of other machines may be anything."""
        return bool((sums >= 0).all())

    def belongs(self, y: Tensor, classes: Sequence[int]) -> NDArray[np.bool_]:
        """Return which samples are of a task with these outputs, where samples do not say so themselves: here all."""
        return np.ones(len(y), np.bool_)

    def groups(self, y: Tensor, train: Tensor) -> NDArray[np.int64]:
        """Return a number for each label: partitions deal samples of one group like those of a class.

        `train` are the labels of the train half, so that both halves have the same groups.
        """
        return np.zeros(len(y), np.int64)


@dataclass(frozen=True)
class Scoring:
    """Reads tests: a problem, and which of its scores counts."""

    problem: Problem
    score: Score

    def table(self, counts: Tensor, by_task: bool, score: Score | None = None) -> Table:
        """Return the score of each row of sums (see `Counts`) with samples' tasks known or not; NaN for none."""
        raw = counts.numpy().astype(np.float64)
        if not raw[..., -1].any():  # where nobody tested, nobody said how many sums there are
            return np.full(raw.shape[:-1], np.nan)
        width = (raw.shape[-1] - 1) // 2
        sums, samples = (raw[..., :width] if by_task else raw[..., width : 2 * width]), raw[..., -1]
        with np.errstate(divide="ignore", invalid="ignore"):
            found = self.problem.score((score or self.score).name, sums, samples)
        return np.where((samples > 0) & np.isfinite(found), found, np.nan)

    def values(self, counts: Tensor, by_task: bool, score: Score | None = None) -> list[float | None]:
        """Return the same for one row of sums for each task, None for none."""
        return [None if np.isnan(v) else float(v) for v in self.table(counts, by_task, score)]


def find(name: str) -> Problem:
    """Return the problem that is registered under a name."""
    found: Problem = registry.get("problem", name)()
    return found


def scoring(problem: str, score: str = "") -> Scoring:
    """Return a problem by name with one of its scores; by default its first."""
    found = find(problem)
    if not score:
        return Scoring(found, found.scores[0])
    known = {each.name: each for each in found.scores}
    if score not in known:
        raise UserError(f"score = '{score}': problem '{problem}' has {', '.join(known)}")
    return Scoring(found, known[score])


def takes(problem: Problem, names: Sequence[str]) -> bool:
    """Whether a problem is one of these, or derives from one of them."""
    return any(isinstance(problem, registry.get("problem", name)) for name in names)


def whole(values: Tensor, where: str, hint: str = "") -> Tensor:
    """Return labels and the like as whole numbers; floating-point ones are taken if they are whole, else refused."""
    if values.is_complex():
        raise DataError(f"{where} are complex numbers; give real ones")
    if values.is_floating_point():
        wrong = (values != values.round()).flatten().nonzero()  # so is NaN
        if len(wrong):
            place = int(wrong[0])
            raise DataError(f"{where}: {values.flatten()[place]:g} at place {place} is not a whole number{hint}")
    return values.long()


def whole_classes(y: Tensor, where: str) -> Tensor:
    """Return labels as the numbers of classes."""
    return whole(y, f"{where} labels", ", so no class; for numbers to predict, set problem = 'regression'")


def ratio(part: Table, whole: Table) -> Table:
    """Return parts of wholes; NaN where there is none."""
    found: Table = np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=whole > 0)
    return found
