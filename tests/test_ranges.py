"""Every key that holds a number has a range, and whatever number one writes ends in a config or in one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin

import pytest

from cflag import FedAvg, FedAvgSettings, register, registry
from cflag.config import OPTION_TABLES, Config, load_config, load_raw, merge, resolve
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.presets import preset_names, protocol_names
from cflag.ranges import RANGES, range_of
from cflag.values import hints


def numbers(cls: type[Any]) -> list[str]:
    """Return the keys of a settings class that may hold a number."""
    kinds = {field.name: hints(cls)[field.name] for field in fields(cls)}  # type: ignore[arg-type]
    return [name for name, kind in kinds.items() if {int, float} & single(kind)]


def single(kind: Any) -> set[Any]:
    """Return the types of single values that a key may hold."""
    return {kind, *(get_args(kind) if get_origin(kind) in (Union, UnionType) else ())}


LINES = [*(f"{c},{5 * t + 1},{5 * t + 5},{t + 1}" for c in range(5) for t in range(5))]
"""A schedule by hand: five clients, five tasks of five rounds."""


def everything() -> Iterator[tuple[type[Any], str, dict[str, Any]]]:
    """Yield each settings class, its table, and settings under which the table is in use."""
    yield Config, "", {}
    in_use: dict[str, dict[str, Any]] = {"privacy": {"privacy.unit": "client"}, "lora": {"lora.rank": 1}}
    for table, cls in OPTION_TABLES.items():
        if table != "schedule":
            yield cls, table, in_use.get(table, {})
    for kind in registry.names("schedule"):
        lines = {"schedule.lines": LINES} if kind == "table" else {}
        yield registry.get("schedule", kind).Settings, "schedule", {"schedule.kind": kind, **lines}
    for name in registry.names("method"):
        cls = registry.get("method", name).Settings
        if cls.__module__.startswith("cflag."):
            plain = {f"{name}.adapt": "off"} if name in ("cflag", "cflag-sgd") else {}  # else rates are refused first
            yield cls, name, {"method": name, **plain}


KEYS = [(cls, table, key, settings) for cls, table, settings in everything() for key in numbers(cls)]
NAMES = [f"{table or 'Config'}.{key}-{settings.get('schedule.kind', '')}" for _, table, key, settings in KEYS]


def why_not(raw: dict[str, Any]) -> str:
    """Return why raw values are refused, or nothing where they are a config."""
    try:
        resolve(raw)
    except UserError as error:
        return str(error)
    return ""


def test_the_walk_finds_what_there_is() -> None:
    assert {"epochs", "image_size", "width", "steps"} <= {key for cls, _, key, _ in KEYS if cls is Config}
    assert ("target", "samples") in {(table, key) for _, table, key, _ in KEYS}
    assert len(KEYS) > 80


@pytest.mark.parametrize(("cls", "table", "key", "settings"), KEYS, ids=NAMES)
def test_every_number_has_a_range_and_none_ends_in_a_traceback(
    cls: type[Any], table: str, key: str, settings: dict[str, Any]
) -> None:
    """Its default lies in the range; what is outside is refused in a line that names it; what is inside may be, too."""
    found = range_of(cls, key, table)
    assert found is not None, f"{cls.__name__}.{key} has no range: say one in cflag/ranges.py"
    low, high = found
    default = next(field.default for field in fields(cls) if field.name == key)
    assert not isinstance(default, int | float) or low <= default <= high
    name = f"{table}.{key}" if table else key
    raw, whole = load_raw("digits"), int in single(hints(cls)[key])  # type: ignore[arg-type]
    beyond = [low - 1, high * 2 + 1, -(10**30), 10**30, *([] if whole else [1e300, -1e300, 1e30, -1e-300])]
    for value in [low, high, 0, 1, *beyond]:
        value = int(value) if whole else float(value)
        refused = why_not(merge(raw, [*settings.items(), (name, value)]))
        assert refused or low <= value <= high, f"{name} = {value} was taken"
        assert "\n" not in refused
        assert value not in beyond or key in refused, refused


def test_ranges_are_of_keys_that_exist() -> None:
    own = {("method", key) for key in OPTION_TABLES["augment"].ranges}  # they stand with the table itself
    known = {(table if table in RANGES else "method", key) for _, table, key, _ in KEYS}
    assert {(table, key) for table, keys in RANGES.items() for key in keys} == {
        (table, key) for table, key in known if (table, key) not in own
    }


@pytest.mark.parametrize("name", [*preset_names(), *(f"protocol:{name}" for name in protocol_names())])
def test_presets_are_within_all_ranges(name: str) -> None:
    load_config(name.replace("protocol:protocol:", "protocol:"))


HUGE: list[tuple[dict[str, Any], str]] = [
    (
        {"image_size": 2**14},
        r"image_size = 16384: 1,797 images of that size take 482 GB, more than 16; make it smaller",
    ),
    ({"image_size": 10**30}, r"image_size = 1000000000000000000000000000000 must be at most 16,384"),
    ({"width": 2**20}, r"model = 'mlp', width = 1048576: its parameters alone take [\d,]+ GB"),
    ({"width": 2**20, "model": "cnn"}, r"model = 'cnn', width = 1048576: its parameters alone take [\d,]+ GB"),
    ({"steps": 10**18}, r"steps = 1000000000000000000 must be at most 1,000,000,000"),
    ({"epochs": 1e30}, r"epochs = 1e\+30 must be at most 1,000,000,000"),
    ({"method": "target", "target": {"samples": 10**12}}, r"target.samples = 1000000000000 must be at most 1,000,000"),
    ({"device": "meta"}, r"device = 'meta' is not one that runs are made for; use 'cpu' or 'cuda'"),
    ({"device": "cuda:99"}, r"no CUDA device here|there are \d+ CUDA devices"),
    ({"device": "toaster"}, r"device = 'toaster' is not a device torch knows"),
    ({"clients": 10**6, "tasks": 10**6}, r"clients = 1000000 times tasks = 1000000 is more than 100,000,000"),
]


@pytest.mark.parametrize(("settings", "why"), HUGE)
def test_absurd_sizes_end_in_one_line(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        Experiment(load_config("digits", **settings))


def test_settings_of_ones_own_may_say_their_ranges() -> None:
    @dataclass(frozen=True)
    class Mine(FedAvgSettings):
        mu: float = 0.0
        any: float = 0.0
        ranges: ClassVar[dict[str, tuple[float, float]]] = {"mu": (-1.0, 1.0)}

    @register("method", "ranged")
    class Ranged(FedAvg):
        """Says what its numbers may be."""

        Settings = Mine

    assert load_config("digits", method="ranged", ranged={"mu": -0.5, "any": -1e50}).settings.mu == -0.5
    for settings, why in (({"mu": 2.0}, r"ranged.mu = 2.0 must be at most 1"), ({"lr": 1e19}, r"ranged.lr"),
                          ({"any": 1e200}, r"ranged.any = 1e\+200 must be at most 1e\+100")):  # fmt: skip
        with pytest.raises(UserError, match=why):
            load_config("digits", method="ranged", ranged=settings)
