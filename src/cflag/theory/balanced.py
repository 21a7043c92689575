"""C-FLAG-Balanced in the laboratory: its rounds on a problem, recorded, and what can be proved of them.

It has no convergence theorem. These statements are ours; docs/cflag-balanced.md has their proofs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cflag.client import Client
from cflag.config import Config, resolve
from cflag.conversation import Answer
from cflag.data.samples import Samples
from cflag.data.source import Source
from cflag.engines.local import LocalEngine
from cflag.experiment import Experiment
from cflag.methods.cflag_balanced import CFlagBalanced
from cflag.session import Session
from cflag.theory.checks import Checks, identity
from cflag.theory.problems import Problem, mean_output
from cflag.theory.shared import (
    Exchange,
    SharedPath,
    SharedPlan,
    adam_step,
    exchanges,
    not_against,
    paths,
    play_second_task,
)


@dataclass(frozen=True)
class BalancedPlan(SharedPlan):
    """How C-FLAG-Balanced is run on a problem: a round is one exchange."""

    def config(self, problem: Problem) -> Config:
        """Return the experiment's config."""
        return resolve({
            "source": "custom", "model": "custom", "method": "cflag-balanced", "clients": len(problem.past), "tasks": 2,
            "scenario": "class", "class_order": "natural", "partition": "subject", "batch": self.batch, "workers": 1,
            "steps": self.steps, "rounds": self.rounds, "seed": self.seed,
            "memory": {"per_task": self.memory, "sample": self.memory}, "cflag-balanced": {"beta": self.beta},
        })  # fmt: skip


class WatchedBalanced(CFlagBalanced):
    """C-FLAG-Balanced, unchanged, that records its clients' paths."""

    paths: list[SharedPath]

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """Record x_k, and what Adam is given there."""
        self.paths[-1].points.append(client.params.clone())
        self.paths[-1].directions.append(super().direction(client, batch, **sent))
        return self.paths[-1].directions[-1]

    def pull(self, v: Tensor, p: Tensor) -> float:
        """Record p_k."""
        self.paths[-1].memory.append(p.clone())
        return super().pull(v, p)

    def local_steps(self, client: Client, *args: Any, **sent: Any) -> Answer:
        """Record where the path begins and ends."""
        nothing = client.params.new_empty(0)
        self.paths.append(SharedPath(client.number, int(sent.get("taken", 0)), nothing, len(client.memory)))
        answer = super().local_steps(client, *args, **sent)
        self.paths[-1].points.append(client.params.clone())
        return answer


def _watched(experiment: Experiment) -> tuple[WatchedBalanced, Session]:
    """Return a method that records, and the session that it is played in."""
    config = experiment.config
    method = experiment.method = WatchedBalanced(config.settings, config)
    method.paths = []
    return method, experiment.session(LocalEngine(experiment.host(), workers=1))


def follow_balanced(problem: Problem, plan: BalancedPlan) -> list[Exchange]:
    """Run C-FLAG-Balanced on a problem and return its rounds in the second task."""
    method, session = _watched(Experiment(plan.config(problem), problem.source(), problem.model(), mean_output))
    play_second_task(session, plan.rounds)
    return exchanges(problem, plan, method.settings.pull, method.paths)


SIDES: dict[str, tuple[str, str, Callable[[list[Exchange]], Checks]]] = {
    "Balanced, interference": ("⟨p_k, v_k + α_k p_k⟩ ≥ pull ‖p_k‖²", "‖p_k‖ > √ε ‖v_k‖", paths(not_against)),
    "Balanced, Adam's step": ("‖x_{k+1} − x_k‖_∞ ≤ β C_n", "moments averaged", paths(adam_step)),
}
"""By name: the claim, what it assumes, and its check."""


def balanced_plans(rounds: int, seed: int) -> list[BalancedPlan]:
    """Return the runs: a small and a large rate."""
    return [BalancedPlan(rounds, beta, track=0, seed=seed) for beta in (0.01, 0.3)]


def class_shares(seed: int, clients: int = 4, classes: int = 3, looks: int = 5) -> list[Tensor]:
    """Return each client's first direction at f = log p(x | c), where clients differ in class shares alone.

    Samples of class c that look like x are `shares[i][c] counts[c][x]` at client i; a sample is its look in one-hot
    form, so a dense layer holds any f.
    """
    draw = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 5, (classes, looks), generator=draw)
    shares = torch.randint(0, 4, (clients, classes), generator=draw)
    shares[torch.arange(clients), torch.arange(clients) % classes] += 1  # every client has a class, every class one
    model = nn.Sequential(nn.Linear(looks, classes)).double()
    with torch.no_grad():
        model[0].weight.copy_((counts / counts.sum(1, keepdim=True).double()).log())  # type: ignore[operator]
        model[0].bias.zero_()  # type: ignore[operator]
    config = resolve({
        "source": "custom", "model": "custom", "method": "cflag-balanced", "clients": clients, "tasks": 1, "stack": 1,
        "partition": "subject", "class_order": "natural", "steps": 1, "batch": 10**6, "workers": 1,
    })  # fmt: skip
    method, session = _watched(Experiment(config, _samples(counts, shares), model))
    session.enter(0)
    session.round()
    return [path.directions[0] for path in method.paths]


def _samples(counts: Tensor, shares: Tensor) -> Source:
    """Return all clients' samples."""
    classes, looks = counts.shape
    rows = torch.cartesian_prod(torch.arange(len(shares)), torch.arange(classes), torch.arange(looks))
    client, c, x = rows.repeat_interleave((shares[:, :, None] * counts).flatten(), dim=0).unbind(1)
    split = torch.eye(looks, dtype=torch.float64)[x], c
    return Source.from_tensors(split, split, subjects=(client, client))


def at_minimiser(directions: list[Tensor]) -> Checks:
    """Each of them is zero, up to rounding: softmax(f + log π_i) is the client's own posterior."""
    return (identity(d, torch.ones_like(d)) for d in directions)
