"""Encryption at rest, with a key that the operator gives: AES-256-GCM, each file under a key of its own.

CFLAG_STATE_KEY_FILE names a file with the key, 64 hexadecimal digits; `--state-key` sets it, and worker processes, the
processes of a fleet and simulations inherit it. The key is never written anywhere else.

An encrypted file is a mark, a name of the key, a salt, and pieces of 1 MiB. The file's own key is derived (HKDF) from
the operator's and the salt, so a counter will do as nonce; the last piece says that it is the last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cflag.errors import DamagedError, UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VARIABLE = "CFLAG_STATE_KEY_FILE"
HOW = f"give the key with --state-key FILE or {VARIABLE}"
_MARK = b"cflag encrypted 1\n"
_NAMED, _SALT, _PIECE, _TAG = 8, 32, 2**20, 16


def encrypted(content: bytes) -> bytes:
    """Return content encrypted with the operator's key, and as it is where there is none."""
    key = _key()
    if key is None:
        return content
    salt = os.urandom(_SALT)
    head = _MARK + _derived(key, b"", b"name", _NAMED) + salt
    box = _box(key, salt)
    pieces = [content[at : at + _PIECE] for at in range(0, max(len(content), 1), _PIECE)]
    numbered = _nonces(len(pieces))
    return b"".join([head, *(box.encrypt(n, p, head) for n, p in zip(numbered, pieces, strict=True))])


def decrypted(path: Path, content: bytes) -> bytes:
    """Return what a file's content was before it was encrypted; one that never was is returned as it is."""
    if not content.startswith(_MARK):
        return content
    from cryptography.exceptions import InvalidTag

    key = _key()
    if key is None:
        raise UserError(f"{path} is encrypted; {HOW}")
    start, name = len(_MARK) + _NAMED + _SALT, _derived(key, b"", b"name", _NAMED)
    head, body = content[:start], content[start:]
    right = _MARK + name + head[len(_MARK) + _NAMED :]
    try:
        plain = _opened(key, right, body)
    except InvalidTag:
        if head != right and len(content) > start:
            raise UserError(f"{path} is encrypted with another key than that in {os.environ[VARIABLE]}") from None
        plain = None
    if plain is None or head != right:  # with our key's name it opens: the name alone was changed
        raise DamagedError(f"{path} is damaged: it was changed since it was encrypted; put back a copy of it")
    return plain


def _opened(key: bytes, head: bytes, body: bytes) -> bytes:
    box = _box(key, head[-_SALT:])
    pieces = [body[at : at + _PIECE + _TAG] for at in range(0, max(len(body), 1), _PIECE + _TAG)]
    return b"".join(box.decrypt(n, p, head) for n, p in zip(_nonces(len(pieces)), pieces, strict=True))


def is_plain(content: bytes) -> bool:
    """Whether a file is not encrypted though there is a key, so that anybody may have written it."""
    return _key() is not None and not content.startswith(_MARK)


def refuse_plain(path: Path, content: bytes) -> None:
    """Refuse a file that anybody may have written."""
    if is_plain(content):
        raise UserError(f"{path} is not encrypted, though there is a key; 'cflag memory encrypt DIR' encrypts a folder")


def use_key(path: Path) -> None:
    """From now on use the key in a file, here and in processes that are started from here."""
    os.environ[VARIABLE] = str(path.expanduser().absolute())
    _key()


def make_key(path: Path) -> None:
    """Write a new key to a file that only its owner can read."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(os.urandom(32).hex() + "\n")
    except FileExistsError:
        raise UserError(f"{path} is there already, and a key that is overwritten is lost") from None


def _key() -> bytes | None:
    where = os.environ.get(VARIABLE)
    if not where:
        return None
    try:
        key = bytes.fromhex(Path(where).read_text(encoding="ascii").strip())
    except OSError as error:
        raise UserError(f"{where}: the key cannot be read ({error.strerror}); 'cflag memory key' makes one") from None
    except ValueError:
        key = b""
    if len(key) != 32:
        raise UserError(f"{where} holds no key: 64 hexadecimal digits; 'cflag memory key FILE' makes one")
    return key


def _derived(key: bytes, salt: bytes, what: bytes, length: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, salt, b"cflag state " + what).derive(key)


def _box(key: bytes, salt: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(_derived(key, salt, b"file", 32))


def _nonces(count: int) -> Iterator[bytes]:
    """Yield a nonce for each piece; the last one's is marked, so that none can be cut off."""
    return (k.to_bytes(11, "big") + bytes([k == count - 1]) for k in range(count))
