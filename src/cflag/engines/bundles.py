"""Bundles: neighbours in a large cohort whose answers are summed before they join the whole sum.

A sum of floating-point numbers depends on its order, so the order must not depend on who computes: Σ p_i answer_i is
the sum of the bundles' sums, one after the other, and each of those is the sum of its clients', one after the other.
How large bundles are is told by the number of clients alone. A worker that has a whole bundle sends its sum and a note
of each client; where a bundle is spread over workers, or over machines, the server sums it, with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cflag.conversation import Answer, Cost, Reply, RoundContext, nbytes
from cflag.engines.finite import check_finite
from cflag.means.mean import RunningMean

FEWEST = 50
"""Bundles of a cohort that has any: with fewer, workers would not have even shares."""

Note = tuple[int, int, int, dict[str, float | str], int]
"""What a client says beside its answer, in plain values, which travel fastest."""


@dataclass(frozen=True)
class Bundle:
    """The weighted sum of some clients' answers, and what each of them says beside its answer."""

    total: Answer
    notes: Sequence[Note | None]
    """None: all of that client's samples are forgotten."""
    bytes_each: int
    """The size of one answer."""


def bundle_size(clients: int) -> int:
    """Return how many clients of a cohort make a bundle: below a hundred each is by itself."""
    return max(1, clients // FEWEST)


def in_bundles(numbers: Sequence[int]) -> list[Sequence[int]]:
    """Return a cohort's clients bundle by bundle."""
    size = bundle_size(len(numbers))
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def bundled(
    replies: Iterable[Sequence[Reply | None]], groups: Sequence[Sequence[int]], question: str, context: RoundContext
) -> Iterator[list[Reply | Bundle | None]]:
    """Yield the replies of groups of clients as bundles, those that are complete together; one by itself as it is."""
    turns = ((group, number) for group in groups for number in group)
    growing = _Growing()
    for some in replies:
        complete: list[Reply | Bundle | None] = []
        for reply, (group, number) in zip(some, turns, strict=False):
            if len(group) == 1:
                complete.append(reply)
                continue
            if reply is not None:
                check_finite(reply, number, question, context.when)
            growing.add(number, reply, context)
            if len(growing.notes) == len(group):
                complete.append(growing.bundle())
                growing = _Growing()
        yield complete


class _Growing:
    """A bundle that is not complete."""

    def __init__(self) -> None:
        self.sum = RunningMean()
        self.notes: list[Note | None] = []
        self.size = 0

    def add(self, number: int, reply: Reply | None, context: RoundContext) -> None:
        """Count a client's answer."""
        self.notes.append(None if reply is None else note_of(reply))
        if reply is not None:
            self.sum.add(reply.answer, reply.samples / context.samples, number)
            self.size = nbytes(reply.answer)

    def bundle(self) -> Bundle:
        """Return it, now that it is complete."""
        return Bundle(self.sum.total, self.notes, self.size)


def note_of(reply: Reply) -> Note:
    """Return what a client says beside its answer."""
    return reply.samples, reply.cost.current, reply.cost.memory, dict(reply.logs), reply.uses


def reply_of(note: Note, answer: Answer) -> Reply:
    """Return a reply that travelled as an answer and a note."""
    samples, current, memory, logs, uses = note
    return Reply(answer, samples, Cost(current, memory), logs, uses)
