"""The register: what the server remembers of each client for as long as a run lives, and what its operator decides.

A client that comes with another key, or with a state that is not the one it had, is left out until the operator says
`cflag accept RUN NUMBER`: then it is taken as it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cflag.engines.flower.identity import fingerprint
from cflag.engines.flower.trail import Link
from cflag.files import read_json, write_sealed_json

ACCEPTED = "accepted.json"
"""In the run folder: the operator's decisions, each with a token of its own."""


class Register:
    """Which key each client's number is bound to, and where the client was when it last answered."""

    def __init__(self, run: Path, keys: Path | None = None) -> None:
        self.run = run
        self.keys: dict[int, str] = {}
        self.answered: dict[int, Link] = {}
        self._accepted: dict[str, str] = {}
        self._folder = keys
        self._names: dict[str, str] = {}
        self._read_names()

    def _read_names(self) -> None:
        """Read which keys are registered: a new client's may be put there while the run goes on."""
        for file in sorted(self._folder.glob("*.pub")) if self._folder else []:
            with suppress(OSError, ValueError, IndexError):  # one that is still being copied is read the next time
                self._names[fingerprint(file.read_bytes())] = file.stem

    def doubt(self, number: int, key: str, trail: Sequence[Link]) -> str:
        """Return why a node should not be taken for this client; "" if nothing speaks against it."""
        why = self._doubt_key(number, key) or self._doubt_state(number, trail)
        return f"{why}; to take it as it is: cflag accept {self.run} {number}" if why else ""

    def bind(self, number: int, key: str) -> None:
        """From now on this client has this key."""
        self.keys[number] = key

    def follow(self, number: int, at: str, trail: Sequence[Link]) -> str:
        """Note that a client answered a question; return why its answer should not be used."""
        if why := self.doubt(number, self.keys.get(number, ""), trail):
            return why
        if at not in dict(trail):
            return f"it does not say that it answered question {at}"
        self.answered[number] = (at, dict(trail)[at])
        return ""

    def _doubt_key(self, number: int, key: str) -> str:
        if self._folder and key not in self._names:
            self._read_names()
        if self._names and key not in self._names:
            return f"its key {key} is not registered" if key else "it does not sign with its key"
        bound = self.keys.get(number)
        if bound is not None and key != bound:
            return f"it has the key {self._name(key)}, and client {number} has {self._name(bound)}"
        others = [other for other, its in self.keys.items() if its == key and other != number]
        return f"it has the key of client {others[0]}, {self._name(key)}" if key and others else ""

    def _doubt_state(self, number: int, trail: Sequence[Link]) -> str:
        last = self.answered.get(number)
        if last is None or last in trail:
            return ""
        if not trail:
            return f"its state of this run is gone; it has answered up to question {last[0]}"
        if trail[-1][0] < last[0]:
            return f"its state is an old copy: it is at question {trail[-1][0]} and has answered up to {last[0]}"
        return f"its state is not the one it had after question {last[0]}"

    def _name(self, key: str) -> str:
        return self._names.get(key, key) or "(none)"

    def newly_accepted(self) -> list[int]:
        """Forget what is known of the clients that the operator accepted since the last look; return them."""
        file = self.run / ACCEPTED
        decided = read_json(file) if file.is_file() else {}
        new = [int(number) for number, token in decided.items() if self._accepted.get(number) != token]
        self._accepted = decided
        for number in new:
            self.keys.pop(number, None)
            self.answered.pop(number, None)
        return new

    def kept(self) -> dict[str, Any]:
        """Return what a restarted server must know, for the checkpoint."""
        keys = {str(number): key for number, key in sorted(self.keys.items())}
        answered = {str(number): list(link) for number, link in sorted(self.answered.items())}
        return {"keys": keys, "answered": answered, "accepted": self._accepted}

    def take_back(self, kept: Mapping[str, Any]) -> None:
        """Take back what `kept` returned; what the operator decided since then counts again."""
        self.keys = {int(number): key for number, key in kept.get("keys", {}).items()}
        self.answered = {int(number): (at, link) for number, (at, link) in kept.get("answered", {}).items()}
        self._accepted = kept.get("accepted", {})


def accept(run: Path, numbers: Iterable[int]) -> None:
    """Let the server of a run, which may be going on, take clients as they are with their next hello."""
    file = run / ACCEPTED
    decided = read_json(file) if file.is_file() else {}
    write_sealed_json(file, {**decided, **{str(number): secrets.token_hex(8) for number in numbers}})
