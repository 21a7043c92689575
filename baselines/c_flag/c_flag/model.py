"""c_flag: the models. `python -m c_flag.model PRESET` prints the one of a preset."""

import sys

from cflag import Experiment, load_config
from torch import nn


def model_of(preset: str) -> nn.Module:
    """Return a preset's model with its initial weights."""
    return Experiment(load_config(preset)).learner.model


if __name__ == "__main__":
    model = model_of(sys.argv[1])
    print(model)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
