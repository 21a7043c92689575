"""Confidence intervals over a few seeds."""

from __future__ import annotations

from math import gamma, inf, pi, sqrt, tan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflag.results.intervals import critical, interval, welch


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.7062), (2, 4.30265), (4, 2.77645), (9, 2.26216), (30, 2.04227), (120, 1.97993), (inf, 1.95996)],
)
def test_critical_values_are_those_of_the_textbooks(freedom: float, value: float) -> None:
    assert critical(freedom) == pytest.approx(value, abs=5e-5)


def test_with_one_and_two_degrees_there_are_formulas() -> None:
    """Cauchy's distribution has quantiles tan(π(p − ½)); with two degrees they are (2p − 1)/√(2p(1 − p))."""
    assert critical(1) == pytest.approx(tan(0.475 * pi), rel=1e-9)
    assert critical(2) == pytest.approx(0.95 / sqrt(2 * 0.975 * 0.025), rel=1e-9)


@given(st.floats(1.0, 1e4), st.floats(1.001, 10.0))
def test_more_degrees_make_intervals_shorter(freedom: float, factor: float) -> None:
    assert critical(freedom) > critical(freedom * factor) > critical(inf)


@given(st.floats(1.0, 50.0))
def test_between_whole_degrees_values_follow_the_density(freedom: float) -> None:
    """The mass outside ±t is 5 %: summed here another way, over u = 1/s from 0 to 1/t, by the midpoint rule."""
    t, strips = critical(freedom), 4000
    constant = gamma((freedom + 1) / 2) / gamma(freedom / 2) / sqrt(freedom * pi)
    middles = [(k + 0.5) / strips / t for k in range(strips)]
    tail = sum((1 + 1 / (freedom * u * u)) ** (-(freedom + 1) / 2) / (u * u) for u in middles) / strips / t
    assert 2 * constant * tail == pytest.approx(0.05, abs=1e-5)


def test_less_than_one_degree_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least one degree of freedom, not 0\.5"):
        critical(0.5)


def test_the_interval_of_a_mean() -> None:
    """By hand: 1, 2, 3 has the deviation 1 and the error 1/√3 = 0.57735; times 4.30265 that is 2.48414."""
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.48414), abs=1e-4)
    assert interval([7.0]) == (7.0, None)
    assert interval([5.0, 5.0]) == (5.0, 0.0)


def test_degrees_of_freedom_after_welch() -> None:
    """By hand, errors √3 and √(1/3) with two degrees each: (3 + 1/3)² / (9/2 + 1/18) = 100/41."""
    assert welch(sqrt(3), 2, sqrt(1 / 3), 2) == pytest.approx(100 / 41)
    assert welch(1.0, 2, 1.0, 2) == pytest.approx(4)
    assert welch(1.0, 2, 0.0, 9) == pytest.approx(2), "what is exact adds nothing"
    assert welch(0.0, 2, 0.0, 9) == 2
