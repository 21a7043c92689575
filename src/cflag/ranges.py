"""What numbers may be: a range for every key that holds one, in one place.

Lower bounds are what a key means; upper ones are far beyond all use, and keep a slip of the pen, as `epochs = 1e30`,
from ending somewhere deep in a library. A settings class of your own may have its own `ranges`, as a `ClassVar`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from cflag.errors import UserError

Range = tuple[float, float]
"""The least and the most that a number may be."""

MANY, SIZE, RATE, PART = (0, 10**9), (0, 2**50), (0.0, 1e18), (0.0, 1.0)
COUNT, SOME = (1, 10**9), (1, 10**6)
NUMBERS: Range = (-1e100, 1e100)
"""Of a key of someone else's that says nothing: what can still be squared."""

RANGES: Mapping[str, Mapping[str, Range]] = {
    "": {
        "tasks": SOME, "clients": SOME, "rounds": COUNT, "seed": (0, 2**64), "zeta": (1e-12, 1e12),
        "epochs": (0.0, 1e9), "steps": MANY, "batch": COUNT, "width": (0, 2**20), "table_bytes": (1, 2**50),
        "classes_per_client": SOME, "min_samples": MANY, "samples_per_class": MANY, "test_per_class": MANY,
        "image_size": (0, 2**14), "clients_per_round": (0.0, 1e6), "average_tail": PART, "eval_every": COUNT,
        "validation": PART, "min_clients": SOME, "deadline": (0.0, 1e9), "patience": (0.0, 1e9), "workers": (0, 2**10),
        "stack": (1, 2**10),
    },
    "memory": {
        "per_task": COUNT, "sample": COUNT, "limit_samples": MANY, "limit_bytes": SIZE, "expire_rounds": MANY,
        "expire_days": (0.0, 1e5),
    },
    "mean": {
        "liars": (0, 10**6), "trim": (0.0, 0.5), "clip": (0.0, 1e12), "outlier": (0.0, 1e12), "max_share": PART,
        "max_claim": (0.0, 1e12),
    },
    "privacy": {"clip": (1e-6, 1e6), "noise": (1e-6, 1e6), "epsilon": (0.0, 1e6), "delta": (1e-30, 1.0)},
    "data": {"classes": (0, 10**6), "held_out": PART, "size": (0, 2**14), "memory_bytes": SIZE},
    "lora": {"rank": (0, 2**16), "alpha": RATE},
    "schedule": {
        "detector_threshold": (0.0, 1e12), "detector_window": MANY, "share": PART, "join": MANY, "leave": MANY,
        "lacking": PART, "least": MANY, "classes": (0, 10**6), "overlap": PART, "jitter": PART, "groups": SOME,
        "every": MANY,
    },
    "method": {
        "lr": RATE, "alpha": RATE, "beta": RATE, "smoothness": (1e-9, 1e9), "alpha_cap": RATE, "beta_cap": RATE,
        "drift": PART, "pull": RATE, "exchange": COUNT, "track": MANY, "strength": (0.0, 1e12), "decay": PART,
        "fisher_samples": COUNT, "temperature": (1e-3, 1e6), "shrink": PART, "samples": (2, 10**6), "batch": (2, 10**6),
        "generator_steps": SOME, "generator_lr": RATE, "student_steps": SOME, "student_lr": RATE, "bn": RATE,
        "adversarial": RATE, "replay": RATE,
    },
}  # fmt: skip
"""By table, "" for keys outside of all and "method" for those of methods, and key."""


def range_of(cls: type[Any], key: str, table: str) -> Range | None:
    """Return the range of a key of a settings class: what the class says, else ours where the key is; None: nothing."""
    for owner in cls.__mro__:
        own: Mapping[str, Range] = vars(owner).get("ranges", {})
        if key in own:
            return own[key]
        if key in vars(owner).get("__annotations__", {}) and owner.__module__.startswith("cflag."):
            return RANGES[table if table in RANGES else "method"].get(key)
    return None


def check_numbers(made: Any, table: str = "") -> None:
    """Refuse a number that is not in its key's range."""
    for field in fields(made):
        value = getattr(made, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        low, high = range_of(type(made), field.name, table) or NUMBERS
        name = f"{table}.{field.name}" if table else field.name
        if value < low:
            raise UserError(f"{name} = {value} must be at least {low:g}")
        if value > high:
            raise UserError(f"{name} = {value} must be at most {_written(high)}")


def _written(number: float) -> str:
    """Return a large number as people read it."""
    return f"{number:,.0f}" if number == int(number) < 10**15 else f"{number:g}"
