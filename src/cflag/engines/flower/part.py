"""A part of a deployment as a process that ends with the one that started it.

python -m cflag.engines.flower.part superlink|supernode|client ARGUMENTS...
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

from cflag.safety import end_with_parent

POLL = "CFLAG_SUPERNODE_POLL"
"""Seconds between a SuperNode's looks for messages; Flower has no setting for its 3 s and 0.5 s."""
STAY = "CFLAG_KEEP"
"""Set where the process should outlive the one that started it."""


def main() -> None:
    """Become the part that the first argument names."""
    if STAY not in os.environ:
        end_with_parent()
    part = sys.argv.pop(1)
    sys.argv[0] = f"flower-{part}"
    if part == "superlink":
        from flwr.superlink.cli.flower_superlink import flower_superlink

        flower_superlink()
    elif part == "client":
        from cflag.cli import main as cflag

        sys.exit(cflag(["client", *sys.argv[1:]]))
    else:
        from flwr.supernode import start_client_internal as loop
        from flwr.supernode.cli.flower_supernode import flower_supernode

        if POLL in os.environ:
            vars(loop)["time"] = _sooner(float(os.environ[POLL]))
        flower_supernode()


def _sooner(longest: float) -> SimpleNamespace:
    """Stand in for the module `time` of Flower's SuperNode loop, which only sleeps with it."""
    return SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, longest)))


if __name__ == "__main__":
    main()
