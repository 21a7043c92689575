"""Flower as a contestant: its simulation runtime, two Ray actors with a core each, messages over the grid.

The server averages replies as they come in. Between rounds it waits for the driver, so everything Flower does for a
round is timed: its message queues, Ray's object store, arrays packed and unpacked at both ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.contest import Turns, tree_peak_mb
from benchmarks.workloads import BATCH, WORKLOADS, Workload

# Flower and Ray look at these when they are imported.
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else Ray gives way to whatever else runs on the machine
}

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

client = ClientApp()


class Trainer:
    """What an actor's process keeps between rounds: the model, and all data as normalised floats."""

    def __init__(self, workload: Workload) -> None:
        torch.set_num_threads(1)
        self.workload = workload
        self.x, self.y = workload.floats()
        self.model = workload.plain_network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def train(self, number: int) -> None:
        """One client's local epochs."""
        for _ in range(self.workload.epochs):
            order = torch.randperm(self.workload.samples) + number * self.workload.samples
            for batch in order.split(BATCH):
                self.optimizer.zero_grad()
                F.cross_entropy(self.model(self.x[batch]), self.y[batch]).backward()
                self.optimizer.step()


@cache
def trainer(name: str) -> Trainer:
    """Return this process's trainer, made when it is first asked for."""
    return Trainer(WORKLOADS[name])


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train from the global model and reply with what came of it."""
    mine = trainer(message.content["config"]["workload"])
    mine.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    mine.train(context.node_config["partition-id"])
    reply = {
        "arrays": ArrayRecord(mine.model.state_dict()),
        "metrics": MetricRecord({"num-examples": mine.workload.samples}),
    }
    return Message(RecordDict(reply), reply_to=message)


class Server:
    """The global model, and how a round changes it."""

    def __init__(self, workload: Workload, grid: Grid) -> None:
        self.workload, self.grid = workload, grid
        self.config = ConfigRecord({"workload": workload.name})
        self.model = workload.plain_network().state_dict()
        while len(nodes := list(grid.get_node_ids())) < workload.clients:  # they appear one by one
            time.sleep(0.01)
        self.nodes = nodes

    def round(self) -> None:
        """Ask every client, replace the model by the mean of theirs."""
        started = time.perf_counter()
        content = RecordDict({"arrays": ArrayRecord(self.model), "config": self.config})
        waiting = set(self.grid.push_messages([Message(content, node, "train") for node in self.nodes]))
        total, weight = {name: torch.zeros_like(t, dtype=torch.float32) for name, t in self.model.items()}, 0
        while waiting:
            for reply in self.grid.pull_messages(waiting):
                if reply.has_error():
                    raise RuntimeError(reply.error.reason)
                waiting.remove(reply.metadata.reply_to_message_id)
                samples = reply.content["metrics"]["num-examples"]
                weight += samples
                add(total, reply.content["arrays"].to_torch_state_dict(), samples)
            if waiting:  # a look costs time too, so there are fewer of them in a long round: it ends 1 % late at most
                time.sleep(min(0.02, max(0.001, (time.perf_counter() - started) / 100)))
        self.model = {name: (t / weight).to(self.model[name].dtype) for name, t in total.items()}


def add(total: dict[str, Tensor], model: dict[str, Tensor], weight: float) -> None:
    """Add a weighted model to a sum."""
    for name, tensor in model.items():
        total[name].add_(tensor, alpha=weight)


def main(name: str) -> None:
    """Do rounds from inside Flower's server."""
    workload, server, turns = WORKLOADS[name], ServerApp(), Turns(tree_peak_mb)

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:
        torch.set_num_threads(1)  # the cores are the clients'
        state = Server(workload, grid)
        state.round()
        while turns.another():
            state.round()

    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        os.environ["FLWR_HOME"] = folder
        resources = {
            "init_args": {"num_cpus": 2, "include_dashboard": False, "_temp_dir": folder},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        }
        run_simulation(server, client, num_supernodes=workload.clients, backend_config=resources)


if __name__ == "__main__":
    # Under its own name, so that Ray's actors import this module once and keep what it caches: what a main program
    # defines would be sent to them anew with every message.
    from benchmarks.peers.flower_job import main

    main(sys.argv[1])
