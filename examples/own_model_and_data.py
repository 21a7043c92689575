"""Your own model and your own tensors instead of the built-in ones.

Run it: python examples/own_model_and_data.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cflag import Source, run


def spirals(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Six arms of a spiral, one class each."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 6
    radius = torch.rand(n, generator=generator)
    angle = 2 * radius + y * torch.pi / 3 + 0.1 * torch.randn(n, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), y


class Net(nn.Module):
    """Any module will do that returns one output for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


if __name__ == "__main__":
    torch.manual_seed(0)
    source = Source.from_tensors(train=spirals(3000, seed=1), test=spirals(600, seed=2), name="spirals")
    result = run(source=source, model=Net(), tasks=3, rounds=15, cflag={"alpha": 0.1, "beta": 0.1})
    print(f"accuracy {result.average_accuracy:.1%}, forgetting {result.forgetting:.1%}, written to {result.folder}")
