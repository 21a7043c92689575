"""The engine for many machines, on Flower: what travels, the server's side, the clients' side, their processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from cflag.errors import UserError


@contextmanager
def require_flower() -> Iterator[None]:
    """Say what to install where Flower is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("flwr", "ray") and find_spec("flwr") is not None:
            raise  # where Flower is missing, the first name that is not found may be of something that comes with it
        raise UserError("this needs Flower; install it with: pip install 'cflag[flower]'") from None
