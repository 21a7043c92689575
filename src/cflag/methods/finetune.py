"""Fine-FL: FedAvg (McMahan et al., 2017) on the current task and nothing against forgetting.

The naive baseline of the paper's tables.
"""

from __future__ import annotations

from cflag.methods.base import FedAvg
from cflag.registry import register


@register("method", "finetune")
class Finetune(FedAvg):
    """FedAvg on the current task."""

    elementwise = ("local_steps",)
