"""One process of a fleet, which ends with the one that started it.

python -m cflag.flower_process superlink SOCKET KEYS ARGUMENTS...
python -m cflag.flower_process supernode SOCKET ARGUMENTS...
python -m cflag.flower_process server SOCKET FOLDER
python -m cflag.flower_process simulation FOLDER
python -m cflag.flower_process client ARGUMENTS...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cflag.engines.flower.environment import SUPERNODE_POLL
from cflag.process import end_with_parent


def main() -> None:
    """Become the process that the first argument names."""
    end_with_parent()
    kind = sys.argv.pop(1)
    sys.argv[0] = f"flower-{kind}"
    if kind == "superlink":
        from cflag.engines.flower.processes.superlink import run_superlink

        run_superlink(sys.argv.pop(1), Path(sys.argv.pop(1)), sys.argv[1:])
    elif kind == "supernode":
        from cflag.engines.flower.processes.supernode import run_supernode

        run_supernode(sys.argv.pop(1), float(os.environ.get(SUPERNODE_POLL, 0)))
    elif kind == "server":
        from cflag.commands.server_app import serve

        serve(sys.argv[1], Path(sys.argv[2]))
    elif kind == "simulation":
        from cflag.commands.server_app import simulate

        simulate(Path(sys.argv[1]))
    else:
        from cflag.cli import main as cflag

        sys.exit(cflag(["client", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
