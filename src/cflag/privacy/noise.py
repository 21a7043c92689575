"""Gaussian noise by name, from a secret key.

The same name gives the same noise: a round that is played again after a crash, or a question that is asked again
because an answer got lost, releases the same numbers as before and nothing new. Without the key the noise cannot be
told from fresh randomness: it is SHAKE-256 of the key and the name. The key is drawn from the operating system, except
where `repeatable_noise` asks for one that anybody can derive from the seed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cflag.errors import UserError
from cflag.privacy.options import PrivacyOptions

KEY_FILE = "noise.key"
LENGTH = 32


class Noise:
    """Normal numbers of variance one, by name."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def like(self, tensor: Tensor, *name: str | int) -> Tensor:
        """Return noise of a tensor's shape, type and place."""
        count = tensor.numel()
        label = json.dumps(name).encode()
        stream = hashlib.shake_256(len(self._key).to_bytes(1, "big") + self._key + label).digest(16 * -(-count // 2))
        # Box and Muller: 53 random bits each, never 0.
        uniform = ((np.frombuffer(stream, "<u8") >> np.uint64(11)) + 0.5) * 2.0**-53
        radius, angle = np.sqrt(-2 * np.log(uniform[::2])), 2 * np.pi * uniform[1::2]
        normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
        return torch.from_numpy(normal).to(tensor).reshape(tensor.shape)


def digest(*tensors: Tensor) -> str:
    """Return a name for what noise depends on: where the content differs, so does the noise."""
    made = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        made.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return made.hexdigest()


def noise_key(options: PrivacyOptions, seed: int, folder: Path | None = None) -> bytes:
    """Return the key of a run: the one in its folder, a new one there, or without a folder one for now."""
    if options.repeatable_noise:
        return hashlib.sha256(f"cflag: noise that protects nobody, seed {seed}".encode()).digest()
    if folder is None:
        return secrets.token_bytes(LENGTH)
    path = folder / KEY_FILE
    if not path.exists():
        if any(folder.glob("checkpoint/server.*")) or (folder / "status.json").exists():
            raise UserError(
                f"{path} is gone; a private run cannot go on without it: put back a copy, or start a new run"
            )
        handle = os.open(path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "wb") as file:
            file.write(_sealed(secrets.token_bytes(LENGTH)))
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".new").rename(path)
    content = path.read_bytes()
    if content != _sealed(content[:LENGTH]):
        raise UserError(f"{path} is damaged: its checksum does not fit; a private run cannot go on without it")
    return content[:LENGTH]


def _sealed(key: bytes) -> bytes:
    """Return a key with its checksum: other noise in a round that is played again would be a second release."""
    return key + hashlib.sha256(key).digest()


def forget_key(folder: Path) -> None:
    """Delete the key of a finished run: nobody can subtract its noise any more."""
    (folder / KEY_FILE).unlink(missing_ok=True)
