"""The yardstick: the same gradients in a loop of plain PyTorch, without a framework around it.

Ways: `threads` is one process with two threads; `processes` is two processes with one thread each, clients dealt to
them in turn; `odd` is the same, but where clients do not come out even the last one gets both cores. Each has one
model per process, its data as normalised floats in memory, and torch's own SGD. `tuned` is `odd` with two settings of
ours, channels last and memory that glibc keeps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn import functional as F

from benchmarks.contest import own_peak_mb, take_turns
from benchmarks.workloads import BATCH, EVERY, Workload
from cflag.process import keep_freed_memory


class Loop:
    """One process's model and data; does a client's work."""

    def __init__(self, workload: Workload, channels_last: bool) -> None:
        self.workload = workload
        self.x, self.y = workload.floats(workload.asked)
        self.model = workload.plain_network()
        if channels_last and len(workload.shape) == 3:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.tensors = [*self.model.parameters(), *(b for b in self.model.buffers() if b.is_floating_point())]
        self.total = [torch.zeros_like(t) for t in self.tensors]

    def start(self) -> None:
        """Begin a round: set the sum to zero."""
        for total in self.total:
            total.zero_()

    @torch.no_grad()
    def load(self, model: list[Tensor]) -> None:
        """Load the global model."""
        for mine, theirs in zip(self.tensors, model, strict=True):
            mine.copy_(theirs)

    def client(self, number: int, model: list[Tensor]) -> None:
        """One client's local training, added to the sum."""
        self.load(model)
        mine = range(number * self.workload.samples, (number + 1) * self.workload.samples)
        if self.workload.method == "cflag":
            self.gradients(mine)
        else:
            self.train(mine)
        with torch.no_grad():
            for total, tensor in zip(self.total, self.tensors, strict=True):
                total.add_(tensor, alpha=1 / self.workload.asked)

    def train(self, mine: range) -> None:
        """E steps of SGD."""
        for _ in range(self.workload.epochs):
            order = torch.randperm(len(mine)) + mine.start
            for batch in order.split(BATCH):
                self.gradient(batch)
                self.optimizer.step()

    def gradients(self, mine: range) -> None:
        """What C-FLAG evaluates: all components, the memory, then one component per step; the results are discarded."""
        components = (torch.randperm(len(mine)) + mine.start).split(BATCH)
        for batch in components:
            self.gradient(batch)
        self.gradient(torch.arange(self.workload.memory))
        for k in range(self.workload.steps - 1):
            self.gradient(components[k % len(components)])

    def gradient(self, batch: Tensor) -> None:
        """Forward and backward on some samples."""
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.x[batch]), self.y[batch]).backward()


def worker(
    loop: Loop, clients: list[int], odd: int | None, model: list[Tensor], share: list[Tensor], pipe: Any
) -> None:
    """Run in a process: for each message, train its clients from the global model and share the sum."""
    torch.set_num_threads(1)
    while pipe.recv() is not None:
        loop.start()
        for number in clients:
            loop.client(number, model)
        if odd is not None:
            torch.set_num_threads(2)
            loop.client(odd, model)
            torch.set_num_threads(1)
        for theirs, total in zip(share, loop.total, strict=True):
            theirs.copy_(total)
        pipe.send(own_peak_mb())


def in_processes(workload: Workload, loop: Loop, odd_on_two: bool) -> tuple[Callable[[], None], Callable[[], float]]:
    """Return a round, and the peak memory, of two processes."""
    clients = list(range(workload.asked))
    odd = clients.pop() if odd_on_two and len(clients) % 2 else None
    model = [t.detach().clone().share_memory_() for t in loop.tensors]
    shares = [[torch.zeros_like(t).share_memory_() for t in model] for _ in range(2)]
    context = mp.get_context("fork")
    pipes, peaks = [], [0.0, 0.0]
    for k in range(2):
        ours, theirs = context.Pipe()
        args = (loop, clients[k::2], odd if k == 0 else None, model, shares[k], theirs)
        context.Process(target=worker, args=args, daemon=True).start()
        pipes.append(ours)

    def one_round() -> None:
        for pipe in pipes:
            pipe.send("go")
        for k, pipe in enumerate(pipes):
            peaks[k] = pipe.recv()
        for t, a, b in zip(model, *shares, strict=True):
            torch.add(a, b, out=t)

    return one_round, lambda: own_peak_mb() + sum(peaks)


def in_threads(workload: Workload, loop: Loop) -> tuple[Callable[[], None], Callable[[], float]]:
    """Return a round, and the peak memory, of one process with two threads."""
    torch.set_num_threads(2)
    model = [t.detach().clone() for t in loop.tensors]

    def one_round() -> None:
        loop.start()
        for number in range(workload.asked):
            loop.client(number, model)
        for t, total in zip(model, loop.total, strict=True):
            t.copy_(total)

    return one_round, own_peak_mb


def main(name: str, way: str) -> None:
    """Do rounds in one of the ways."""
    workload = EVERY[name]
    if way == "tuned":
        keep_freed_memory()
    torch.set_num_threads(1)
    loop = Loop(workload, channels_last=way == "tuned")
    if way == "threads":
        take_turns(*in_threads(workload, loop))
    else:
        take_turns(*in_processes(workload, loop, odd_on_two=way != "processes"))


if __name__ == "__main__":
    main(*sys.argv[1:])
