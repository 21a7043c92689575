"""Sources, scenarios and partitions by name: cflag's own without importing torch, and yours from a plugin file."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cflag
from cflag import registry
from cflag.config import resolve
from cflag.data.benchmark import Benchmark
from cflag.data.download import fetch, status
from cflag.data.load import load_source
from cflag.data.options import BenchmarkOptions
from cflag.errors import DataError, UserError

SOURCES = ["cifar10", "cifar100", "diabetes", "digits", "fashion-mnist", "folder", "har", "led", "mnist"]
KNOWN = {
    "source": [*SOURCES, "npz", "pictures", "sea", "stagger", "table", "tiny-imagenet"],
    "scenario": ["class", "domain", "permuted", "rotated", "task"],
    "partition": ["classes", "dirichlet", "iid", "own", "subject"],
}

Load = Callable[[str], None]


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Load]:
    """Return a function that loads Python text as a plugin; what it registers is forgotten after the test."""

    def load(text: str) -> None:
        file = tmp_path / "plugin.py"
        file.write_text(text)
        registry.load_plugins([file])

    yield load
    for key in [key for key, part in registry._parts.items() if part.module.startswith("cflag_plugin_")]:
        sys.modules.pop(registry._parts.pop(key).module, None)


def test_names_are_known_without_importing_torch() -> None:
    code = (
        "import sys; from cflag import registry\n"
        f"for kind in {[*KNOWN]}:\n"
        "    print(*registry.names(kind))\n"
        "    assert all(registry.about(kind, name) for name in registry.names(kind))\n"
        "sys.exit(' '.join({'torch', 'sklearn', 'numpy'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [*KNOWN.values()]


@pytest.mark.parametrize(
    ("setting", "value", "nearest"),
    [("source", "digit", "digits"), ("scenario", "clas", "class"), ("partition", "dirchlet", "dirichlet")],
)
def test_a_wrong_name_suggests_the_nearest(setting: str, value: str, nearest: str) -> None:
    with pytest.raises(UserError, match=f"^unknown {setting} '{value}'; did you mean '{nearest}'\\?$"):
        resolve({setting: value})
    with pytest.raises(UserError, match=f"^unknown {setting} 'zzz'; known: {', '.join(KNOWN[setting])}$"):
        resolve({setting: "zzz"})


LIKE_OURS = """
import numpy as np
import torch
from sklearn.datasets import load_digits

from cflag import Source
from cflag.data.scenarios.base import Task, TaskSequence
from cflag.data.source import Split
from cflag.registry import register


@register("source", "my-digits", "digits, read once more")
def my_digits(data_dir):
    x, y = load_digits(return_X_y=True)
    pixels = torch.tensor([[int(v) * 255 // 16 for v in row] for row in x], dtype=torch.uint8).view(-1, 1, 8, 8)
    seen = [0] * 10
    held_out = []
    for label in y:
        seen[label] += 1
        held_out.append(seen[label] % 5 == 0)
    test, labels = torch.tensor(held_out), torch.tensor(y)
    return Source("my-digits", Split(pixels[~test], labels[~test]), Split(pixels[test], labels[test]), 10,
                  (0.3043,), (0.3761,))


@register("scenario", "low-then-high")
def low_then_high(source, options):
    "The lower half of the classes, then the upper half."
    middle = source.classes // 2
    return TaskSequence((Task(tuple(range(middle))), Task(tuple(range(middle, source.classes)))), by_task=True)


@register("partition", "as-files-have-them")
def as_files_have_them(deal):
    "Client c gets every so many-th sample of a task, as a list."
    n = deal.options.clients
    return [[half.indices[client::n].tolist() for client in range(n)] for half in (deal.train, deal.test)]


@register("partition", "my-iid")
def my_iid(deal):
    "Deals as iid does."
    parts = []
    for half in (deal.train, deal.test):
        rng = deal.rng(half)
        row = np.concatenate([rng.permutation(half.indices[half.labels == label]) for label in deal.classes])
        parts.append([np.sort(row[client :: deal.options.clients]) for client in range(deal.options.clients)])
    return parts
"""

QUICK: dict[str, Any] = {"method": "finetune", "tasks": 2, "rounds": 1, "width": 8, "clients": 3, "workers": 1}


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.usefixtures("no_figures")
def test_parts_from_a_plugin_that_do_as_ours_do_lead_to_the_same_model(plugin: Load, tmp_path: Path) -> None:
    plugin(LIKE_OURS)
    ours: dict[str, Any] = {"source": "digits", "scenario": "task", "partition": "iid", "class_order": "natural"}
    mine: dict[str, Any] = {"source": "my-digits", "scenario": "low-then-high", "partition": "my-iid"}
    cflag.run("digits", out=tmp_path / "ours", **QUICK, **ours)
    result = cflag.run("digits", out=tmp_path / "mine", **QUICK, **mine)
    assert {key: result.config[key] for key in mine} == mine
    assert model(tmp_path / "mine") == model(tmp_path / "ours")
    cflag.run("digits", out=tmp_path / "other", **QUICK, **{**mine, "partition": "as-files-have-them"})
    assert model(tmp_path / "other") != model(tmp_path / "ours")


def test_parts_from_a_plugin_are_listed_and_suggested(plugin: Load) -> None:
    plugin(LIKE_OURS)
    assert registry.names("source") == sorted([*KNOWN["source"], "my-digits"])
    assert registry.about("source", "my-digits") == "digits, read once more"
    assert registry.about("scenario", "low-then-high") == "The lower half of the classes, then the upper half"
    with pytest.raises(UserError, match="did you mean 'as-files-have-them'"):
        resolve({"partition": "as-files-have-it"})


def test_class_counts_are_those_of_the_samples_dealt(plugin: Load) -> None:
    plugin(LIKE_OURS)
    source = load_source("digits")
    for partition, scenario in (("as-files-have-them", "low-then-high"), ("dirichlet", "permuted")):
        options = BenchmarkOptions(partition=partition, scenario=scenario, tasks=2, clients=4, zeta=0.5)
        benchmark = Benchmark(source, options)
        counts = benchmark.class_counts()
        assert counts == [
            {c: [int((benchmark.train(client, k).y == c).sum()) for client in range(4)] for c in task.classes}
            for k, task in enumerate(benchmark.tasks)
        ]
        assert all(type(count) is int for task in counts for row in task.values() for count in row)
        whole = np.bincount(source.train.y.numpy()) * (2 if scenario == "permuted" else 1)
        assert [sum(sum(task.get(c, [])) for task in counts) for c in range(10)] == whole.tolist()


STRANGE = """
from cflag.data.partitions.base import own_data
from cflag.errors import DataError
from cflag.registry import register


@register("source", "nothing")
def nothing(data_dir):
    return None


@register("source", "lost")
def lost(data_dir):
    raise DataError(f"{data_dir / 'my.csv'}: not found")


@register("partition", "one-client")
def one_client(deal):
    return [deal.train.indices], [deal.test.indices]


@register("partition", "positions")
def positions(deal):
    n = deal.options.clients
    return [[range(client, len(half.indices), n) for client in range(n)] for half in (deal.train, deal.test)]


@own_data
@register("partition", "hospitals")
def hospitals(deal):
    return [deal.train.indices] * deal.options.clients, [deal.test.indices] * deal.options.clients
"""


def test_mistakes_in_a_plugin_are_told_in_one_line(plugin: Load, tmp_path: Path) -> None:
    plugin(STRANGE)
    with pytest.raises(UserError, match=r"source 'nothing': its function returned None, expected a cflag\.Source"):
        load_source("nothing")
    told = f"{tmp_path / 'my.csv'}: not found; see the code that registers source 'lost'"
    with pytest.raises(DataError, match=f"^{re.escape(told)}$"):
        load_source("lost", tmp_path)
    with pytest.raises(UserError, match="partition 'one-client': task 1 has 1 train parts for 3 clients"):
        Benchmark(load_source("digits"), BenchmarkOptions(partition="one-client", clients=3))
    with pytest.raises(UserError, match="partition 'positions': task 1 has train samples of other tasks"):
        Benchmark(load_source("digits"), BenchmarkOptions(partition="positions", clients=3))


def test_a_function_counts_as_present_and_has_nothing_to_download(plugin: Load, tmp_path: Path) -> None:
    plugin(LIKE_OURS.replace("my-digits", "mine") + STRANGE)
    assert status("mine", tmp_path) == status("lost", tmp_path) == "ready"
    assert fetch("mine", tmp_path) == tmp_path
    with pytest.raises(DataError, match="lost: there is nothing to download; see the code that registers"):
        fetch("lost", tmp_path)


def test_a_plugins_partition_for_clients_with_data_of_their_own_wants_a_fleet(plugin: Load) -> None:
    plugin(STRANGE)
    with pytest.raises(UserError, match="partition = 'hospitals' is for clients with data of their own"):
        resolve({"partition": "hospitals"})
    assert resolve({"partition": "hospitals", "engine": "flower"}).partition == "hospitals"
