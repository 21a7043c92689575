"""The post: letters to clients' nodes, and their replies within a deadline."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

POLL = 0.1
"""Seconds between two looks for replies."""
LOOK_ROUND = 3.0
"""Seconds between two looks at which nodes are still connected."""
NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Letter:
    """A message to one node; `kind` is Flower's word for what is asked: query, train or evaluate."""

    node: int
    kind: str
    content: RecordDict


class Post:
    """Sends letters over Flower's grid and collects what comes back."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> set[int]:
        """Return the nodes that are connected."""
        return set(self.grid.get_node_ids())

    def send(self, letters: Mapping[int, Letter], seconds: float) -> dict[str, int]:
        """Send letters, by client's number; return the number each message's id stands for."""
        messages = [
            Message(letter.content, letter.node, letter.kind, ttl=seconds + 60.0) for letter in letters.values()
        ]
        ids = self.grid.push_messages(messages)
        return {key: number for key, number in zip(ids, letters, strict=True) if key}

    def collect(self, pending: dict[str, int], at_once: int = 10**9) -> Iterator[tuple[int, Message]]:
        """Yield the replies that are there, and take them off the list; fetch no more than so many at a time."""
        waiting = list(pending)
        for start in range(0, len(waiting), at_once):
            fetched = list(self.grid.pull_messages(waiting[start : start + at_once]))[::-1]
            while fetched:
                message = fetched.pop()
                number = pending.pop(message.metadata.reply_to_message_id, None)
                if number is not None:
                    yield number, message

    def exchange(
        self, letters: Mapping[int, Letter], seconds: float, at_once: int = 10**9
    ) -> Iterator[tuple[int, Message]]:
        """Send letters and yield replies as they come, until all are there, time is up, or the rest is gone."""
        pending = self.send(letters, seconds)
        end, look = time.monotonic() + seconds, time.monotonic() + LOOK_ROUND
        while pending:
            yield from self.collect(pending, at_once)
            now = time.monotonic()
            if now > look:
                look, connected = now + LOOK_ROUND, self.nodes()
                pending = {key: n for key, n in pending.items() if letters[n].node in connected}
            if now > end:
                return
            time.sleep(POLL if pending else 0)


def failures(numbers: Iterable[int], heard: Container[int], why: str = NO_ANSWER) -> dict[int, str]:
    """Return a reason for each client that was not heard of."""
    return {number: why for number in numbers if number not in heard}
