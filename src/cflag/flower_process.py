"""One process of a fleet, which ends with the one that started it.

python -m cflag.flower_process superlink|supernode|client ARGUMENTS...
"""

from __future__ import annotations

import os
import sys

from cflag.engines.flower.environment import STAY, SUPERNODE_POLL
from cflag.process import end_with_parent


def main() -> None:
    """Become the process that the first argument names."""
    if STAY not in os.environ:
        end_with_parent()
    kind = sys.argv.pop(1)
    sys.argv[0] = f"flower-{kind}"
    if kind == "superlink":
        from flwr.superlink.cli.flower_superlink import flower_superlink

        flower_superlink()
    elif kind == "client":
        from cflag.cli import main as cflag

        sys.exit(cflag(["client", *sys.argv[1:]]))
    else:
        from flwr.supernode.cli.flower_supernode import flower_supernode

        from cflag.engines.flower.processes.waits import shorten

        shorten(float(os.environ.get(SUPERNODE_POLL, 0)))
        flower_supernode()


if __name__ == "__main__":
    main()
