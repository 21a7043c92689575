"""What a user may choose about a benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class ScheduleOptions:
    """The settings of every schedule; a kind may have more."""

    kind: str = "together"
    heads: Literal["anyone", "own"] = "anyone"
    """Which outputs are open for a client in training: of the classes that anyone has seen so far, or that it has."""
    boundaries: Literal["told", "none", "detected"] = "told"
    """Whether a client learns that a task begins or ends: it is told; nobody says so; it may notice by its loss."""
    detector: Literal["adwin", "kswin", "page-hinkley"] = "adwin"
    """With `detected`: what watches a client's loss (river)."""
    detector_threshold: float = 0.0
    """ADWIN's δ, KSWIN's α or Page-Hinkley's λ; 0 is river's own: 0.002, 0.005, 50."""
    detector_window: int = 2000
    """How many losses of earlier rounds a client keeps for its detector."""


@dataclass(frozen=True)
class BenchmarkOptions:
    """How a source becomes tasks, and tasks become clients' data."""

    scenario: str = "task"
    """How the source becomes a sequence of tasks: `cflag list scenarios`."""
    tasks: int = 5
    clients: int = 5
    rounds: int = 5
    """Of each task; with clocks of their own, clients may have a task for longer or shorter."""
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    """Which task each client is in, round by round: `cflag list schedules`."""
    partition: str = "dirichlet"
    """How a task's samples are dealt to clients: `cflag list partitions`."""
    zeta: float = 1e5
    classes_per_client: int = 2
    """With `partition = "classes"`: how many classes of a task a client has."""
    min_samples: int = 1
    """What a client must have of a task, or of a Dirichlet draw; with 0 or 1, one that has none sits the task out."""
    class_order: Literal["seeded", "natural"] = "seeded"
    samples_per_class: int = 0
    test_per_class: int = 0
    validation: float = 0.0
    """The share of the training samples that is held out, and tested on in the place of the test half; `cflag tune`
    judges by it. 0: none. Drawn by the seed, of each class (and task, and subject, where samples say theirs)."""
    image_size: int = 0
    backbone: str = ""
    """A pretrained network that all pictures go through, once (`cflag list backbones`), at `image_size` pixels; the
    model then learns on its features."""
    half_features: bool = False
    """Keep features in half precision: half the disk, and other numbers."""
    whiten: str = ""
    """A source of public pictures by whose statistics features are whitened: as many as there are features, or more."""
    seed: int = 1234
