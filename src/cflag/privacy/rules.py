"""What each method's clients answer, and what becomes of it in a private run. A method that is not here is refused.

Numbers of samples are the weights of every mean, and the server knows them: they are taken to be public, and so are
sizes of memories, which follow from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from cflag.errors import UserError
from cflag.privacy.options import PrivacyOptions


class Part(Enum):
    """How a part of an answer is treated where whole clients are protected."""

    NOISED = "clipped and noised"
    NONNEGATIVE = "clipped and noised; what the noise made negative is zero"
    PUBLIC = "sent as it is: it follows from sizes and settings"
    WITHHELD = "not sent"


Questions = Mapping[str, Mapping[str, Part]]
"""The parts of the answers to each question; a question without parts reveals nothing."""

NOISED, NONNEGATIVE, PUBLIC, WITHHELD = Part
FEDAVG: Questions = {"local_steps": {"delta": NOISED, "buffers": NOISED}, "remember": {}}
"""Batch-norm statistics are empty here: models that have some are refused."""
MEMORIES: Mapping[str, Part] = {"m": NOISED, "factor": PUBLIC}
GRADIENTS: Questions = {**FEDAVG, "gradients": {"g": NOISED, **MEMORIES}, "memories": MEMORIES}
STEPS = {**FEDAVG["local_steps"], "a": NOISED, "alpha": WITHHELD}
MOMENTS = {**FEDAVG["local_steps"], "first": NOISED, "second": NONNEGATIVE}

RULES: dict[str, Questions] = {
    **dict.fromkeys(("finetune", "replay", "agem", "nccl", "derpp", "er-ace", "lwf", "joint"), FEDAVG),
    "cflag": {**GRADIENTS, "local_steps": STEPS},
    "cflag-sgd": {**GRADIENTS, "local_steps": STEPS},
    "fedtrack": GRADIENTS,
    "cflag-server": {**GRADIENTS, "local_steps": {**STEPS, "alpha": PUBLIC}},  # its clients all have the plain α
    "cflag-shared": {**FEDAVG, "local_steps": MOMENTS, "memory_gradient": MEMORIES},
    "cflag-balanced": {**FEDAVG, "local_steps": MOMENTS},
    "cflag-tracked": {**FEDAVG, "memory_gradient": MEMORIES},
    "ewc": {**FEDAVG, "fisher": {"fisher": NONNEGATIVE}},
    "icarl": {**FEDAVG, "class_sums": {"sums": NOISED}},
    "target": {**FEDAVG, "receive": {}},
}

NOT_BY_SAMPLE = {
    "icarl": "its exemplars are chosen by looking at all samples, so one of them decides what others are used for",
    "cflag-balanced": "its losses are balanced by the classes of all samples, so one of them changes others' gradients",
}
"""Methods for which a sample's uses cannot be counted apart from the others'. In all others what leaves is made of
gradients and squared gradients, each sample's clipped, with noise on their sum; the rest follows from those."""


def check_private(options: PrivacyOptions, method: str, settings: Any, secure: bool) -> None:
    """Refuse a method whose answers cannot be protected, or not with these settings."""
    if not options.on:
        return
    unit = f"privacy.unit = '{options.unit}'"
    if method not in RULES:
        raise UserError(f"{unit}: nobody has said what the answers of method '{method}' reveal; use {', '.join(RULES)}")
    if getattr(settings, "smoothness", None) == "auto":
        raise UserError(f"{unit}: {method}.smoothness = 'auto' would measure the noise; set a number")
    if options.unit == "sample" and method in NOT_BY_SAMPLE:
        raise UserError(f"{unit} cannot protect method '{method}': {NOT_BY_SAMPLE[method]}; use unit = 'client'")
    if options.unit == "client" and method in ("cflag", "cflag-sgd") and settings.measure_gamma:
        raise UserError(
            f"{unit}: measuring Γ takes more from clients than the method does; set {method}.measure_gamma = false"
        )
    if options.unit == "client" and getattr(settings, "moments", None) == "shared":
        raise UserError(f"{unit}: Adam's moments do not bear noise; set {method}.moments = 'fresh'")
    if secure and options.unit == "client" and options.held_out == "noised":
        raise UserError("secure = true: nobody can add the noise of held-out counts; set privacy.held_out = 'public'")
    if secure and options.unit == "sample" and options.epsilon:
        raise UserError("secure = true: a client whose budget is spent cannot say so; set privacy.epsilon = 0")


def check_model(options: PrivacyOptions, buffers: int, own_loss: bool) -> None:
    """Refuse a model or a loss that mixes samples."""
    if options.on and buffers:
        raise UserError("private runs need a model without batch-norm statistics, which leave a client: norm = 'group'")
    if options.unit == "sample" and own_loss:
        raise UserError(
            "privacy.unit = 'sample' cannot know that a loss of your own treats samples apart; use 'client'"
        )
