"""What a network of one's own computes beside its weights: the code of its classes, and their settings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor, nn

KNOWN = ("torch", "cflag")
"""Packages whose classes are known by their name."""


def code_digest(network: nn.Module) -> str:
    """Return a hash of the code and settings of a network's own classes; nothing where torch and cflag have all.

    It knows nothing of functions elsewhere that the code calls, and another Python may have another one.
    """
    own = [module for module in network.modules() if not _is_known(type(module))]
    if not own:
        return ""
    return hashlib.sha256("\n".join(text for module in own for text in _told(module)).encode()).hexdigest()


def _is_known(kind: type[Any]) -> bool:
    return kind.__module__.partition(".")[0] in KNOWN


def _told(module: nn.Module) -> Iterator[str]:
    """Yield what tells a module of one's own from another that has its name."""
    kinds = [kind for kind in type(module).__mro__ if not _is_known(kind) and kind is not object]
    for name, value in [pair for kind in kinds for pair in vars(kind).items()]:
        if isinstance(value, FunctionType):
            yield f"{name} {_value(value)}"
    for name, value in sorted(vars(module).items()):
        if not name.startswith("_") and name != "training":
            yield f"{name} {_value(value)}"


def _value(value: Any) -> str:
    """Return a setting as text that is the same in every process; addresses, and the order of sets, are not."""
    if isinstance(value, FunctionType):
        return _code(value.__code__)
    if isinstance(value, Tensor):
        return hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
    if isinstance(value, tuple | list):
        return str([_value(inner) for inner in value])
    if isinstance(value, set | frozenset):
        return str(sorted(_value(inner) for inner in value))
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    return _name(value) if callable(value) else type(value).__qualname__


def _name(value: Callable[..., Any]) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _code(code: CodeType) -> str:
    """Return what a function does, wherever it stands: neither its file nor its lines."""
    constants = [_code(value) if isinstance(value, CodeType) else _value(value) for value in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"
