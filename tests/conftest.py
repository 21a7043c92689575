"""What all tests share: one thread a process, and no time limits on property tests."""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import pytest
import torch

from cflag.data import sources

torch.set_num_threads(1)  # tests run side by side; two threads in small operations only get in their way
hypothesis.settings.register_profile("cflag", deadline=None)
hypothesis.settings.load_profile("cflag")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sources with fixed numbers of records or classes be a few samples large."""
    for name, records in (("cifar10", (4, 3)), ("cifar100", (6, 4))):
        entry = sources.SOURCES[name]
        assert isinstance(entry, sources.Cifar)
        monkeypatch.setitem(sources.SOURCES, name, replace(entry, records=records))
    tiny = sources.SOURCES["tiny-imagenet"]
    assert isinstance(tiny, sources.TinyImageNet)
    monkeypatch.setitem(sources.SOURCES, "tiny-imagenet", replace(tiny, classes=3, side=8))
