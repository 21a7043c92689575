"""C-FLAG in one file: the whole algorithm, on torch alone.

Five clients learn two tasks one after the other: first to tell two clouds of points apart, then two others. Each
client keeps a memory of the first task and never shares a sample. `method = "cflag"` computes the same. Run it:
python examples/cflag_minimal.py

Notation as in the paper (Keshri, Shah, Prasad: AISTATS 2025): x is the global model, g_i the current gradient of
client i, m_i its memory gradient, v the delayed gradient, a_i the sum of v over the E local steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

Batch = tuple[Tensor, Tensor]


@dataclass
class Rates:
    """The paper's α, β, E and L."""

    alpha: float = 0.05
    beta: float = 0.05
    steps: int = 8
    smoothness: float = 5.0


@dataclass
class Client:
    """Private data: the current task cut into components (mini-batches), and a memory of earlier tasks."""

    components: list[Batch]
    memory: Batch | None = None

    @property
    def size(self) -> int:
        return sum(len(y) for _, y in self.components)


def gradient(model: nn.Module, x: Tensor, batch: Batch) -> Tensor:
    """The flat gradient of the mean loss on a batch at x."""
    vector_to_parameters(x, model.parameters())
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])


def local_steps(
    model: nn.Module, x_t: Tensor, client: Client, table: list[Tensor], correction: Tensor, rates: Rates
) -> Tensor:
    """E steps x ← x − β (g − g_i + v), visiting one component per step in turn; returns a_i = Σ v."""
    weights = [len(y) / client.size for _, y in client.components]
    v = sum((w * row for w, row in zip(weights, table, strict=True)), torch.zeros_like(x_t))  # every τ is 0
    x, a = x_t.clone(), torch.zeros_like(x_t)
    for k in range(rates.steps):
        if k > 0:
            j = (k - 1) % len(table)
            fresh = gradient(model, x, client.components[j])
            v = v + weights[j] * (fresh - table[j])
            table[j] = fresh
        x = x - rates.beta * (correction + v)
        a = a + v
    return a


def adaptive_rates(m: Tensor, a: Tensor, share: float, clients: int, rates: Rates) -> tuple[float, float]:
    """AdapLR, worst case: α_i grows where the client interferes with the past, β_i is optimal where it agrees."""
    inner = float(m @ a)
    if inner > 0:
        L = rates.smoothness
        return rates.alpha, (1 - L * rates.alpha) * inner / (L * clients * share * float(a @ a))
    return rates.alpha - rates.beta * inner / float(m @ m), rates.beta


def cflag_round(model: nn.Module, x: Tensor, clients: list[Client], rates: Rates) -> Tensor:
    """One round of Algorithm 1: returns x_{t+1}."""
    total = sum(c.size for c in clients)
    shares = [c.size / total for c in clients]

    # Lines 2-3: all clients send their current and memory gradients; the server sends back the means.
    tables = [[gradient(model, x, part) for part in c.components] for c in clients]
    g_i = [
        sum((len(y) / c.size * row for (_, y), row in zip(c.components, table, strict=True)), torch.zeros_like(x))
        for c, table in zip(clients, tables, strict=True)
    ]
    g = sum((p * own for p, own in zip(shares, g_i, strict=True)), torch.zeros_like(x))
    m = torch.zeros_like(x)
    for p, client in zip(shares, clients, strict=True):
        if client.memory is not None:
            m += p * gradient(model, x, client.memory)

    # Lines 4-11: local steps, then each client's Δ_i with its own rates.
    step = torch.zeros_like(x)
    for p, client, own, table in zip(shares, clients, g_i, tables, strict=True):
        a = local_steps(model, x, client, table, g - own, rates)
        alpha, beta = rates.alpha, rates.beta
        if m.any():
            alpha, beta = adaptive_rates(m, a, p, len(clients), rates)
        step += p * (alpha * m + beta * (rates.steps * (g - own) + a))

    return x - step  # line 12


CENTRES = torch.tensor([[0.0, 3.0], [0.0, -3.0], [3.0, 0.0], [-3.0, 0.0]])
TASKS = ((0, 1), (2, 3))


def draw(classes: tuple[int, int], n: int) -> Batch:
    """Points around the centres of two classes."""
    y = torch.tensor(classes).repeat(n // 2)
    return CENTRES[y] + torch.randn(n, 2), y


def learn(keep_memory: bool) -> list[float]:
    """Learn both tasks, with or without a memory; return the accuracy on each at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))
    x = parameters_to_vector(model.parameters()).detach()
    memories: list[Batch | None] = [None] * 5
    for classes in TASKS:
        data = [draw(classes, 40) for _ in range(5)]
        clients = [
            Client(list(zip(points.split(8), labels.split(8), strict=True)), memory)
            for (points, labels), memory in zip(data, memories, strict=True)
        ]
        for _ in range(30):
            x = cflag_round(model, x, clients, Rates())
        if keep_memory:
            memories = list(data)
    vector_to_parameters(x, model.parameters())
    tests = [draw(classes, 1000) for classes in TASKS]
    return [float((model(points).argmax(1) == labels).float().mean()) for points, labels in tests]


def main() -> None:
    for keep_memory in (True, False):
        first, second = learn(keep_memory)
        print(f"{'with' if keep_memory else 'without'} memory: task 1 {first:.0%}, task 2 {second:.0%}")


if __name__ == "__main__":
    main()
