"""A client's state folder: what it keeps of one experiment, and up to which question.

A state is named by the position of the question that made it. A question is always answered from the newest state
before its own position: asked twice it gets the same answer and changes the state once, and a server that goes back to
its checkpoint finds the client as it was then. All files carry checksums: what was damaged is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cflag.engines.flower.messages import Position
from cflag.engines.flower.trail import Link, extended, stamp
from cflag.errors import CflagError
from cflag.files import (
    UNSEALED,
    WHAT_TO_DO,
    check_seal,
    read_bytes,
    read_json,
    save_states,
    seal_of,
    sealed,
    write_atomically,
    write_sealed_json,
)
from cflag.states.log import state_name

_NAME = re.compile(r"client-\d+\.([0-9a-f]+)\.(\d+)-(\d+)\.safetensors")


@dataclass(frozen=True)
class StateFiles:
    """Where a client's state goes after a question: to a file of its own, named by the question's position."""

    folder: Path
    stamp: str

    def name(self, client: int) -> str:
        """Return the name of a client's state of this question."""
        return state_name(client, self.stamp)

    def write(self, states: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Write states; they are safely on disk when this returns."""
        save_states((self.folder / self.name(client), state) for client, state in states)


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

    def sink(self, position: Position) -> StateFiles:
        """Return where a state of this experiment, made by the question at a position, goes."""
        return StateFiles(self.folder, f"{self.folder.name}.{stamp(position)}")

    def before(self, position: Position, attempt: str) -> Path | None:
        """Return the state a question at this position is answered from; None for a client that kept nothing yet.

        Each start of the server is an attempt. A new one goes on from its checkpoint, so what this client kept of later
        questions is undone; within an attempt a question from the past is only a repetition.
        """
        status, states = self._status(), self._states()
        earlier = [path for at, path in states if at < position]
        newest = status.get("newest", "")
        if newest < stamp(position) and newest not in ("", *(stamp(at) for at, _ in states)):
            raise CflagError(
                f"{self.folder}: this client's state of question {newest} is gone; put it back, or delete this folder "
                "and let the server accept the client as it is"
            )
        if not earlier and tuple(status.get("forgot", (-1, 0))) >= (0, 0):
            raise CflagError(
                f"{self.folder}: this client kept its state only from question {self._states_text()} on and cannot go "
                f"back to {stamp(position)}; was the server restarted from an old checkpoint?"
            )
        undone = [path for at, path in states if at >= position]
        if undone and status.get("attempt") not in (None, attempt):
            last = [stamp(at) for at, _ in states if at < position][-1:]
            self._note({**status, "newest": "".join(last)})
            for path in undone:
                path.unlink()
        return earlier[-1] if earlier else None

    def answered(self, position: Position, floor: Position, attempt: str, where: dict[str, Any]) -> None:
        """Note how far this client is, and drop states that no server can come back to: those before `floor`."""
        states, status, trail = self._states(), self._status(), self.trail()
        if status.get("attempt") not in (None, attempt):
            trail = [link for link in trail if link[0] < stamp(position)]
        newest = [path for at, path in states if at <= position][-1:]
        trail = extended(trail, position, floor, seal_of(newest[0]) if newest else "")
        older = [(at, path) for at, path in states if at < floor]
        for _, path in older[:-1]:
            path.unlink()
        forgot = list(older[-1][0]) if len(older) > 1 else status.get("forgot", [-1, 0])
        last = stamp(states[-1][0]) if states else ""
        self._note({**where, "attempt": attempt, "forgot": forgot, "newest": last, "trail": trail})

    def trail(self) -> list[Link]:
        """Return the last questions that this client answered."""
        return [(at, link) for at, link in self._status().get("trail", [])]

    def _note(self, status: dict[str, Any]) -> None:
        write_sealed_json(self.folder / "status.json", status)

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
