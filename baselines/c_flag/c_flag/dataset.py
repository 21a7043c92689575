"""c_flag: `python -m c_flag.dataset PRESET` prints who has how many samples."""

import sys

from cflag import Experiment, load_config


def samples_of(preset: str) -> list[list[int]]:
    """Return how many training samples each client has, of each task."""
    counts = Experiment(load_config(preset)).benchmark.class_counts()
    return [[sum(of) for of in zip(*task.values(), strict=True)] for task in counts]


if __name__ == "__main__":
    for task, clients in enumerate(samples_of(sys.argv[1]), start=1):
        print(f"task {task}:", *clients)
