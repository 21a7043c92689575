"""The scales at which campaigns are run. A new one is an entry here and a preset for each data set, NAME-SCALE.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scale:
    """How large the runs are, and which rows stand for the paper's own method."""

    about: str
    cflag: tuple[str, ...]
    """The variants of C-FLAG that are run, by their names in `variants.VARIANTS`."""
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The rates, by variant and preset, of variants that share their method's table in the preset with another."""
    evidence: bool = True
    """Whether its runs say anything about the paper."""
    scenario: str = "task"
    """The scenario of presets that have none in their names."""
    protocol: bool = True
    """Whether it runs the paper's tables and figures; otherwise only studies of its own."""


SCALES = {
    "smoke": Scale(
        "for trying things out: small CNN, images at 16×16, a fifth to two fifths of them, 50 rounds of one step, SGD",
        cflag=("cflag-sgd",),
        evidence=False,
    ),
    "small": Scale(
        "the paper's protocol (all images, five clients, two epochs, batch 128, Adam, memory 400/200, 10 rounds as in "
        "the authors' scripts); only the network is smaller: a CNN at 16×16 in the place of ResNet",
        cflag=("cflag-paper", "cflag"),
        rates={
            "cflag": {
                "cifar10-small": 3e-3,
                "cifar10-class-small": 1e-3,
                "cifar100-small": 1e-3,
                "cifar100-class-small": 1e-3,
                "tiny-imagenet-small": 1e-3,
            }
        },
    ),
    "cpu": Scale(
        "ResNet-18 (7×7 stem) or ResNet-50, a fifth to two fifths of the images, 10 rounds of one epoch, SGD",
        cflag=("cflag-sgd",),
    ),
    "paper": Scale("the paper's own settings", cflag=("cflag-paper", "cflag")),
    "pretrained": Scale(
        "softmax regression on frozen features of EfficientNet-Lite0 (docs/pretrained.md), 100 images a class, 20 "
        "rounds of two epochs, batch 32, SGD, memory 100/50, class-incremental unless told",
        cflag=("cflag",),
        rates={
            "cflag-sgd-own": {
                "cifar100-pretrained": 0.015,
                "cifar10-pretrained": 0.015,
                "tiny-imagenet-pretrained": 0.015,
                "cifar100-whitened-pretrained": 0.05,
            },
            "theory-balanced": {
                "cifar100-pretrained": 0.15,
                "cifar100-task-pretrained": 0.005,
                "cifar100-whitened-pretrained": 0.015,
            },
            "theory-minibatch": {"cifar100-whitened-pretrained": 0.015},
            "theory-no-drift": {"cifar100-whitened-pretrained": 0.015},
        },
        scenario="class",
        protocol=False,
    ),
}
PROTOCOL = tuple(name for name, scale in SCALES.items() if scale.protocol)
"""The scales at which the paper's tables and figures are run."""
SEEDS = (1234, 1235, 1236)
"""The seeds of every table, unless others are asked for."""
EVIDENCE = {name: scale for name, scale in SCALES.items() if scale.evidence}
"""The scales that the ledger knows."""
EXACT = "paper"
"""The scale whose numbers can be compared with the printed ones."""
