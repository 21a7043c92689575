"""Attendance: who can be asked, who is waited for, and who is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from cflag.config import Config
from cflag.engines.flower.server.exchange import Exchange
from cflag.engines.flower.server.missed import Missed
from cflag.engines.flower.server.post import NO_ANSWER, POLL
from cflag.engines.flower.server.roll import Roll
from cflag.errors import CflagError, one_line

T = TypeVar("T")


class Attendance:
    """Lets clients in once they caught up, waits until enough are here, and notes who does not answer."""

    def __init__(
        self,
        roll: Roll,
        exchange: Exchange,
        missed: Missed,
        config: Config,
        say: Callable[[str], None],
        enter: Callable[[Mapping[int, str]], None],
    ) -> None:
        self.roll = roll
        self.exchange = exchange
        self.missed = missed
        self.config = config
        self.say = say
        self.enter = enter
        """Enters into the account who was missing and why."""
        self._gone: set[int] = set()

    def welcome(self) -> None:
        """Let in clients that came (back), and let them catch up on what they missed."""
        self.roll.look()
        self.note(self.missed.catch_up(self.roll.present))

    def note(self, why: Mapping[int, str]) -> None:
        """Note who was missing and why, in one printable line; a silent client is away until it says hello."""
        told = {number: one_line(reason) for number, reason in why.items()}
        self.enter(told)
        for number, reason in told.items():
            self.say(f"client {number}: {reason}")
            self.exchange.forget(number)
            if reason.startswith(NO_ANSWER):
                self.roll.lose(number)

    def see_off(self, gone: Sequence[int]) -> None:
        """Let go of clients that have left for good; what they missed does not matter any more."""
        for number in gone:
            if number not in self._gone:
                self._gone.add(number)
                self.missed.drop(number)
                self.say(f"client {number} has left for good, as planned")

    def wait_for(self, needed: int, among: set[int]) -> None:
        """Wait until so many of these clients are here and have caught up."""
        end = time.monotonic() + self.config.patience
        self.welcome()
        while len(self.roll.present & among) < needed:
            self.roll.wait_for(needed, among)
            self.welcome()
            if time.monotonic() > end + self.config.deadline:
                raise CflagError(f"clients come and go; min_clients = {needed} were never here together")

    def ask_until_enough(
        self, what: str, asked: Sequence[int], needed: int, once: Callable[[Sequence[int]], Mapping[int, T]]
    ) -> dict[int, T]:
        """Ask those without a good answer again, until enough have one; `once` asks once and returns good answers."""
        good: dict[int, T] = {}
        end = time.monotonic() + self.config.patience
        while True:
            good.update(once([number for number in asked if number not in good]))
            if len(good) >= needed:
                return good
            if time.monotonic() > end:
                raise CflagError(
                    f"{what} has {len(good)} good answers and min_clients = {needed}; "
                    f"gave up after {self.config.patience:.0f} s"
                )
            self.wait_for(needed, set(asked))
            time.sleep(POLL)
