"""Who a node is: it signs its hello with its own key, the one that the SuperLink lets it in with.

Flower tells a server app node ids, and they are drawn anew with a new database: no link from a message to a key that
lasts as long as a run. So we make one.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from cflag.engines.flower.messages import GarbageError
from cflag.errors import CflagError

LONGEST = 2000
"""Characters that a public key may have."""
_ECDSA = ec.ECDSA(SHA256())


def claim(experiment: str, nonce: str, node: int, number: int) -> bytes:
    """Return what a node signs: that it, and no other, is this client, to this start of the server."""
    return json.dumps(["cflag hello", experiment, nonce, node, number]).encode()


def sign(file: Path, text: bytes) -> dict[str, str]:
    """Return a signature with the private key in a file, and the public key to check it with."""
    try:
        key = load_ssh_private_key(file.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise CflagError(f"{file}: not a readable private key ({error}); 'cflag keys client' makes one") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CflagError(f"{file}: not an elliptic-curve key; 'cflag keys client' makes one")
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return {"key": public.decode(), "signature": b64encode(key.sign(text, _ECDSA)).decode()}


def signer(head: Mapping[str, Any], text: bytes) -> str:
    """Return the fingerprint of the key that signed; "" where nothing is signed. A wrong signature is refused."""
    if "signature" not in head:
        return ""
    given = str(head.get("key"))[:LONGEST].encode()
    try:
        key = load_ssh_public_key(given)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("not an elliptic-curve key")
        key.verify(b64decode(str(head["signature"])), text, _ECDSA)
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise GarbageError(f"its signature does not fit ({type(error).__name__} {error})") from None
    return fingerprint(given)


def fingerprint(public: bytes) -> str:
    """Return a public key's fingerprint, as `ssh-keygen -lf` shows it."""
    return "SHA256:" + b64encode(sha256(b64decode(public.split()[1])).digest()).decode().rstrip("=")
