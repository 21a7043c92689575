"""`cflag client`, but its answers are garbage, another kind for each question: NaN, a wrong shape, a vector a million
times too long, another experiment's, and no message at all.

python -m tests.support.garbage_client --superlink ... (as for `cflag client`)
"""

from __future__ import annotations

import sys
from itertools import count
from typing import Any

import torch

from cflag.cli import main
from cflag.engines.flower.client.station import Station
from cflag.engines.flower.messages import Parcel

_count = count()
_answer = Station.answer


def garbage(self: Station, head: Any, sent: Any) -> Parcel:
    """Answer, and spoil it."""
    answered, tensors = _answer(self, head, sent)
    kind = next(_count) % 5
    if kind == 0:
        tensors["delta"] = torch.full_like(tensors["delta"], torch.nan)
    elif kind == 1:
        tensors["delta"] = tensors["delta"][1:].clone()
    elif kind == 2:
        tensors["buffers"] = torch.zeros(10**6)
    elif kind == 3:
        answered["experiment"] = "0123456789abcdef"
    else:
        tensors = {"noise": torch.zeros(3)}
        answered = {}
    return answered, tensors


if __name__ == "__main__":
    Station.answer = garbage  # type: ignore[method-assign]
    sys.exit(main(["client", *sys.argv[1:]]))
