"""pfl-research as a contestant: its FederatedAveraging over its SimulatedBackend.

Ways: `processes`, if none is named, is two processes with one thread each that share the clients and add up their
updates with torch.distributed, which is pfl's way to use more than one worker; `threads` is one process with two
threads. Side by side `processes` was faster for J3. With five clients one process does three of them, so for J and R
threads would have to make a step more than 5/3 times as fast; from CPU times of a busy machine we estimate 1.6 for J
and 1.5 for R, which is close enough for J to be worth timing both ways on a quiet one.

pfl averages trainable parameters only: running means of batch norm stay as the last client of a process left them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.contest import Turns, tree_peak_mb
from benchmarks.workloads import BATCH, WORKLOADS, Workload


class Client(Dataset):
    """A client's tensors, in a new order whenever they are gone through; pfl's own keep theirs."""

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, ...]]:
        """Go through the data once."""
        for batch in torch.randperm(len(self)).split(batch_size or len(self)):
            yield tuple(tensor[batch] for tensor in self.raw_data)


class Everybody(FederatedDatasetBase):
    """All clients in every round, dealt to the workers in turn.

    pfl's own sampler repeats some and forgets others where the clients do not come out even between the workers.
    """

    def __init__(self, workload: Workload, rank: int, workers: int) -> None:
        super().__init__()
        x, y = workload.floats()
        pairs = list(zip(x.split(workload.samples), y.split(workload.samples), strict=True))
        self.mine = [Client(pair, user_id=str(number)) for number, pair in enumerate(pairs)][rank::workers]

    def __next__(self) -> tuple[Client, int]:
        """Return one client after another, for ever."""
        self.mine.append(self.mine.pop(0))
        return self.mine[-1], self._get_seed()

    def get_cohort(self, cohort_size: int) -> Iterable[tuple[Client, int]]:
        """Return this worker's clients, each with a seed that nothing here uses."""
        return ((client, self._get_seed()) for client in self.mine)


class Network(nn.Module):
    """The workload's model as pfl wants it, with a loss of its own."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.network = workload.plain_network()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return what is minimised."""
        return F.cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Return nothing: pfl evaluates in its first round whatever it is told, so that costs nothing."""
        return {}


class Wait(TrainingProcessCallback):
    """Between rounds, wait for the driver."""

    def __init__(self, another: Callable[[], bool]) -> None:
        self.another = another

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: object, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Tell pfl to stop when the driver says no more."""
        return not self.another(), Metrics()


def second(name: str) -> subprocess.Popen[str]:
    """Start the second worker and prepare to be the first; they meet when pfl's PyTorch part is imported."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    os.environ |= {"PFL_WORKER_ADDRESSES": f"{address},{address}", "PFL_WORKER_RANK": "0"}
    return subprocess.Popen(
        [sys.executable, __file__, name],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ | {"PFL_WORKER_RANK": "1"},
    )  # fmt: skip


def train(workload: Workload, another: Callable[[], bool]) -> None:
    """Let pfl do rounds for as long as there is another."""
    # Here, since workers find each other at this import.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.internal.ops.pytorch_ops import distributed
    from pfl.model.pytorch import PyTorchModel

    np.random.seed(0)  # workers have to draw the same seeds
    network = Network(workload)
    torch.manual_seed(distributed.global_rank)
    # A step of 1 along the mean of the clients' changes replaces the model by the mean of theirs.
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    data = Everybody(workload, distributed.global_rank, distributed.world_size)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=sys.maxsize,
            evaluation_frequency=sys.maxsize,
            train_cohort_size=workload.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=workload.epochs, local_learning_rate=0.01),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Wait(another)],
        send_metrics_to_platform=False,
    )
    if distributed.world_size > 1:
        torch.distributed.destroy_process_group()


def main(name: str, way: str = "processes") -> None:
    """Do rounds in one of the ways."""
    workload = WORKLOADS[name]
    torch.set_num_threads(2 if way == "threads" else 1)
    turns = Turns(tree_peak_mb, way=way)
    if way == "threads":
        train(workload, turns.another)
    elif os.environ.get("PFL_WORKER_RANK") == "1":
        train(workload, lambda: bool(sys.stdin.readline()))
    else:
        follower = second(name)

        def another() -> bool:
            # Without a word for each round the second worker would begin the next one while nobody looks at the clock.
            more = turns.another()
            if more:
                print("go", file=follower.stdin, flush=True)
            else:
                follower.stdin.close()
            return more

        train(workload, another)
        follower.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
