"""One thread per process, for numpy's products as for torch's: more would change the order of sums, and be slower."""

from __future__ import annotations

import multiprocessing as mp

import torch
from threadpoolctl import threadpool_info, threadpool_limits

from cflag.process import one_thread, use_one_thread


def threads() -> tuple[int, int]:
    """Return how many threads torch has, and at most numpy's library."""
    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return torch.get_num_threads(), max(pools)


def counted(found: mp.Queue[tuple[int, int]]) -> None:
    torch.set_num_threads(2)
    with threadpool_limits(2, user_api="blas"):
        found.put(threads())
        with one_thread():
            found.put(threads())
        found.put(threads())
        use_one_thread()
        found.put(threads())


def test_a_run_computes_on_one_thread_and_gives_the_others_back() -> None:
    found: mp.Queue[tuple[int, int]] = mp.get_context("spawn").Queue()
    process = mp.get_context("spawn").Process(target=counted, args=(found,))
    process.start()
    assert [found.get(timeout=60) for _ in range(4)] == [(2, 2), (1, 1), (2, 2), (1, 1)]
    process.join()
