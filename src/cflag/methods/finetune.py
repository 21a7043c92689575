"""Fine-FL: FedAvg (McMahan et al., 2017) on the current task and nothing against forgetting.

The naive baseline of the paper's tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from cflag.methods.base import FedAvg, FedAvgSettings


@dataclass(frozen=True)
class FinetuneSettings(FedAvgSettings):
    """The learning rate of the local steps."""


class Finetune(FedAvg):
    """FedAvg on the current task."""

    Settings = FinetuneSettings
