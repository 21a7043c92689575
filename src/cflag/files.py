"""Writing files so that a reader, or a restart, never sees half of one, nor believes one that was changed since.

State is safetensors and JSON. A file of ours has a place for a checksum near its beginning, which is made of all the
rest of it: a sealed file. State also carries its own name, so that no file is taken for another. Clients' states, which
hold samples, are encrypted where the operator gives a key (`cflag.cipher`): the sealed file, name and all, is what is
encrypted and authenticated.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflag import cipher
from cflag.errors import DamagedError, UserError

if TYPE_CHECKING:
    from torch import Tensor

FEW = 50
UNSEALED = "0" * 64
"""What stands in the place of a checksum that is still to be made."""
_SEAL = re.compile(rb"checksum\W{1,8}([0-9a-f]{64})")
_WITHIN = 200
"""The checksum's place is within so many bytes from a file's beginning."""
WHAT_TO_DO = "put back a copy of it, or start a new run"
"""How errors about damaged files end."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a new file beside the old one, then put it in its place in one step."""
    _write(path, content, durable=True)
    sync_folder(path.parent)


def _write(path: Path, content: bytes, durable: bool) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with open(fresh, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        error.filename, error.filename2 = str(path), None  # nobody knows of the other
        raise


def sweep(folder: Path, stem: str = "", age: float = 0.0) -> None:
    """Remove what processes that were killed left half written, so many seconds ago; nobody may still be writing it."""
    latest = time.time() - age
    for path in folder.glob(f"{stem}*.new"):
        with suppress(FileNotFoundError):  # whoever wrote it is done, or another one sweeps
            if not age or path.stat().st_mtime < latest:
                path.unlink()


def sync_folder(path: Path) -> None:
    """See that what was created, replaced or dropped in a folder is safely so."""
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


def json_lines(value: Any) -> bytes:
    """Return the content of a JSON file that people can read, too."""
    return (strict_json(value, indent=1) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that people can read, too."""
    write_atomically(path, json_lines(value))


def write_sealed_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file that carries its checksum."""
    write_atomically(path, sealed(json_lines({"checksum": UNSEALED, **value})))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file; refuse one that is damaged. One without a checksum may be an older version's."""
    content = read_bytes(path)
    if _SEAL.search(content, 0, _WITHIN):
        check_seal(path, content)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: it is not JSON ({error}); {WHAT_TO_DO}") from None
    if not isinstance(value, dict):
        raise DamagedError(f"{path} is damaged: it holds no names and values; {WHAT_TO_DO}")
    return {name: inner for name, inner in value.items() if name != "checksum"}


def read_bytes(path: Path) -> bytes:
    """Return a file's content, or say in one line why not."""
    try:
        return path.read_bytes()
    except OSError as error:
        kind = DamagedError if isinstance(error, FileNotFoundError) else UserError
        raise kind(f"{path} cannot be read: {error.strerror}; {WHAT_TO_DO}") from None


def checksum(content: bytes) -> str:
    """Return the checksum of some content."""
    return hashlib.sha256(content).hexdigest()


def file_checksum(path: Path) -> str:
    """Return the checksum of a file of any size."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(content: bytes) -> bytes:
    """Return a file's content with its checksum in the place that it has for one."""
    place = _SEAL.search(content, 0, _WITHIN)
    if place is None:
        raise ValueError("this file has no place for a checksum")
    start, end = place.span(1)
    return b"".join((content[:start], _sum_around(content, start, end).encode(), memoryview(content)[end:]))


def check_seal(path: Path, content: bytes) -> None:
    """Refuse a file whose content is not what was written."""
    place = _SEAL.search(content, 0, _WITHIN)
    if place is None:
        raise DamagedError(f"{path} is damaged, or of another version of cflag: it has no checksum; {WHAT_TO_DO}")
    if _sum_around(content, *place.span(1)) != place[1].decode():
        raise DamagedError(f"{path} is damaged: its checksum does not fit; {WHAT_TO_DO}")


def seal_of(path: Path) -> str:
    """Return the checksum that a sealed file says it has, encrypted or not."""
    place = _SEAL.search(cipher.decrypted(path, read_bytes(path))[:_WITHIN])
    if place is None:
        raise DamagedError(f"{path} is damaged, or of another version of cflag: it has no checksum; {WHAT_TO_DO}")
    return place[1].decode()


def _sum_around(content: bytes, start: int, end: int) -> str:
    """Return the checksum of all but the checksum."""
    summed = hashlib.sha256(content[:start])
    summed.update(memoryview(content)[end:])
    return summed.hexdigest()


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Save tensors and JSON values under their names in one safetensors file."""
    write_atomically(path, packed(path.name, state))


def save_states(states: Iterable[tuple[Path, Mapping[str, Any]]]) -> None:
    """Save clients' states in one folder, encrypted where there is a key; all are safely on disk when this returns.

    A handful is synced file by file. With many that takes minutes, and one sync of everything takes seconds.
    """
    written = 0
    for path, state in states:
        _write(path, cipher.encrypted(packed(path.name, state)), durable=written < FEW)
        written += 1
    if written > FEW:
        os.sync()
    if written:
        sync_folder(path.parent)


def packed(name: str, state: Mapping[str, Any]) -> bytes:
    """Return a state as the content of a sealed file of this name."""
    import torch
    from safetensors.torch import save
    from torch import Tensor

    # Cloned, because views of one flat vector share their storage, which safetensors refuses.
    # Contiguous, because a convolution's weights lie channels last.
    whole = torch.contiguous_format
    tensors = {k: v.detach().cpu().clone(memory_format=whole) for k, v in state.items() if isinstance(v, Tensor)}
    values = {key: value for key, value in state.items() if key not in tensors}
    # All in one piece of metadata: safetensors writes several in any order, and equal states are equal files.
    about = json.dumps({"checksum": UNSEALED, "name": name, "values": values})
    return sealed(save(tensors, metadata={"json": about}))


def load_client_state(path: Path) -> dict[str, Any]:
    """Load what `save_states` wrote; where there is a key, nobody without it can have written it."""
    return opened_client_state(path, path.name, read_bytes(path))


def opened_client_state(where: Path, name: str, content: bytes) -> dict[str, Any]:
    """Return the client's state that was saved under a name; `where` is for people."""
    if cipher.is_plain(content):
        check_seal(where, content)  # one that was never encrypted is whole; another is damaged
        cipher.refuse_plain(where, content)
    return opened_state(where, name, content)


def load_state(path: Path) -> dict[str, Any]:
    """Load what `save_state` wrote under this name; refuse what was damaged since, and another one in its place."""
    return opened_state(path, path.name, read_bytes(path))


def opened_state(where: Path, name: str, content: bytes) -> dict[str, Any]:
    """Return the state that was saved under a name, encrypted or not; `where` is for people."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = cipher.decrypted(where, content)
    check_seal(where, content)
    try:
        length = int.from_bytes(content[:8], "little")
        about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["json"])
        saved_as, values = about["name"], about["values"]
        tensors: dict[str, Tensor] = load(content)
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DamagedError(f"{where} is not saved state ({error}); {WHAT_TO_DO}") from None
    if saved_as != name:
        raise DamagedError(f"{where} is not what its name says: it was saved as {saved_as}; {WHAT_TO_DO}")
    return {**values, **tensors}
