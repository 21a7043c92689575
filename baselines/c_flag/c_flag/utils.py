"""c_flag: `python -m c_flag.utils OUT` prints a finished run's accuracies."""

import sys
from pathlib import Path

from cflag import Result


def table(folder: Path) -> str:
    """Return a run's accuracies in percent, a row a task, and two numbers."""
    result = Result.load(folder)
    rows = ["  ".join(f"{100 * a:5.1f}" for a in row) for row in result.accuracy_matrix]
    accuracy, forgetting = 100 * result.average_accuracy, 100 * result.forgetting
    return "\n".join([*rows, f"Acc {accuracy:.1f} %, Forget {forgetting:.1f} %"])


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
