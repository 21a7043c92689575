"""What all tests share: one thread a process, nothing that only costs time, and no process left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from unittest import mock

import hypothesis
import pytest
import torch

from cflag import registry
from cflag.data.load import find_reader
from cflag.data.sources import digits
from cflag.data.sources.cifar import Cifar
from cflag.data.sources.tiny_imagenet import TinyImageNet
from tests.support import processes
from tests.support.datasets import put_reader

hypothesis.settings.register_profile("cflag", deadline=None)
hypothesis.settings.load_profile("cflag")
os.fsync = lambda fd: None  # waits for the disk, for the sake of a power cut; tests kill processes, not machines
digits._table = cache(digits._table)  # a text file, read by a thousand runs
processes.mark()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest, or at the end one core waits minutes for a fleet that began last.

    xdist gives each process a part of the list, and what is left of it to whoever is done. All but one of them begin
    with fleets, which wait more than they compute; the last has the rest of the processors.
    """
    items.sort(key=lambda item: -_marks(item))
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    long = [item for item in items if _marks(item)]
    short = iter(items[len(long) :])
    left, dealt = len(items), list[pytest.Item]()
    begin = max(1, processes - 1)
    for k in range(processes):
        size = left // (processes - k)
        own = long[k::begin] if k < begin else []
        dealt += [*own, *islice(short, max(0, size - len(own)))]
        left -= size
    items[:] = [*dealt, *short]


def _marks(item: pytest.Item) -> int:
    """Return how many marks of tests that take long a test has."""
    return sum(item.get_closest_marker(mark) is not None for mark in ("fleet", "slow"))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tests run side by side; two threads in small operations only get in their way. A test may have changed it."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """What a test puts into the environment is gone after it: `--state-key` does, and later runs would be encrypted."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Fail where the tests of a file leave a process running."""
    yield
    left = processes.left_running()
    assert not left, f"left running: {left}"


@pytest.fixture
def no_figures() -> Iterator[None]:
    """Let runs draw no figures, which takes four fifths of a short one; test_results and test_methods draw them."""
    with pytest.MonkeyPatch.context() as patch:  # of its own: a test may undo what it has patched
        patch.setattr("cflag.results.folder.draw", lambda *_: None)
        yield


@pytest.fixture
def runs_here() -> Iterator[None]:
    """Let runs that a command starts as processes happen in this one; test_compare.py has real ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("subprocess.Popen", processes.start_here)
        yield


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sources with fixed numbers of records or classes be a few samples large."""
    for name, records in (("cifar10", (4, 3)), ("cifar100", (6, 4))):
        reader = find_reader(name)
        assert isinstance(reader, Cifar)
        put_reader(monkeypatch, replace(reader, records=records))
    tiny = find_reader("tiny-imagenet")
    assert isinstance(tiny, TinyImageNet)
    put_reader(monkeypatch, replace(tiny, classes=3, side=8))


@pytest.fixture(autouse=True)
def _no_parts_left() -> Iterator[None]:
    """What a test registers, as a plugin or otherwise, is gone after it."""
    yield
    for kind, name in list(registry._parts):
        if name not in registry._index(kind):
            del registry._parts[kind, name]
    for module in [module for module in sys.modules if module.startswith("cflag_plugin_")]:
        del sys.modules[module]
