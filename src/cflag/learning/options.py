"""What a config says of making samples, apart from the networks: reading a config needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SynthesisOptions:
    """How many samples are made, in which batches, how long, and what the generator minds."""

    samples: int = 256
    batch: int = 64
    generator_steps: int = 30
    generator_lr: float = 0.01
    student_steps: int = 20
    student_lr: float = 0.002
    bn: float = 1.0
    adversarial: float = 1.0
