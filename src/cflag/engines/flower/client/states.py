"""A client's state folder: what it keeps of one experiment, and up to which question.

A state is named by the position of the question that made it. A question is always answered from the newest state
before its own position: asked twice it gets the same answer and changes the state once, and a server that goes back to
its checkpoint finds the client as it was then. All files carry checksums: what was damaged is refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cflag.engines.flower.messages import Position
from cflag.errors import CflagError
from cflag.files import (
    UNSEALED,
    WHAT_TO_DO,
    check_seal,
    read_bytes,
    read_json,
    sealed,
    write_atomically,
    write_sealed_json,
)

_NAME = re.compile(r"client-\d+\.([0-9a-f]+)\.(\d+)-(\d+)\.safetensors")


class StateFolder:
    """One client's states of one experiment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def home(self) -> Path:
        """The client's own folder, with its states of all experiments."""
        return self.folder.parent

    @property
    def config(self) -> str | None:
        """The experiment's config, if this client was ever told it."""
        path = self.folder / "config.toml"
        if not path.is_file():
            return None
        content = read_bytes(path)
        check_seal(path, content)
        return content.partition(b"\n")[2].decode()

    def learn(self, config: str) -> None:
        """Keep the experiment's config, below a comment with its checksum; one that was damaged is replaced."""
        path, content = self.folder / "config.toml", sealed(f"# checksum: {UNSEALED}\n{config}".encode())
        if not path.is_file() or path.read_bytes() != content:
            write_atomically(path, content)

    def stamp(self, position: Position) -> str:
        """Return how a state of this experiment, made by the question at a position, is named."""
        return f"{self.folder.name}.{stamp(position)}"

    def before(self, position: Position, attempt: str) -> Path | None:
        """Return the state a question at this position is answered from; None for a client that kept nothing yet.

        Each start of the server is an attempt. A new one goes on from its checkpoint, so what this client kept of later
        questions is undone; within an attempt a question from the past is only a repetition.
        """
        status = self._status()
        earlier = [path for at, path in self._states() if at < position]
        if not earlier and tuple(status.get("forgot", (-1, 0))) >= (0, 0):
            raise CflagError(
                f"{self.folder}: this client kept its state only from question {self._states_text()} on and cannot go "
                f"back to {stamp(position)}; was the server restarted from an old checkpoint?"
            )
        if status.get("attempt") not in (None, attempt):
            for at, path in self._states():
                if at >= position:
                    path.unlink()
        return earlier[-1] if earlier else None

    def answered(self, floor: Position, attempt: str, where: dict[str, Any]) -> None:
        """Note how far this client is, and drop states that no server can come back to: those before `floor`."""
        older = [(at, path) for at, path in self._states() if at < floor]
        for _, path in older[:-1]:
            path.unlink()
        forgot = list(older[-1][0]) if len(older) > 1 else self._status().get("forgot", [-1, 0])
        write_sealed_json(self.folder / "status.json", {**where, "attempt": attempt, "forgot": forgot})

    def _status(self) -> dict[str, Any]:
        path = self.folder / "status.json"
        return read_json(path) if path.is_file() else {}

    def _states(self) -> list[tuple[Position, Path]]:
        """Return the saved states, the oldest first."""
        found = []
        for path in self.folder.glob("client-*.safetensors"):
            match = _NAME.fullmatch(path.name)
            if match is None or match[1] != self.folder.name:
                raise CflagError(f"{path} is not of this experiment, {self.folder.name}; {WHAT_TO_DO}")
            found.append(((int(match[2]), int(match[3])), path))
        return sorted(found)

    def _states_text(self) -> str:
        states = self._states()
        return stamp(states[0][0]) if states else "(none)"


def stamp(position: Position) -> str:
    """Return a position as it stands in a file's name."""
    return f"{position[0]:07d}-{position[1]:03d}"
