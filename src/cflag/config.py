"""The configuration of a run: presets and TOML files in, checked values out.

Keys are the fields of `Config`; `[memory]` and a table named like the method hold theirs.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import tomli_w

from cflag import registry
from cflag.augmentations.base import AugmentOptions
from cflag.checks import check_augment, check_cohort, check_device, check_problem, check_ranges, check_schedule
from cflag.data.load import family, placed
from cflag.data.options import BenchmarkOptions, DataOptions, ScheduleOptions
from cflag.data.partitions.base import OWN, has_own_data
from cflag.data.schedules.table import read_lines
from cflag.errors import UserError, unknown
from cflag.means.base import MeanOptions
from cflag.memory.base import MemoryOptions
from cflag.methods.base import LocalOptions
from cflag.models.options import LoraOptions, ModelOptions
from cflag.models.reference import absolute_reference, is_reference, model_maker
from cflag.presets import load_preset
from cflag.privacy.options import PrivacyOptions
from cflag.privacy.rules import check_private
from cflag.values import coerced, hints, keys, options

CUSTOM = "custom"
"""The name of a source or model that was handed over in Python."""


@dataclass(frozen=True)
class Config(BenchmarkOptions, LocalOptions, ModelOptions):
    """Everything that decides a run's numbers, and where it is computed."""

    method: str = "cflag"
    source: str = "digits"
    trainable: str | tuple[str, ...] = ""
    """What trains: `all`, `head`, `norm`, or patterns of names of parameters or of modules; by default the head on a
    backbone or beside adapters, and else all. The model on a backbone is its `head`."""
    model: str = "mlp"
    """A registered name, or your own by where it is: `net.py:Net` or `mymodule:Net`, called as Net(shape, outputs,
    options) or Net(). In a TOML file a file is given relative to it."""
    clients_per_round: float = 0.0
    """How many clients take part in a round, drawn anew for each: a number, or a fraction below 1; 0 means all. What
    is asked before and after a task is asked of everyone."""
    average_tail: float = 0.0
    """The last part of a task's rounds whose models are averaged at its end (0.25: the last quarter); 0 is off, as in
    the paper. It costs nothing, and helps where a constant rate leaves noise behind."""
    score: str = ""
    """Which of its problem's scores is the run's: tables, forgetting and pictures are of it; by default the first."""
    eval_every: int = 1
    """Measure the score so far every so many rounds; a task's last round is always measured."""
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
    """With Flower: secure aggregation (SecAgg+). Means are rounded to about 1e-5, and nothing is known of single
    clients: no losses, rates or accuracies of theirs."""
    workers: int = 0
    """Processes that clients are spread over, this one among them; 0 means one per core. Changes no number."""
    stack: int = 32
    """How many clients of a process compute their gradients side by side where the model is a small dense net; 1
    means one after the other. Changes no number."""
    device: str = "cpu"
    data_dir: str = ""
    log: str = ""
    """Where else the rounds go, beside the run folder: `tensorboard`, `mlflow`, or both with a comma. Changes no
    number."""
    plugins: tuple[str, ...] = ()
    """Python files of your own that register methods, sources and other parts; read by every process of the run. In a
    TOML file they are given relative to it."""
    data: DataOptions = field(default_factory=DataOptions)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    mean: MeanOptions = field(default_factory=MeanOptions)
    privacy: PrivacyOptions = field(default_factory=PrivacyOptions)
    lora: LoraOptions = field(default_factory=LoraOptions)
    augment: AugmentOptions = field(default_factory=AugmentOptions)
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
        plain = {k: getattr(self, k) for k in keys if k not in TABLES}
        tables = {name: vars(getattr(self, name)) for name in OPTION_TABLES} | {self.method: vars(self.settings)}
        tables |= {name: vars(settings) for name, settings in self.other_settings.items()}
        return _listed(plain) | {name: _listed(table) for name, table in tables.items()}

    def numbers(self) -> dict[str, Any]:
        """Return what decides a run's numbers, to tell whether a checkpoint belongs to this config."""
        other = {*ELSEWHERE, *self.other_settings}
        numbers: dict[str, Any] = json.loads(json.dumps(self.to_dict()))  # as a checkpoint gives them back
        return {key: value for key, value in numbers.items() if key not in other}

    def to_toml(self) -> str:
        """Return the config as TOML."""
        return tomli_w.dumps(self.to_dict())


OPTION_TABLES: dict[str, type[Any]] = {"memory": MemoryOptions, "mean": MeanOptions, "privacy": PrivacyOptions,
                                       "lora": LoraOptions, "augment": AugmentOptions,
                                       "schedule": ScheduleOptions, "data": DataOptions}  # fmt: skip
"""The tables that every config has, whatever its method."""
TABLES = (*OPTION_TABLES, "settings", "other_settings")
ELSEWHERE = ("workers", "stack", "data_dir", "log", "device", "min_clients", "deadline", "patience", "plugins")
"""Keys that change no number: they say where and how something is computed."""
FIRST = ("method", "source", "problem", "scenario", "clients", "tasks", "rounds", "seed", "zeta", "model")


def _listed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as files give them back: there are lists, no tuples."""

    def listed(value: Any) -> Any:
        return [listed(item) for item in value] if isinstance(value, tuple) else value

    return {key: listed(value) for key, value in values.items()}


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
    except (ValueError, RecursionError) as error:
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
    if isinstance(raw.get("model"), str) and is_reference(raw["model"]):
        raw["model"] = absolute_reference(raw["model"], path.parent)
    table = raw.get("schedule")
    if isinstance(table, dict) and isinstance(table.get("file"), str):
        table["file"] = str(path.parent / Path(table["file"]).expanduser())
    if str(raw.get("base", "")).endswith(".toml"):
        raw["base"] = str(path.parent / raw["base"])
    return raw


def absolute_plugins(given: Any, where: Path) -> list[str]:
    """Return plugins as absolute paths, each once; they may be given relative to a folder."""
    files = coerced("plugins", given, tuple[str, ...])
    return list(dict.fromkeys(str((where / Path(file).expanduser()).resolve()) for file in files))


def flatten(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Turn {"memory": {"sample": 5}} into [("memory.sample", 5)]."""
    pairs: list[tuple[str, Any]] = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            pairs += [(f"{key}.{inner}", value[inner]) for inner in sorted(value, key=lambda name: name != "kind")]
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
    except (ValueError, RecursionError):  # of TOML, or of a number with thousands of digits
        return key.strip(), value.strip()


def merge(raw: Mapping[str, Any], settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return raw values with dotted keys set: `memory.sample` is `sample` in the table `memory`."""
    merged = {k: dict(v) if isinstance(v, Mapping) else v for k, v in raw.items()}
    for key, value in settings:
        table, dot, name = key.partition(".")
        if not dot:
            merged[key] = {"kind": value} if key == "schedule" and isinstance(value, str) else value
        else:
            inner = merged.setdefault(table, {})
            if not isinstance(inner, dict):
                raise UserError(f"'{key}': '{table}' is not a table")
            if key == "schedule.kind" and inner.get("kind") != value:
                inner.clear()  # another kind has other settings
            inner[name] = value
    return merged


def resolve(raw: Mapping[str, Any]) -> Config:
    """Check raw values and fill in the defaults; what plugins register is known from here on."""
    plain = {k: v for k, v in raw.items() if not isinstance(v, Mapping)}
    if isinstance(plain.get("tasks"), list | tuple):
        plain |= {"tasks": len(plain["tasks"]), "task_classes": plain["tasks"]}
    plain["plugins"] = absolute_plugins(plain.get("plugins", ()), Path.cwd())
    registry.load_plugins(plain["plugins"])
    if isinstance(plain.get("model"), str) and is_reference(plain["model"]):
        plain["model"] = absolute_reference(plain["model"], Path.cwd())
    tables: dict[str, dict[str, Any]] = {}
    for key, value in raw.items():
        if isinstance(value, Mapping):
            tables.setdefault(_table(key), {}).update(value)
    tables["schedule"] = _schedule(plain.pop("schedule", None), tables.get("schedule", {}))
    name = str(plain.get("method", Config.method))
    method = registry.get("method", name)
    if name in (*_config_keys(), *TABLES):
        raise UserError(f"a method cannot be named '{name}': that is a key of the config")
    for table in tables:
        if table not in (*OPTION_TABLES, *registry.names("method")):
            raise unknown("table", table, [*OPTION_TABLES, *registry.names("method")])
    _refuse_unknown(plain, name, method.Settings)
    values = {k: coerced(k, v, hints(Config)[k]) for k, v in plain.items()}
    values |= _places(values)
    classes = {**OPTION_TABLES, "schedule": registry.get("schedule", tables["schedule"]["kind"]).Settings}
    common = {table: options(cls, tables.pop(table, {}), table) for table, cls in classes.items()}
    settings = options(method.Settings, tables.pop(name, {}), name)
    others = {other: options(registry.get("method", other).Settings, v, other) for other, v in tables.items()}
    config = Config(**values, **common, settings=settings, other_settings=others)
    _check(config)
    return config


def _places(values: Mapping[str, Any]) -> dict[str, str]:
    """Return a source's place below the current folder as an absolute one; in a fleet it is below each data folder."""
    if "source" not in values or values.get("engine") == "flower" or values.get("partition") == OWN:
        return {}
    return {"source": placed(values["source"], values.get("data_dir", ""))}


def _schedule(short: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a schedule, which may be given by its name alone; a CSV file is read into it."""
    kind = coerced("schedule", table.get("kind", ScheduleOptions.kind) if short is None else short, str)
    given = {**table, "kind": kind}
    if kind == "table" and (file := coerced("schedule.file", given.pop("file", ""), str)):
        given["lines"] = read_lines(Path(file).expanduser())
    return given


def _table(name: str) -> str:
    """Return a table's name; from Python, [cflag-sgd] can be given as cflag_sgd."""
    dashed = name.replace("_", "-")
    return dashed if dashed in registry.names("method") and name not in registry.names("method") else name


def _config_keys() -> list[str]:
    return [name for name in keys(Config) if name not in TABLES]


def _refuse_unknown(plain: Mapping[str, Any], method: str, settings: type[Any]) -> None:
    """Suggest the closest key, also one inside a table: `beta` is `cflag.beta`."""
    tables = {method: settings, **OPTION_TABLES}
    dotted = [f"{table}.{k}" for table, cls in tables.items() for k in keys(cls)]
    for key in plain:
        if key in _config_keys():
            continue
        inner = [d for d in dotted if difflib.get_close_matches(key, [d.partition(".")[2]], cutoff=0.8)]
        outer = difflib.get_close_matches(key, _config_keys(), n=1, cutoff=0.8)
        if outer or inner:
            raise UserError(f"unknown key '{key}'; did you mean '{(outer or inner)[0]}'?")
        raise unknown("key", key, [*_config_keys(), *dotted])


def _check(config: Config) -> None:
    """Refuse numbers that cannot work, and names nobody knows."""
    check_ranges(config)
    if isinstance(config.trainable, tuple) and not all(config.trainable or ("",)):
        raise UserError(
            "trainable: the list is empty, or a pattern in it is; name what trains, as in ['layer4.*', 'head']"
        )
    check_cohort(config)
    registry.require("scenario", config.scenario)
    own = has_own_data(registry.get("partition", config.partition))
    if own and config.partition != OWN and config.engine != "flower":
        needs = "is for clients with data of their own: use cflag deploy or cflag server"
        raise UserError(f"partition = '{config.partition}' {needs}")
    if config.secure and (config.engine == "local" or config.cohort_size() < 3):
        raise UserError("secure = true needs engine = 'flower-sim' or a fleet, and at least 3 clients in a round")
    if config.secure and registry.get("method", config.method).exact_means:
        raise UserError(f"secure = true rounds means, which method '{config.method}' does not bear: choose another")
    if config.source != CUSTOM:
        registry.require("source", family(config.source))
    if is_reference(config.model):
        model_maker(config.model)
    elif config.model != CUSTOM:
        registry.require("model", config.model)
    registry.require("memory", config.memory.kind)
    sums = registry.get("method", config.method).sums(config.settings)
    config.mean.check_run(registry.get("mean", config.mean.kind), config.cohort_size(), config.secure, sums)
    check_private(config.privacy, config.method, config.settings, config.secure)
    if config.privacy.unit == "client" and not config.mean.plain:
        raise UserError("privacy.unit = 'client' needs the plain mean, which its noise fits: leave [mean] as it is")
    check_augment(config)
    check_device(config)
    check_schedule(config)
    check_problem(config)
    log_names(config.log)


def log_names(log: str) -> list[str]:
    """Return the loggers that `log` names, each once; refuse one nobody knows."""
    names = list(dict.fromkeys(name.strip() for name in log.split(",") if name.strip()))
    for name in names:
        if name not in registry.names("logger"):
            raise unknown("logger", name, registry.names("logger"))
    return names
