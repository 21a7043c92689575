"""What all tests share: one thread a process, and no time limits on property tests."""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import pytest
import torch

from cflag.data.load import find_reader
from cflag.data.sources.cifar import Cifar
from cflag.data.sources.tiny_imagenet import TinyImageNet
from tests.support.datasets import put_reader

torch.set_num_threads(1)  # tests run side by side; two threads in small operations only get in their way
hypothesis.settings.register_profile("cflag", deadline=None)
hypothesis.settings.load_profile("cflag")


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
