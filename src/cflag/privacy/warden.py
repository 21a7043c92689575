"""The server's side: noise on means, the account of ε, and the budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from torch import Tensor

from cflag.conversation import Ask, Mean
from cflag.privacy.accounting import Spending
from cflag.privacy.noise import Noise, digest
from cflag.privacy.options import PrivacyOptions
from cflag.privacy.rules import NONNEGATIVE, RULES, Part
from cflag.privacy.shield import hidden, noised, noised_counts


class Warden:
    """Looks after a run's privacy: nothing is asked that the budget forbids, no mean is used before it is noised.

    Where samples are protected, clients add the noise, count their uses and refuse; the server hears the largest count.
    `shared_noise` says that clients add the noise to their answers together, as under secure aggregation.
    """

    def __init__(self, options: PrivacyOptions, method: str, key: bytes, shared_noise: bool = False) -> None:
        self.options = options
        self.questions = RULES[method]
        self.shared_noise = shared_noise
        self.spent: dict[int, float] = {}
        """μ² of each client."""
        self.tests = 0
        """How often held-out samples were counted with noise."""
        self._noise = Noise(key)
        self._spending = Spending(options)

    @classmethod
    def of(cls, options: PrivacyOptions, method: str, key: bytes, shared_noise: bool = False) -> Warden | None:
        """Return a warden where something is protected."""
        return cls(options, method, key, shared_noise) if options.on else None

    def epsilon(self) -> float:
        """Return ε so far, of whoever spent most; held-out samples are others than those that are learned from."""
        each, tests = max(self.spent.values(), default=0.0), self.tests * self._spending.each
        return self._spending.epsilon(each + tests if self.options.unit == "client" else max(each, tests))

    def before(self, question: str, where: tuple[int, int], numbers: Sequence[int]) -> None:
        """Refuse a question that would exceed the budget, for the client that it costs most."""
        reveals = any(hidden(part) for part in self.questions.get(question, {}).values())
        if self.options.unit == "client" and reveals:
            most = max((self.spent.get(number, 0.0) for number in numbers), default=0.0)
            self._require(most + self.tests * self._spending.each, where)

    def after(self, ask: Ask, mean: Mean, where: tuple[int, int], model: Tensor, sizes: Mapping[int, int]) -> Mean:
        """Return a mean as it may be used, and enter it; `sizes` are the samples of those whose answers are in it."""
        rules = self.questions[ask.question]
        if self.options.unit == "sample" or not any(hidden(rules[name]) for name in mean):
            return mean
        largest = max(sizes.values())
        for number, size in sizes.items():  # a smaller client moves the mean less than the noise is made for
            self.spent[number] = self.spent.get(number, 0.0) + (size / largest) ** 2 * self._spending.each
        if self.shared_noise:
            return _lawful(mean, rules)
        sent = [value for value in ask.sent.values() if isinstance(value, Tensor)]
        numbers = {name: value for name, value in ask.sent.items() if not isinstance(value, Tensor)}
        told = json.dumps([numbers, sorted(sizes.items())])
        name = ("mean", *where, ask.question, digest(model, *sent), told)
        made = noised(mean, rules, self.options, largest / sum(sizes.values()), self._noise, name)
        return _lawful(Mean(made), rules)

    def heard(self, uses: Mapping[int, int]) -> None:
        """Enter how often each client's most used sample was used."""
        for number, count in uses.items():
            self.spent[number] = max(self.spent.get(number, 0.0), count * self._spending.each)

    def before_test(self, where: tuple[int, int]) -> None:
        """Refuse a test of held-out samples that would exceed the budget."""
        if self.options.held_out == "noised":
            trained = max(self.spent.values(), default=0.0) if self.options.unit == "client" else 0.0
            self._require(trained + self.tests * self._spending.each, where)

    def tested(self, counts: Tensor, where: tuple[int, int], model: Tensor) -> Tensor:
        """Return counts of right answers as they may be used, and enter the test.

        Where clients are protected, all of them are one row, with noise for the one that has most samples.
        """
        if self.options.held_out == "public":
            return counts
        self.tests += 1
        if self.options.unit == "sample":  # clients have noised theirs
            return counts
        largest = sqrt(2) * float(counts[..., 2].double().square().sum(1).max().sqrt())
        total = counts.sum(0, keepdim=True)
        return noised_counts(total, self.options.noise * largest, self._noise, *where, digest(model))

    def kept(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {"spent": {str(number): value for number, value in self.spent.items()}, "tests": self.tests}

    def take_back(self, kept: Mapping[str, Any]) -> None:
        """Take back what `kept` returned."""
        self.spent = {int(number): value for number, value in kept.get("spent", {}).items()}
        self.tests = kept.get("tests", 0)

    def _require(self, spent: float, where: tuple[int, int]) -> None:
        self._spending.require(spent + self._spending.each, f"task {where[0] + 1}, round {where[1] + 1}")


def _lawful(mean: Mean, rules: Mapping[str, Part]) -> Mean:
    """Return a noised mean with zeros where noise made negative what cannot be."""
    bounded = {name: value.clamp(min=0) for name, value in mean.items() if rules[name] is NONNEGATIVE}
    return Mean({**mean, **bounded})
