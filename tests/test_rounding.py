"""Shares as whole numbers of samples: sums, bounds, and the even split in the limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cflag.config import load_config
from cflag.data.benchmark import Benchmark
from cflag.data.load import load_source
from cflag.data.options import BenchmarkOptions
from cflag.data.partitions.rounding import rounded
from cflag.data.source import Source

classes = st.lists(st.integers(0, 60), min_size=1, max_size=8)


def drawn(counts: list[int], clients: int, zeta: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(clients, zeta), size=len(counts))


@given(classes, st.integers(1, 60), st.sampled_from([0.1, 1.0, 10.0, 1e5]), st.integers(0, 9))
@settings(deadline=None, max_examples=150)
def test_rows_sum_up_and_every_entry_is_within_one_of_its_share(
    counts: list[int], clients: int, zeta: float, seed: int
) -> None:
    shares = drawn(counts, clients, zeta, seed)
    dealt = rounded(np.array(counts), shares)
    assert dealt.sum(1).tolist() == counts
    assert (dealt >= 0).all()
    assert np.abs(dealt - np.array(counts)[:, None] * shares).max() <= 1 + 1e-6


@given(classes, st.integers(1, 60), st.integers(0, 9))
@settings(deadline=None, max_examples=100)
def test_large_zeta_is_the_even_split_of_each_class_and_in_all(counts: list[int], clients: int, seed: int) -> None:
    dealt = rounded(np.array(counts), drawn(counts, clients, 1e9, seed))
    assert np.ptp(dealt, axis=1).max() <= 1
    assert np.ptp(dealt.sum(0)) <= 1


@given(classes, st.integers(1, 40), st.sampled_from([1.0, 10.0, 1e5]), st.integers(0, 9))
@settings(deadline=None, max_examples=150)
def test_a_clients_total_is_within_one_of_its_total_share(
    counts: list[int], clients: int, zeta: float, seed: int
) -> None:
    shares = drawn(counts, clients, zeta, seed)
    total = (np.array(counts)[:, None] * shares).sum(0)
    assert np.abs(rounded(np.array(counts), shares).sum(0) - total).max() <= 1 + 1e-6


def test_remainders_are_carried_from_class_to_class() -> None:
    # Three classes of one sample each: each class's largest share is client 0's, and yet everyone gets one.
    shares = np.array([[0.34, 0.33, 0.33]] * 3)
    assert rounded(np.array([1, 1, 1]), shares).sum(0).tolist() == [1, 1, 1]


def test_who_has_no_share_gets_nothing() -> None:
    shares = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    dealt = rounded(np.array([3, 3]), shares)
    assert dealt[0, 2] == 0
    assert dealt[1, 0] == 0
    assert dealt.sum(0).tolist() in ([2, 3, 1], [1, 3, 2], [2, 2, 2])


@pytest.mark.parametrize("clients", [20, 40, 72, 200])
def test_digits_have_samples_for_many_clients(clients: int) -> None:
    benchmark = Benchmark(load_source("digits"), load_config("digits", clients=clients, zeta=1e5))
    for task in range(5):
        sizes = [benchmark.size(c, task) for c in range(clients)]
        tests = [benchmark.test_size(c, task) for c in range(clients)]
        assert max(sizes) - min(sizes) <= 2  # one for rounding, one for the draw, which is even to a third of a percent
        assert min(sizes) >= 1
        assert min(tests) >= 1 or sum(tests) < clients
        assert sum(tests) - sum(map(bool, tests)) == max(0, sum(tests) - clients)


def test_twenty_clients_of_few_test_samples_are_all_tested() -> None:
    y = torch.arange(4).repeat_interleave(6)  # six test samples a class, fewer than clients
    source = Source.from_tensors((torch.randn(24 * 20, 2), y.repeat(20)), (torch.randn(24, 2), y))
    benchmark = Benchmark(source, BenchmarkOptions(tasks=1, clients=20))
    assert {benchmark.test_size(c, 0) for c in range(20)} <= {1, 2}
