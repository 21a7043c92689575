"""How sure a mean over a few seeds is: two-sided 95 % confidence intervals by Student's t."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from math import atan, cos, exp, lgamma, pi, pow, sqrt
from statistics import NormalDist, fmean, stdev

LEVEL = 0.95
"""The share of intervals that hold the true mean."""
STRIPS = 200
"""Into how many strips Simpson's rule cuts the density; the error is far below a printed digit."""


def interval(values: Collection[float]) -> tuple[float, float | None]:
    """Return the mean and the half-width of its interval, which a single value does not give."""
    error = standard_error(values)
    return fmean(values), None if error is None else critical(len(values) - 1) * error


def standard_error(values: Collection[float]) -> float | None:
    """Return the standard error of the mean; None for a single value."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None


@cache
def critical(freedom: float) -> float:
    """Return how many standard errors the half-width is, for 1 or more degrees of freedom, fractions among them."""
    if freedom < 1:
        raise ValueError(f"an interval needs at least one degree of freedom, not {freedom:g}")
    if freedom > 1e6:  # the normal distribution, to six digits
        return NormalDist().inv_cdf((1 + LEVEL) / 2)
    low, high = 1.0, 13.0  # 12.7 with one degree, 1.96 with infinitely many
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, freedom) < LEVEL else (low, middle)
    return high


def _share_within(t: float, freedom: float) -> float:
    """Return how much of Student's distribution lies within ±t: by s = √ν tan φ its density is a power of cos φ."""
    end = atan(t / sqrt(freedom))
    heights = [pow(cos(end * k / STRIPS), freedom - 1) for k in range(STRIPS + 1)]
    area = end / STRIPS / 3 * (heights[0] + 4 * sum(heights[1::2]) + 2 * sum(heights[2:-1:2]) + heights[-1])
    return 2 * area * exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)


def welch(error: float, freedom: float, other_error: float, other_freedom: float) -> float:
    """Return the degrees of freedom of a difference of two means with their standard errors, after Welch."""
    least = min(freedom, other_freedom)
    below = error**4 / freedom + other_error**4 / other_freedom
    return max(least, (error**2 + other_error**2) ** 2 / below) if below else least
