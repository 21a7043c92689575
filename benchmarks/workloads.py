"""The workloads that are timed: clients, data, model. Images are random: time does not depend on what they show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cflag import registry
from cflag.models.layers import TrimmedConv2d
from cflag.models.options import ModelOptions


@dataclass(frozen=True)
class Workload:
    """A round of FedAvg, or of C-FLAG with its full gradients, memory and delayed steps."""

    name: str
    about: str
    clients: int
    samples: int
    """Per client."""
    shape: tuple[int, ...]
    model: str
    options: ModelOptions
    epochs: int = 1
    cohort: int = 0
    """How many clients take part in a round; 0 means all."""
    method: Literal["finetune", "cflag"] = "finetune"
    memory: int = 200
    repeats: int = 3
    classes: int = 10

    @property
    def asked(self) -> int:
        """How many clients take part in a round."""
        return self.cohort or self.clients

    @property
    def steps(self) -> int:
        """E, the local steps of a client."""
        return self.epochs * -(-self.samples // BATCH)

    def network(self) -> nn.Module:
        """Return the model, the same for everybody."""
        torch.manual_seed(0)
        if self.model == "custom":  # MLP 64-64-10: one hidden layer less than cflag's own
            width = self.shape[0]
            return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, self.classes))
        model: nn.Module = registry.get("model", self.model)(self.shape, self.classes, self.options)
        return model

    def plain_network(self) -> nn.Module:
        """Return the model as plain PyTorch has it: its convolutions use all taps."""
        model = self.network()
        for module in model.modules():
            if isinstance(module, TrimmedConv2d):
                module.__class__ = nn.Conv2d  # type: ignore[assignment]
        return model

    def floats(self, clients: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the data normalised once and for all, which is what others train on."""
        x, y = self.data(clients)
        return ((x.float() / 255 - 0.5) / 0.25 if x.dtype == torch.uint8 else x), y

    def data(self, clients: int | None = None) -> tuple[Tensor, Tensor]:
        """Return images as bytes (features as floats) and labels for so many clients, all by default."""
        count = (self.clients if clients is None else clients) * self.samples
        generator = torch.Generator().manual_seed(1)
        if len(self.shape) == 3:
            x = torch.randint(0, 256, (count, *self.shape), generator=generator, dtype=torch.uint8)
        else:
            x = torch.rand(count, *self.shape, generator=generator)
        return x, torch.arange(count) % self.classes

    def settings(self) -> dict[str, Any]:
        """Return cflag's settings for this workload."""
        tasks = 2 if self.method == "cflag" else 1
        return {"source": "custom", "model": self.model, "width": self.options.width, "norm": self.options.norm,
                "stem": self.options.stem, "method": self.method, "clients": self.clients, "tasks": tasks,
                "partition": "iid", "batch": BATCH, "steps": self.steps, "clients_per_round": self.cohort,
                "scenario": "task", "class_order": "natural", "seed": 0,
                "memory": {"per_task": self.memory, "sample": self.memory},
                "cflag": {"beta": 0.01}}  # fmt: skip


BATCH = 32
IMAGE, DIGIT, FEATURES = (3, 32, 32), (64,), (1280,)
CNN = ModelOptions(width=36, norm="none")
MLP = ModelOptions()
RESNET = ModelOptions(norm="batch", stem="7x7")

_FEDAVG = [
    Workload("J", "5 clients x 2,000 images, CNN of 0.24 M parameters", 5, 2000, IMAGE, "cnn", CNN),
    Workload("J2", "100 clients x 100 images, the same CNN", 100, 100, IMAGE, "cnn", CNN),
    Workload(
        "J3", "5 clients x 288 digits, MLP 64-64-10, 5 epochs", 5, 288, DIGIT, "custom", MLP, epochs=5, repeats=25
    ),
    Workload("R", "5 clients x 500 images, ResNet-18 with a 7x7 stem", 5, 500, IMAGE, "resnet18", RESNET),
]
_CFLAG = [
    Workload(
        "J-cflag", "J with delayed gradients, memory, adaptive rates", 5, 2000, IMAGE, "cnn", CNN, 1, 0, "cflag", 200, 3
    ),
    Workload("J2-cflag", "J2, the same", 100, 100, IMAGE, "cnn", CNN, 1, 0, "cflag", 20),
    Workload("J3-cflag", "J3, the same", 5, 288, DIGIT, "custom", MLP, 5, 0, "cflag", 200, 15),
]
_SCALE = [
    Workload(f"S-{clients}-{cohort}", f"{cohort} of {clients:,} clients x 50 samples", clients, 50, DIGIT,
             "custom", MLP, cohort=cohort, repeats=15)
    for clients, cohort in ((1000, 10), (1000, 100), (10000, 100), (10000, 1000))
]  # fmt: skip
_HEAD = Workload(
    "H", "20 of 100 clients x 100 samples, a head 1280-100 on features", 100, 100, FEATURES, "linear", MLP,
    cohort=20, memory=100, repeats=15, classes=100,
)  # fmt: skip
_HEADS = [_HEAD, replace(_HEAD, name="H-cflag", about="H, as a round of C-FLAG", method="cflag")]
WORKLOADS = {workload.name: workload for workload in [*_FEDAVG, *_CFLAG, *_SCALE, *_HEADS]}

SPREAD = {
    f"M-{method}-{clients}": Workload(f"M-{method}-{clients}", f"10,000 images on {clients} clients", clients,
                                      10000 // clients, IMAGE, "cnn", CNN, 1, 0, method, 1000 // clients)
    for method in ("finetune", "cflag")
    for clients in (5, 50, 500)
}  # fmt: skip
"""The same data on more and more clients: not for their time but for their memory."""


def _grown(what: str, number: int, **changes: Any) -> Workload:
    """Return one of many small clients' workloads, changed in one thing."""
    usual = Workload(
        f"G-{what}-{number}", f"{what} {number:,}", 10_000, 10, DIGIT, "custom", MLP, cohort=100, repeats=7
    )
    return replace(usual, **changes)


_GROWN = {
    "clients": [_grown("clients", n, clients=n) for n in (1_000, 10_000, 100_000)],
    "cohort": [_grown("cohort", n, cohort=n) for n in (10, 32, 100, 320, 1_000)],
    "width": [_grown("width", n, shape=(n,), clients=1_000) for n in (16, 32, 64, 128, 256, 512)],
    "steps": [_grown("steps", n, epochs=n) for n in (1, 3, 10, 30)],
}
GROWTH = {what: {workload.name: workload for workload in grown} for what, grown in _GROWN.items()}
"""What a round costs as clients, cohort, model and E grow: `benchmarks/growth.py`."""
EVERY = WORKLOADS | SPREAD | {name: workload for grown in GROWTH.values() for name, workload in grown.items()}
