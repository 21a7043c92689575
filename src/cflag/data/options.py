"""What a user may choose about a benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cflag.errors import UserError


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
class DataOptions:
    """How a source of your own is read: `pictures:DIR`, `npz:FILE`, `table:FILE`."""

    label: str = ""
    """The column of the labels; by default `label`."""
    user: str = ""
    """The column of whose a sample is; by default `user`, where there is one. Of pictures also `prefix`: their names up
    to the first `_`."""
    task: str = ""
    """The column of the task a sample is of; by default `task`, where there is one."""
    test: str = ""
    """The column that says which samples are held out; by default `test`, where there is one."""
    features: tuple[str, ...] = ()
    """The columns that samples are made of; by default all that have no other meaning."""
    classes: int | tuple[str, ...] = 0
    """How many classes there are, or their names in order: where data alone do not say it, as in a fleet."""
    tasks: tuple[str, ...] = ()
    """The names of the tasks in the order they are learned; by default sorted."""
    held_out: float = 0.2
    """The share of the samples that is held out for tests, where nothing says which; the same for every `seed`."""
    size: int = 0
    """The height and width of pictures; 0: their own where all are squares of one size, else 32."""
    colour: Literal["auto", "grey", "colour"] = "auto"
    """Whether pictures have one channel or three; `auto`: one where all are grey."""
    mean: tuple[float, ...] = ()
    """What is taken from each channel or feature; by default the mean of the training samples."""
    std: tuple[float, ...] = ()
    """What they are divided by; by default the standard deviation of the training samples."""
    label_mean: tuple[float, ...] = ()
    """What is taken from numbers to predict; by default the mean of the training labels."""
    label_std: tuple[float, ...] = ()
    """What they are divided by; by default the standard deviation of the training labels."""
    memory_bytes: int = 2**31
    """Above so many bytes, samples are not held in memory but in a file of the data folder, which is mapped."""

    def check(self, table: str) -> None:
        """Refuse what cannot work."""
        if not 0 < self.held_out < 1:
            raise UserError(f"{table}.held_out = {self.held_out} must lie between 0 and 1")
        if not 0 <= self.size <= 2**14:
            raise UserError(f"{table}.size = {self.size} must be between 0 and {2**14:,}")
        if isinstance(self.classes, int) and self.classes < 0:
            raise UserError(f"{table}.classes = {self.classes} must be a number of classes, or a list of their names")
        for key in ("classes", "tasks", "features"):
            names = getattr(self, key)
            if isinstance(names, tuple) and len(set(names)) < len(names):
                raise UserError(f"{table}.{key} names something twice")
        for key in ("std", "label_std"):
            if any(std <= 0 for std in getattr(self, key)):
                raise UserError(f"{table}.{key} must be positive")


@dataclass(frozen=True)
class BenchmarkOptions:
    """How a source becomes tasks, and tasks become clients' data."""

    problem: str = "classes"
    """What labels are, what the loss is, and how answers are scored: `cflag list problems`."""
    scenario: str = "task"
    """How the source becomes a sequence of tasks: `cflag list scenarios`."""
    tasks: int = 5
    """How many; in a file also which: `tasks = [[0, 1, 2], [3, 4]]`, lists of class numbers or names."""
    task_classes: tuple[tuple[int | str, ...], ...] = ()
    """The classes of each task, where `tasks` said which."""
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
