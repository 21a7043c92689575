"""The configuration of a run: presets and TOML files in, checked values out.

Keys are the fields of `Config`; `[memory]` and a table named like the method hold theirs.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tomli_w

from cflag import registry
from cflag.data.options import BenchmarkOptions
from cflag.data.partitions.base import has_own_data
from cflag.errors import UserError, unknown
from cflag.memory.base import MemoryOptions
from cflag.methods.base import LocalOptions
from cflag.models.layers import ModelOptions
from cflag.presets import load_preset

CUSTOM = "custom"
"""The name of a source or model that was handed over in Python."""


@dataclass(frozen=True)
class Config(BenchmarkOptions, LocalOptions, ModelOptions):
    """Everything that decides a run's numbers, and where it is computed."""

    method: str = "cflag"
    source: str = "digits"
    model: str = "mlp"
    rounds: int = 5
    clients_per_round: float = 0.0
    """How many clients take part in a round, drawn anew for each: a number, or a fraction below 1; 0 means all. What
    is asked before and after a task is asked of everyone."""
    eval_every: int = 1
    """Measure the accuracy so far every so many rounds; a task's last round is always measured."""
    engine: Literal["local", "flower-sim", "flower"] = "local"
    """What carries questions and answers: this machine, Flower's simulation on it, or Flower over many (`cflag deploy`,
    `cflag server`). Changes no number."""
    min_clients: int = 1
    """With `flower`: how many clients a question needs answers from; with fewer the server waits."""
    deadline: float = 600.0
    """With `flower`: seconds a client has for an answer; then the others go on without it."""
    patience: float = 600.0
    """With `flower`: seconds the server waits for clients, all at the start and `min_clients` later."""
    secure: bool = False
    """With `flower-sim`: secure aggregation (SecAgg+). Means are rounded to about 1e-5, and nothing is known of single
    clients: no losses, rates or accuracies of theirs."""
    workers: int = 0
    """Worker processes; 0 means one per core, 1 means this process alone. Changes no number."""
    device: str = "cpu"
    data_dir: str = ""
    log: str = ""
    """Where else the rounds go, beside the run folder: `tensorboard`, `mlflow`, or both with a comma. Changes no
    number."""
    plugins: tuple[str, ...] = ()
    """Python files of your own that register methods, sources and other parts; read by every process of the run. In a
    TOML file they are given relative to it."""
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    settings: Any = None
    """The method's own settings; in a file, the table named like the method."""
    other_settings: dict[str, Any] = field(default_factory=dict, compare=False)
    """The tables of other methods, kept so that a file means the same for each of them."""

    def cohort_size(self) -> int:
        """Return how many clients take part in a round."""
        asked = self.clients_per_round
        return round(asked if asked >= 1 else max(1, asked * self.clients)) if asked else self.clients

    def to_dict(self) -> dict[str, Any]:
        """Return the config as it stands in a file: short keys first, tables last."""
        keys = [k for k in FIRST if k] + [f.name for f in fields(self) if f.name not in FIRST]
        plain = {k: getattr(self, k) for k in keys if k not in TABLES} | {"plugins": list(self.plugins)}
        others = {name: vars(settings) for name, settings in self.other_settings.items()}
        return {**plain, "memory": vars(self.memory), self.method: vars(self.settings), **others}

    def numbers(self) -> dict[str, Any]:
        """Return what decides a run's numbers, to tell whether a checkpoint belongs to this config."""
        other = {*ELSEWHERE, *self.other_settings}
        numbers: dict[str, Any] = json.loads(json.dumps(self.to_dict()))  # as a checkpoint gives them back
        return {key: value for key, value in numbers.items() if key not in other}

    def to_toml(self) -> str:
        """Return the config as TOML."""
        return tomli_w.dumps(self.to_dict())


TABLES = ("memory", "settings", "other_settings")
ELSEWHERE = ("workers", "data_dir", "log", "device", "min_clients", "deadline", "patience", "plugins")
"""Keys that change no number: they say where and how something is computed."""
FIRST = ("method", "source", "scenario", "clients", "tasks", "rounds", "seed", "zeta", "model")

AT_LEAST_1 = ("tasks", "clients", "rounds", "batch", "min_samples", "eval_every", "table_bytes", "min_clients")
AT_LEAST_0 = ("samples_per_class", "test_per_class", "image_size", "steps", "width", "workers", "seed")
LEAST = {**dict.fromkeys(AT_LEAST_1, 1), **dict.fromkeys(AT_LEAST_0, 0)}
KINDS: dict[Any, str] = {int: "a whole number", float: "a finite number", str: "a string", bool: "true or false",
                         tuple[str, ...]: "a list of strings"}  # fmt: skip


def load_file(path: Path) -> dict[str, Any]:
    """Return a TOML file's raw values."""
    try:
        return load_text(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a readable TOML file ({error})") from None


def load_text(text: str, where: Path) -> dict[str, Any]:
    """Return the raw values of TOML text that came from somewhere."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where}: not a readable TOML file ({error})") from None


def load_raw(given: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the raw values of a preset's name or of a file ending in .toml, laid over those of its `base`."""
    if given in seen:
        raise UserError(f"{given}: built on itself ({' -> '.join([*seen, given])})")
    raw = _load_own(Path(given)) if given.endswith(".toml") else load_preset(given)
    base = raw.pop("base", None)
    if base is None:
        return raw
    if not isinstance(base, str):
        raise UserError(f"{given}: base = {base!r} must be the name of a preset or of a .toml file")
    below = load_raw(base, (*seen, given))
    raw["plugins"] = [*below.get("plugins", []), *raw.get("plugins", [])]
    return merge(below, flatten(raw))


def load_config(given: str = "digits", **settings: Any) -> Config:
    """Return the config of a preset or TOML file with changes, for example `load_config("digits", rounds=3)`."""
    return resolve(merge(load_raw(given), flatten(settings)))


def _load_own(path: Path) -> dict[str, Any]:
    """Load a file of the user's own; its plugins, and a base that is a file, are given relative to it."""
    raw = load_file(path)
    if "plugins" in raw:
        raw["plugins"] = absolute_plugins(raw["plugins"], path.parent)
    if str(raw.get("base", "")).endswith(".toml"):
        raw["base"] = str(path.parent / raw["base"])
    return raw


def absolute_plugins(given: Any, where: Path) -> list[str]:
    """Return plugins as absolute paths, each once; they may be given relative to a folder."""
    files = _coerced("plugins", given, tuple[str, ...])
    return list(dict.fromkeys(str((where / Path(file).expanduser()).resolve()) for file in files))


def flatten(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Turn {"memory": {"sample": 5}} into [("memory.sample", 5)]."""
    pairs: list[tuple[str, Any]] = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            pairs += [(f"{key}.{inner}", v) for inner, v in value.items()]
        else:
            pairs.append((key, value))
    return pairs


def parse_setting(text: str) -> tuple[str, Any]:
    """Split `key=value`; the value is read as TOML, and as a plain string where it is none."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {text}: write key=value, for example --set rounds=10")
    try:
        return key.strip(), tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def merge(raw: Mapping[str, Any], settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return raw values with dotted keys set: `memory.sample` is `sample` in the table `memory`."""
    merged = {k: dict(v) if isinstance(v, Mapping) else v for k, v in raw.items()}
    for key, value in settings:
        table, dot, name = key.partition(".")
        if not dot:
            merged[key] = value
        else:
            inner = merged.setdefault(table, {})
            if not isinstance(inner, dict):
                raise UserError(f"'{key}': '{table}' is not a table")
            inner[name] = value
    return merged


def resolve(raw: Mapping[str, Any]) -> Config:
    """Check raw values and fill in the defaults; what plugins register is known from here on."""
    plain = {k: v for k, v in raw.items() if not isinstance(v, Mapping)}
    plain["plugins"] = absolute_plugins(plain.get("plugins", ()), Path.cwd())
    registry.load_plugins(plain["plugins"])
    tables: dict[str, dict[str, Any]] = {}
    for key, value in raw.items():
        if isinstance(value, Mapping):
            tables.setdefault(_table(key), {}).update(value)
    name = str(plain.get("method", Config.method))
    method = registry.get("method", name)
    if name in (*_keys(Config), *TABLES):
        raise UserError(f"a method cannot be named '{name}': that is a key of the config")
    for table in tables:
        if table != "memory" and table not in registry.names("method"):
            raise unknown("table", table, ["memory", *registry.names("method")])
    _refuse_unknown(plain, name, method.Settings)
    values = {k: _coerced(k, v, _hints(Config)[k]) for k, v in plain.items()}
    memory = _options(MemoryOptions, tables.get("memory", {}), "memory")
    settings = _options(method.Settings, tables.get(name, {}), name)
    others = {
        t: _options(registry.get("method", t).Settings, v, t) for t, v in tables.items() if t not in ("memory", name)
    }
    config = Config(**values, memory=memory, settings=settings, other_settings=others)
    _check(config)
    return config


def _table(name: str) -> str:
    """Return a table's name; from Python, [cflag-sgd] can be given as cflag_sgd."""
    dashed = name.replace("_", "-")
    return dashed if dashed in registry.names("method") and name not in registry.names("method") else name


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def _keys(cls: type[Any]) -> list[str]:
    return [f.name for f in fields(cls) if f.name not in TABLES]


def _refuse_unknown(plain: Mapping[str, Any], method: str, settings: type[Any]) -> None:
    """Suggest the closest key, also one inside a table: `beta` is `cflag.beta`."""
    dotted = [f"{method}.{k}" for k in _keys(settings)] + [f"memory.{k}" for k in _keys(MemoryOptions)]
    for key in plain:
        if key in _keys(Config):
            continue
        inner = [d for d in dotted if difflib.get_close_matches(key, [d.partition(".")[2]], cutoff=0.8)]
        outer = difflib.get_close_matches(key, _keys(Config), n=1, cutoff=0.8)
        if outer or inner:
            raise UserError(f"unknown key '{key}'; did you mean '{(outer or inner)[0]}'?")
        raise unknown("key", key, [*_keys(Config), *dotted])


def _options(cls: type[Any], table: Mapping[str, Any], name: str) -> Any:
    for key in table:
        if key not in _keys(cls):
            raise unknown("key", f"{name}.{key}", [f"{name}.{k}" for k in _keys(cls)])
    hints = _hints(cls)  # type: ignore[arg-type]  # mypy does not take a class for hashable
    options = cls(**{k: _coerced(f"{name}.{k}", v, hints[k]) for k, v in table.items()})
    if hasattr(options, "check"):
        options.check(name)
    return options


def _coerced(key: str, value: Any, hint: Any) -> Any:
    """Return a value as the type its field has, or say what it should have been."""
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words: list[str] = []
    for choice in choices:
        if choice == tuple[str, ...]:
            if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
                return tuple(value)
        elif get_origin(choice) is Literal:
            words += get_args(choice)
            if value in get_args(choice):
                return value
        elif choice is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            if isfinite(value):
                return float(value)
        elif type(value) is choice:
            return value
    wanted = [KINDS.get(c, str(c)) for c in choices if get_origin(c) is not Literal] + [f"'{w}'" for w in words]
    close = difflib.get_close_matches(str(value), words, n=1)
    hint_text = f" (did you mean '{close[0]}'?)" if close else ""
    raise UserError(f"{key} = {value!r} must be {' or '.join(wanted)}{hint_text}")


def _check(config: Config) -> None:
    """Refuse numbers that cannot work, and names nobody knows."""
    for key, least in LEAST.items():
        if getattr(config, key) < least:
            raise UserError(f"{key} = {getattr(config, key)} must be at least {least}")
    for key in ("zeta", "epochs", "deadline", "patience"):
        if not 0 < getattr(config, key) < float("inf"):
            raise UserError(f"{key} = {getattr(config, key)} must be positive and finite")
    _check_cohort(config)
    registry.get("scenario", config.scenario)
    if has_own_data(registry.get("partition", config.partition)) and config.engine != "flower":
        needs = "is for clients with data of their own: use cflag deploy or cflag server"
        raise UserError(f"partition = '{config.partition}' {needs}")
    if config.secure and (config.engine != "flower-sim" or config.cohort_size() < 3):
        raise UserError("secure = true needs engine = 'flower-sim' and at least 3 clients in a round")
    if config.secure and registry.get("method", config.method).exact_means:
        raise UserError(f"secure = true rounds means, which method '{config.method}' does not bear: choose another")
    if config.source != CUSTOM:
        registry.get("source", config.source)
    if config.model != CUSTOM:
        registry.get("model", config.model)
    registry.get("memory", config.memory.kind)
    _check_device(config)
    log_names(config.log)


def log_names(log: str) -> list[str]:
    """Return the loggers that `log` names, each once; refuse one nobody knows."""
    names = list(dict.fromkeys(name.strip() for name in log.split(",") if name.strip()))
    for name in names:
        if name not in registry.names("logger"):
            raise unknown("logger", name, registry.names("logger"))
    return names


def _check_cohort(config: Config) -> None:
    asked = config.clients_per_round
    if asked < 0 or asked > config.clients or (asked > 1 and asked != int(asked)):
        raise UserError(
            f"clients_per_round = {asked:g} must be a number of clients up to {config.clients}, "
            "a fraction below 1, or 0 for all"
        )
    if config.min_clients > config.cohort_size():
        raise UserError(
            f"min_clients = {config.min_clients} is more than the {config.cohort_size()} clients of a round; "
            "lower it or raise clients_per_round"
        )


def _check_device(config: Config) -> None:
    import torch

    try:
        device = torch.device(config.device)
    except RuntimeError:
        raise UserError(f"device = '{config.device}' is not a device torch knows; try 'cpu' or 'cuda'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device = 'cuda': torch finds no CUDA device here; use device = 'cpu'")
    if device.type != "cpu" and config.workers > 1:
        raise UserError("workers share the processor's cores; with device = 'cuda' use workers = 1")
