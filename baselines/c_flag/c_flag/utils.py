"""c_flag: what came out. `python -m c_flag.utils OUT` prints the accuracy matrix of a finished run."""

import sys
from pathlib import Path

from cflag import Result


def table(folder: Path) -> str:
    """Return a run's accuracies in percent, a row after each task, and its two numbers."""
    result = Result.load(folder)
    rows = ["  ".join(f"{100 * a:5.1f}" for a in row) for row in result.accuracy_matrix]
    found = f"Acc {100 * result.average_accuracy:.1f} %, Forget {100 * result.forgetting:.1f} %"
    return "\n".join([*rows, found])


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
