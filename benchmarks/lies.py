"""Clients that lie: a host whose answers, for some of its clients, are not what the method asks for.

The liars know what the honest answer to the same question (the worst case), and agree among themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from cflag.conversation import Answer, Ask, Reply, RoundContext, Value
from cflag.engines.bundles import Bundle, bundled
from cflag.engines.host import GlobalModel, Host, Whom


@dataclass(frozen=True)
class Seen:
    """What a liar knows: what it should answer, what it answered first to this question, and the honest answers."""

    own: Answer
    first: Answer
    honest: Sequence[Answer]

    def all_of(self, name: str) -> Tensor:
        """Return what the honest answer under a name, (clients, ...)."""
        return torch.stack([torch.as_tensor(answer[name]) for answer in self.honest])


Lie = Callable[[Seen], Answer]


def told(change: Callable[[Seen, str], Tensor]) -> Lie:
    """Return a lie that is told about each part of an answer."""

    def lie(seen: Seen) -> Answer:
        parts = [name for name, value in seen.own.items() if not isinstance(value, Tensor) or value.numel()]
        return {**seen.own, **{name: _like(change(seen, name), seen.own[name]) for name in parts}}

    return lie


def _like(value: Tensor, own: Value) -> Value:
    return value.to(own.dtype) if isinstance(own, Tensor) else float(value)


def _flip(seen: Seen, name: str) -> Tensor:
    return -torch.as_tensor(seen.own[name])


def _huge(seen: Seen, name: str) -> Tensor:
    return 1e30 * torch.as_tensor(seen.own[name])


def _little(seen: Seen, name: str) -> Tensor:
    honest = seen.all_of(name).double()
    return honest.mean(0) - 1.5 * honest.std(0, correction=0)


def _against(seen: Seen, name: str) -> Tensor:
    honest = seen.all_of(name).double()
    mean = honest.mean(0)
    usual = honest.flatten(1).norm(dim=1).median() if mean.dim() else honest.abs().median()
    turned: Tensor = mean / mean.norm().clamp(min=1e-300)
    return -0.99 * float(usual) * turned


def _stale(seen: Seen) -> Answer:
    return seen.first if seen.first.keys() == seen.own.keys() else seen.own


def _labels(seen: Seen) -> Answer:
    return seen.own  # the data are the lie


LIES: dict[str, Lie] = {
    "flip": told(_flip),
    "huge": told(_huge),
    "labels": _labels,
    "stale": _stale,
    "little": told(_little),
    "against": told(_against),
}
"""The sign turned; times 1e30; labels exchanged; the answer of the first round again; 1.5 standard deviations below
the honest mean in each coordinate; against the honest mean, a little shorter than the median honest answer."""


class LyingHost:
    """A host some of whose clients lie; what they keep, and the rest, is as ever."""

    def __init__(self, host: Host, liars: Collection[int], lie: str) -> None:
        self.host = host
        self.liars = frozenset(liars)
        self.lie = lie
        self.firsts: dict[tuple[int, str], Answer] = {}
        self.exchanged: dict[int, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)

    def answer(self, whom: Sequence[Whom], ask: Ask, model: GlobalModel, context: RoundContext) -> Iterator[Reply]:
        """Let each client answer; liars hear the others first."""
        if self.lie == "labels":
            self._exchange_labels(whom, context.task)
        numbers = [number for number, _ in whom]
        answers = zip(numbers, self.host.answer(whom, ask, model, context), strict=True)
        replies = {n: held(reply) for n, reply in answers if reply is not None}
        honest = [reply.answer for number, reply in replies.items() if number not in self.liars]
        for number, reply in replies.items():
            if number in self.liars:
                first = self.firsts.setdefault((number, ask.question), reply.answer)
                yield replace(reply, answer=LIES[self.lie](Seen(reply.answer, first, honest)))
            else:
                yield reply

    def answers(
        self, whom: Sequence[Whom], ask: Ask, model: GlobalModel, context: RoundContext
    ) -> Iterator[list[Reply]]:
        """Do the same, one reply at a time."""
        return ([reply] for reply in self.answer(whom, ask, model, context))

    def bundles(
        self, groups: Sequence[Sequence[Whom]], ask: Ask, model: GlobalModel, context: RoundContext
    ) -> Iterator[list[Reply | Bundle | None]]:
        """Do the same where answers are summed: what is summed are the lies."""
        answers = self.answers([one for group in groups for one in group], ask, model, context)
        return bundled(answers, [[number for number, _ in group] for group in groups], ask.question, context)

    def _exchange_labels(self, whom: Sequence[Whom], task: int) -> None:
        """Give each label of the task the place of the next one, in the data that a liar was just dealt."""
        classes = torch.nonzero(self.host.learner.heads.own[task]).flatten().tolist()
        following: Mapping[int, int] = dict(zip(classes, [*classes[1:], classes[0]], strict=True))
        for number, saved in whom:
            client = self.host.client(number, task, saved) if number in self.liars else None
            if client is not None and self.exchanged.get(number) is not client.data.y:
                wrong = torch.tensor([following[int(y)] for y in client.data.y])
                client.data = replace(client.data, y=wrong)
                self.exchanged[number] = wrong


def held(reply: Reply) -> Reply:
    """Return a reply that stays as it is when the next client answers."""
    return replace(reply, answer={k: v.clone() if isinstance(v, Tensor) else v for k, v in reply.answer.items()})


def lying(host: Host, liars: Collection[int], lie: str) -> Host:
    """Return a host some of whose clients lie."""
    return cast(Host, LyingHost(host, liars, lie))
