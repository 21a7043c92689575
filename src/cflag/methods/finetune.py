"""Fine-FL: FedAvg (McMahan et al., 2017) on the current task and nothing against forgetting.

The naive baseline of the paper's tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from cflag.methods.base import FedAvg, FedAvgSettings
from cflag.registry import register


@dataclass(frozen=True)
class FinetuneSettings(FedAvgSettings):
    """The learning rate of the local steps."""


@register("method", "finetune")
class Finetune(FedAvg):
    """FedAvg on the current task."""

    Settings = FinetuneSettings
