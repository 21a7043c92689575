"""Values as users write them, turned into the types that dataclass fields have; refused with what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cflag.errors import UserError, one_line, unknown
from cflag.ranges import check_numbers

KINDS: dict[Any, str] = {int: "a whole number", float: "a finite number", str: "a string", bool: "true or false",
                         tuple[str, ...]: "a list of strings, as in ['a', 'b']",
                         tuple[float, ...]: "a list of numbers, as in [0.5, 1]",
                         tuple[tuple[int | str, ...], ...]: "a list of lists of class numbers or names"}  # fmt: skip


@cache
def hints(cls: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields."""
    return get_type_hints(cls)


def keys(cls: type[Any]) -> list[str]:
    """Return the names of a dataclass's fields."""
    return [f.name for f in fields(cls)]


def options(cls: type[Any], table: Mapping[str, Any], name: str) -> Any:
    """Return a table of a config as a checked dataclass."""
    for key in table:
        if key not in keys(cls):
            raise unknown("key", f"{name}.{key}", [f"{name}.{k}" for k in keys(cls)])
    types = hints(cls)  # type: ignore[arg-type]  # mypy does not take a class for hashable
    made = cls(**{k: coerced(f"{name}.{k}", v, types[k]) for k, v in table.items()})
    if hasattr(made, "check"):
        made.check(name)
    check_numbers(made, name)
    return made


def coerced(key: str, value: Any, hint: Any) -> Any:
    """Return a value as the type its field has, or say what it should have been."""
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words: list[str] = []
    for choice in choices:
        if get_origin(choice) is tuple:
            with suppress(UserError):
                if isinstance(value, list | tuple):
                    return tuple(coerced(key, item, get_args(choice)[0]) for item in value)
        elif get_origin(choice) is Literal:
            words += get_args(choice)
            if value in get_args(choice):
                return value
        elif choice is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            if _finite(value):
                return float(value)
        elif type(value) is choice:
            return value
    wanted = [KINDS.get(c, str(c)) for c in choices if get_origin(c) is not Literal] + [f"'{w}'" for w in words]
    close = difflib.get_close_matches(str(value), words, n=1)
    hint_text = f" (did you mean '{close[0]}'?)" if close else ""
    raise UserError(f"{key} = {one_line(repr(value), 80)} must be {' or '.join(wanted)}{hint_text}")


def _finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number beyond all others
        return False
