"""Writing files so that a reader, or a restart, never sees half of one; state as safetensors and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflag.errors import CflagError

if TYPE_CHECKING:
    from torch import Tensor

FEW = 50


def write_atomically(path: Path, content: bytes) -> None:
    """Write a new file beside the old one, then put it in its place in one step."""
    _write(path, content, durable=True)
    _sync_folder(path.parent)


def _write(path: Path, content: bytes, durable: bool) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with open(fresh, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)  # or a power cut could undo the replacement
    finally:
        os.close(folder)


def strict_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that every reader takes: numbers that JSON does not have become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that people can read, too."""
    write_atomically(path, (strict_json(value, indent=1) + "\n").encode())


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Save tensors and JSON values under their names in one safetensors file."""
    write_atomically(path, _packed(state))


def save_states(states: Iterable[tuple[Path, Mapping[str, Any]]]) -> None:
    """Save many states in one folder; they are all safely on disk when this returns.

    A handful is synced file by file. With many that takes minutes, and one sync of everything takes seconds.
    """
    written = 0
    for path, state in states:
        _write(path, _packed(state), durable=written < FEW)
        written += 1
    if written > FEW:
        os.sync()
    if written:
        _sync_folder(path.parent)


def _packed(state: Mapping[str, Any]) -> bytes:
    import torch
    from safetensors.torch import save
    from torch import Tensor

    # Cloned, because views of one flat vector share their storage, which safetensors refuses.
    # Contiguous, because a convolution's weights lie channels last.
    whole = torch.contiguous_format
    tensors = {k: v.detach().cpu().clone(memory_format=whole) for k, v in state.items() if isinstance(v, Tensor)}
    plain = {name: value for name, value in state.items() if name not in tensors}
    return save(tensors, metadata={"json": json.dumps(plain)})


def load_state(path: Path) -> dict[str, Any]:
    """Load what `save_state` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            state: dict[str, Any] = json.loads((file.metadata() or {})["json"])
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise CflagError(f"{path}: cannot be read as saved state ({error})") from error
    return {**state, **tensors}
