"""The audit log: a signed line for all that was taken out of memories, each bound to the line before it.

`audit.jsonl` in the folder that a command named. A line holds hashes, never data. It is signed (Ed25519) together with
the hash of the line before, so a line that was changed, left out or put in is noticed; `audit.head`, signed too, says
how many lines there are, so that one cut off at the end is. Whoever has the private key, or an older copy of both
files, could still write a shorter history: the hash of a line is a receipt, to be kept by someone else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflag.errors import UserError
from cflag.files import read_bytes, write_atomically
from cflag.memory.gate import log_alone

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

LOG, HEAD, KEY = "audit.jsonl", "audit.head", "audit.key"
MODEL = "not unlearned: what the model learned from these samples stays in its parameters"
"""What every line says of the model."""
_GIVE_KEY = "give the key that signed it with --audit-key FILE"
_WHICH = "put back a copy of it, or name the folder that 'forget' was given"


def load_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a PEM file; one is made where there is none yet."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not path.exists():
        made = Ed25519PrivateKey.generate()
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(made.private_bytes(pem, pkcs8, serialization.NoEncryption()))
        return made
    with suppress(ValueError, TypeError):
        key = serialization.load_pem_private_key(read_bytes(path), None)
        if isinstance(key, Ed25519PrivateKey):
            return key
    raise UserError(f"{path} is not an Ed25519 private key in PEM without a password; name a new file to have one made")


class AuditLog:
    """The log of one folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        self.head = folder / HEAD

    def key(self, path: Path) -> Ed25519PrivateKey:
        """Return the key that signs the next line; refuse what could not be signed, before it is done.

        One is made where there is neither key nor log: a log goes on with the key it was begun with.
        """
        if not os.access(self.path.parent, os.W_OK):
            raise UserError(f"{self.path.parent} cannot be written, so nothing can be signed; let its owner do it")
        lines = self.verify()
        if lines and not path.exists():
            raise UserError(f"{path} does not exist, and {self.path} was signed before; {_GIVE_KEY}")
        key = load_key(path)
        self._refuse_other(key, lines[-1] if lines else {})
        return key

    def _refuse_other(self, key: Ed25519PrivateKey, last: Mapping[str, Any]) -> None:
        if last and last["key"] != public_name(key.public_key()):
            raise UserError(f"{self.path} was signed with another key than this one; {_GIVE_KEY}")

    def append(self, key: Ed25519PrivateKey, what: Mapping[str, Any]) -> str:
        """Add a signed line; return its hash, the receipt."""
        with log_alone(self.path.parent):
            return self._append(key, what)

    def _append(self, key: Ed25519PrivateKey, what: Mapping[str, Any]) -> str:
        lines = read_bytes(self.path).splitlines() if self.path.exists() else []
        self._refuse_other(key, self._check(lines[-1], "the last line") if lines else {})
        when = datetime.now(UTC).isoformat(timespec="seconds")
        place = {"number": len(lines) + 1, "when": when, "previous": hashed(lines[-1]) if lines else ""}
        line = signed(key, {**place, **what, "model": MODEL})
        write_atomically(self.path, b"\n".join([*lines, line, b""]))
        write_atomically(self.head, signed(key, {"lines": len(lines) + 1, "last": hashed(line)}) + b"\n")
        return hashed(line)

    def asked(self) -> list[dict[str, list[str]]]:
        """Return what the log says was to be forgotten, hashes of samples and subjects; signatures are not checked."""
        lines = read_bytes(self.path).splitlines() if self.path.exists() else []
        try:
            read = [json.loads(line) for line in lines]
            found = [line["asked"] for line in read if line["act"] == "forget"]
            return [{kind: [str(h) for h in asked[kind]] for kind in ("samples", "subjects")} for asked in found]
        except (ValueError, KeyError, TypeError):
            raise self._broken("it holds lines that are none of ours") from None

    def verify(self, trusted: str = "", receipts: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Return the lines if all are as they were written, by one key; `trusted` says which that must be."""
        if not self.path.exists() and not self.head.exists():
            if trusted or receipts:
                what = f"no line has the receipt {receipts[0]}" if receipts else f"nothing is signed by {trusted}"
                raise UserError(f"{self.path} does not exist, so {what}; {_WHICH}")
            return []
        lines = read_bytes(self.path).splitlines()
        read = [self._check(line, f"line {k}") for k, line in enumerate(lines, 1)]
        head = self._check(read_bytes(self.head).strip(), HEAD)
        for k, line in enumerate(read, 1):
            if line.get("number") != k or line.get("previous") != (hashed(lines[k - 2]) if k > 1 else ""):
                raise self._broken(f"line {k} does not follow the line before it: one was removed or put in")
        keys = {str(line["key"]) for line in [*read, head]}
        if len(keys) > 1 or (trusted and keys != {trusted}):
            raise self._broken("it was signed by another key")
        count = head.get("lines", 0)
        if len(lines) < count or hashed(lines[count - 1]) != head.get("last"):
            raise self._broken(f"it had {count} lines, the last of which is gone or another")
        for receipt in receipts:
            if receipt not in map(hashed, lines):
                raise self._broken(f"no line has the receipt {receipt}")
        return read

    def _check(self, line: bytes, where: str) -> dict[str, Any]:
        """Return a signed line's values; refuse one that its key did not sign."""
        from cryptography.exceptions import InvalidSignature

        try:
            value = json.loads(line)
            signature = base64.b64decode(value.pop("signature"))
            _public(value["key"]).verify(signature, _canonical(value))
        except (ValueError, KeyError, TypeError, AttributeError, InvalidSignature):
            raise self._broken(f"{where} is not what was signed") from None
        return dict(value)

    def _broken(self, why: str) -> UserError:
        return UserError(f"{self.path} cannot be trusted: {why}; put back a copy, or keep it elsewhere and begin anew")


def signed(key: Ed25519PrivateKey, value: Mapping[str, Any]) -> bytes:
    """Return values as a line of JSON with the public key and the signature of all the rest."""
    whole = {**value, "key": public_name(key.public_key())}
    return _canonical({**whole, "signature": base64.b64encode(key.sign(_canonical(whole))).decode()})


def public_name(key: Ed25519PublicKey) -> str:
    """Return a public key as it stands in the log."""
    return base64.b64encode(key.public_bytes_raw()).decode()


def hashed(line: bytes) -> str:
    """Return the hash of a line: its receipt."""
    return hashlib.sha256(line).hexdigest()


def _public(name: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(base64.b64decode(name))


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
