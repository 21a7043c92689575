"""What a process of ours sets and measures about itself: cores, threads, memory, and when it ends."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

STARTER = "CFLAG_STARTER"
"""The environment variable with the id of the process that started this one."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(allowed_cores()) or os.cpu_count() or 1


def allowed_cores() -> set[int]:
    """Return which cores this process may use; empty where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def this_core() -> int | None:
    """Return the core that this process is on at present; None where the system does not say."""
    ask = _sched_getcpu()
    return None if ask is None else int(ask())


@cache
def _sched_getcpu() -> Any:
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)


def peak_mb() -> float:
    """Return the largest memory this process ever had, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)  # macOS counts bytes, others kB


def end_with_parent() -> None:
    """End this process when its parent ends, even in the middle of its work: nobody waits for the answer any more."""
    # The starter names itself where it can: it may be gone before this process is up.
    parent = int(os.environ.pop(STARTER, os.getppid()))  # and this process's own children have another parent

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()


def keep_freed_memory() -> None:
    """Let glibc keep what is freed: giving big buffers back and faulting them in again costs a third of a small step.

    Worker processes inherit it; other C libraries have no such switch and need none.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        trim_threshold, mmap_threshold = -1, -3  # the names these have in malloc.h
        # An older glibc accepts at most 32 MiB; setting only the first would turn off its own adaptation.
        if mallopt(mmap_threshold, 2**30) or mallopt(mmap_threshold, 2**25):
            mallopt(trim_threshold, 2**30)


def collect_rarely() -> None:
    """Let Python look for cycles of garbage once in a while only: with thousands of clients it would look all the time.

    What is there already, which a forked process shares with its parent, is not looked at again.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class _Later(ModuleType):
    """A module whose code has not run yet; asked for anything, it runs it and is a module like any other."""

    def __getattr__(self, name: str) -> Any:
        """Python asks here for what is not there: everything but the module's name and origin."""
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__path__ = list(spec.submodule_search_locations or ())
        spec.loader.exec_module(self)
        return getattr(self, name)


def import_later(name: str) -> None:
    """Let `import NAME` cost nothing until something of the package is used; not where there are threads.

    The standard library's `LazyLoader` runs the code as soon as an import statement looks at the module.
    """
    spec = None if name in sys.modules else find_spec(name)
    if spec is not None:
        module = sys.modules[name] = module_from_spec(spec)
        module.__class__ = _Later
        del module.__path__  # or what is inside would be imported before the package itself


def forks_can_learn() -> bool:
    """Whether a process forked from this one could compute gradients: one is, and tries.

    Some builds of torch start threads when a process first computes some, and refuse to in its forks from then on.
    """
    import torch

    pid = os.fork()
    if not pid:
        try:
            free = torch.ones(1, requires_grad=True)
            torch.autograd.grad(free.sum(), free)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def use_one_thread() -> None:
    """Compute on one thread from here on, in torch and in numpy's products: what every process beside others does."""
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1, user_api="blas")


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: more would change the order of sums, and worker processes use the cores better.

    Afterwards torch's random generator is as it was before.
    """
    import torch
    from threadpoolctl import threadpool_limits

    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, user_api="blas"), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
