"""A client's trail: the last questions it answered, each with a link of a chain over all its answers and states.

The server remembers the last link it heard of. It is in the trail of a client that went on from there, also of one that
is ahead because its answers were lost. It is not in the trail of one whose state was wiped, or put back from an old
copy.
"""

from __future__ import annotations

import hashlib
from typing import Any

from cflag.engines.flower.messages import GarbageError, Position

Link = tuple[str, str]
"""A question's stamp, and the digest of all up to the state after it."""
SPARE = 32
"""Links kept from before the questions that a server may ask again: so many answers in a row may get lost."""
MOST = 2**14
"""Links that a server reads."""


def stamp(position: Position) -> str:
    """Return a position as it stands in a file's name; stamps sort as positions do."""
    return f"{position[0]:07d}-{position[1]:03d}"


def extended(trail: list[Link], position: Position, floor: Position, seal: str) -> list[Link]:
    """Return a trail after the question at a position was answered, and left the state that has this seal.

    A question that is answered again gets the same link; nothing from `floor` on is dropped.
    """
    here = stamp(position)
    before = [link for link in trail if link[0] < here]
    after = [link for link in trail if link[0] > here]
    last = before[-1][1] if before else ""
    made = hashlib.blake2b(f"{last} {here} {seal}".encode(), digest_size=8).hexdigest()
    link = dict(trail).get(here, made)  # the state may have been changed since: something in it was forgotten
    links = [*before, (here, link), *after]
    old = sum(link[0] < stamp(floor) for link in links)
    return links[max(0, old - SPARE) :]


def read_trail(value: Any) -> list[Link]:
    """Return a trail that was sent, or refuse what is none."""
    if not isinstance(value, list) or len(value) > MOST:
        raise GarbageError("it does not say which questions it answered")
    links = [tuple(link) if isinstance(link, list) else () for link in value]
    if not all(len(link) == 2 and all(isinstance(part, str) and len(part) <= 40 for part in link) for link in links):
        raise GarbageError("it does not say which questions it answered")
    return [(link[0], link[1]) for link in links]
