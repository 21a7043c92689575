"""The clients' states of a run on this machine: where they lie in its logs, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cflag.states import log
from cflag.states.log import Place

HEAD = 64
"""Bytes of a record before its content."""


def logs(run: Path) -> list[Path]:
    """Return the logs of a run."""
    return sorted((run / "checkpoint").glob("clients-*.log"))


def places(run: Path) -> list[Place]:
    """Return the states in a run's logs that are not emptied, by client and round."""
    found = log.full(place for path in logs(run) for place in log.walk(path).places)
    return sorted(found, key=lambda place: (place.client, place.when))


def newest_states(run: Path) -> dict[int, dict[str, Any]]:
    """Return each client's last state."""
    return {client: place.load() for client, place in sorted(log.latest(places(run)).items())}


def put(place: Place, content: bytes) -> None:
    """Put another content into a state's place, where it must fit."""
    assert len(content) == place.size
    with open(place.log, "r+b") as file:
        file.seek(place.at + HEAD)
        file.write(content)


def spoil_state(place: Place) -> None:
    """Change one bit in the middle of a state."""
    content = bytearray(log.content(place))
    content[len(content) // 2] ^= 1
    put(place, bytes(content))
