"""ε so far. Everything that is released is a Gaussian mechanism, so the account is exact and a sum.

A mechanism that adds noise of z times the sensitivity is μ-Gaussian-DP with μ = 1/z; several of them, each chosen after
the last one's outcome, are together one with μ² = Σ μ_k² (Dong, Roth & Su, 2022). For one Gaussian mechanism δ is known
as a function of ε (Balle & Wang, 2018). Nothing is gained here from sampling: mini-batches are shuffled passes and
cohorts are drawn from a seed that is no secret, so each use of a record counts in full.
"""

from __future__ import annotations

from math import expm1, inf, isfinite, sqrt

import torch

from cflag.errors import CflagError
from cflag.privacy.options import PrivacyOptions


class BudgetError(CflagError):
    """The privacy budget does not allow another question; the run ends with what it has."""


def delta_at(epsilon: float, mu: float) -> float:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ): the least δ with which μ-Gaussian-DP is (ε, δ)-DP."""
    ends = torch.tensor([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu], dtype=torch.float64)
    first, second = torch.special.log_ndtr(ends).tolist()
    return float(torch.tensor(first, dtype=torch.float64).exp()) * -expm1(min(0.0, epsilon + second - first))


def epsilon_at(delta: float, mu: float) -> float:
    """Return the least ε for a δ, from above to the last digits."""
    if mu == 0 or delta_at(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_at(high, mu) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle, mu) > delta else (low, middle)
    return high


class Spending:
    """μ² of a number of releases, as ε, and whether it is within the budget."""

    def __init__(self, options: PrivacyOptions) -> None:
        self.options = options
        self.each = 1 / options.noise**2
        """μ² of one release to the unit that can change it most."""
        self._known: dict[float, float] = {0.0: 0.0}

    def epsilon(self, spent: float) -> float:
        """Return ε for a sum of μ²; what is no number is no bound."""
        if not isfinite(spent):
            return inf
        if spent not in self._known:
            self._known[spent] = epsilon_at(self.options.delta, sqrt(spent))
        return self._known[spent]

    def require(self, spent: float, where: str) -> None:
        """Refuse what would bring ε above the budget."""
        budget = self.options.epsilon or inf
        if budget < inf and self.epsilon(spent) > budget:
            raise BudgetError(
                f"the privacy budget is spent: {where} would bring epsilon to {self.epsilon(spent):.4g}, "
                f"privacy.epsilon = {budget:g} (delta = {self.options.delta:g})"
            )
