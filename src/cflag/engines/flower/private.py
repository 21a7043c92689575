"""Flower's HTTP interfaces behind a socket in a folder that only this user may enter, instead of a port.

A port of this machine is open to everybody who is on it. Here the system itself refuses all others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import httpx

if TYPE_CHECKING:
    from flwr.supercore.protobuf.client import ProtobufClient

C = TypeVar("C", bound="ProtobufClient")

HOST = "cflag"
"""What Flower is told as an address where a socket is used; it goes nowhere but into a header."""
LONGEST = 80
"""A socket's path has a little more than 100 bytes; where the folder for temporary files is deep, it does not do."""


@contextmanager
def private_socket() -> Iterator[str]:
    """Yield the path of a socket to come, in a folder of mode 0700 that is removed afterwards."""
    where = None if len(tempfile.gettempdir()) < LONGEST else "/tmp"
    with tempfile.TemporaryDirectory(prefix="cflag-", dir=where, ignore_cleanup_errors=True) as folder:
        yield f"{folder}/socket"


def over_socket(client: C, path: str) -> C:
    """Let one of Flower's clients talk through a socket; this replaces one of its internals."""
    timeout = client._client.timeout
    client._client.close()
    client._client = httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=timeout)
    return client
