"""What a method's rounds cost, measured once for a folder of campaigns and kept there.

A campaign that goes on another day, or is only looked at, then needs neither the time nor the data; and budgets stay
what they were when its first runs were made.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path

from cflag.compare import Budget, Price, price, stand_in
from cflag.config import Config
from cflag.errors import DamagedError
from cflag.files import read_json, strict_json, write_json

FILE = "prices.json"


class PriceList:
    """The prices that a folder knows; what it does not is measured, and kept where the folder exists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, config: Config, budget: Budget) -> Price:
        """Price a method whatever its rounds, so that one price serves budgets of every size."""
        plain = replace(config, rounds=1)
        name = sha256(strict_json([plain.numbers(), budget]).encode()).hexdigest()
        known = self._known()
        if name not in known:
            measured = _measure(plain, budget)
            known[name] = vars(measured)
            if self._folder.is_dir():
                write_json(self._folder / FILE, known)
            return measured
        return Price(**known[name])

    def _known(self) -> dict[str, dict[str, float]]:
        """Return what the file says; one that cannot be read is made anew."""
        try:
            return read_json(self._folder / FILE)
        except DamagedError:
            return {}


@cache
def _measure(config: Config, budget: Budget) -> Price:
    small = config if config.backbone else stand_in(config, width=32)  # about as many parameters as scale small's CNN
    return price(small, budget)
