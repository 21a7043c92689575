"""Our questions to pretrained features: which rates, what leads at equal cost, what C-FLAG needs where L is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cflag.paper.cells import IID, NON_IID, Campaign, Cell
from cflag.paper.studies import RATES_SEED, ends

if TYPE_CHECKING:
    from cflag.pricing import Budget

RATES = (0.005, 0.015, 0.05, 0.15, 0.5, 1.5)
"""The rates of SGD that every method may choose from."""
ADAM_RATES = (1e-4, 3e-4, 1e-3, 3e-3)
RATES_ROUNDS = 10
SGD_ROWS = ("finetune", "ewc", "lwf", "icarl", "nccl", "fedtrack", "replay", "agem", "derpp", "joint", "cflag",
            "cflag-sgd")  # fmt: skip
OWN_LABELS = ("er-ace", "cflag-sgd-own")
"""Rows that learn current labels against their own task's outputs: where the task is known, so do all."""
BALANCED = ("theory-balanced",)
"""Its α is 25 times the rate, and must stay below the cap. On features as they are it did not help: in no table."""
ADAM_ROWS = ("cflag-shared",)
YARDSTICKS = ("ncm", "slda", "ridge")
TRAINED = (*SGD_ROWS, *OWN_LABELS, *ADAM_ROWS)
ALL_ROWS = (*TRAINED, *YARDSTICKS)
LEADERS = ("finetune", "lwf", "icarl", "replay", "derpp", "joint", "cflag", "cflag-sgd", "cflag-sgd-own",
           "cflag-shared", *YARDSTICKS)  # fmt: skip
"""The rows that are worth their time everywhere; `finetune` and `joint` are the floor and the ceiling."""
AT = ("pretrained",)
BUDGETS: tuple[Budget, ...] = ("rounds", "gradients", "bytes")
ROUNDS = 20
"""How many rounds of replay, per task, every budget is worth: the preset's own."""
FEW: dict[str, Any] = {}
MANY: dict[str, Any] = {"clients": 50, "memory.per_task": 40}
"""Fifty clients with a tenth of the samples each, and a tenth of the memory: the same number of samples in all."""


WHITENED: dict[str, Any] = {"whiten": "tiny-imagenet"}
"""By pictures of ImageNet, which the backbone has seen anyway."""
THEORY_ROWS = ("replay", "cflag", "theory-balanced", "theory-minibatch", "theory-no-drift", "cflag-sgd-own")


def _possible(rows: tuple[str, ...], scenario: str) -> tuple[str, ...]:
    return tuple(row for row in rows if scenario == "class" or row not in OWN_LABELS)


def _rates() -> tuple[Cell, ...]:
    """Every method with every rate of its optimizer, in both scenarios, at both ends of ζ."""
    length = {"rounds": RATES_ROUNDS, "eval_every": RATES_ROUNDS}
    kinds: list[tuple[str, dict[str, Any], tuple[str, ...], tuple[float, ...]]] = [
        ("class", {"scenario": "class"}, (*SGD_ROWS, *OWN_LABELS), RATES),
        ("class", {"scenario": "class"}, BALANCED, RATES[:4]),
        ("class", {"scenario": "class"}, ADAM_ROWS, ADAM_RATES),
        ("task", {"scenario": "task"}, SGD_ROWS, RATES),
        ("task", {"scenario": "task"}, BALANCED, RATES[:4]),
        ("task", {"scenario": "task"}, ADAM_ROWS, ADAM_RATES),
        ("class-whitened", {"scenario": "class", **WHITENED}, THEORY_ROWS, RATES[:4]),
    ]
    return tuple(
        Cell(ends(f"cifar100-{name}", zeta), "cifar100", {**settings, "zeta": zeta, **length}, rows, at=rate, rate=rate)
        for name, settings, rows, rates in kinds
        for zeta in (IID, NON_IID)
        for rate in rates
    )


def _cost(budget: Budget) -> tuple[Cell, ...]:
    """Methods for what so many rounds of replay cost, with few clients and with many."""
    paying = tuple(row for row in LEADERS if row not in YARDSTICKS)
    few, many = ((*ALL_ROWS, "probe"), LEADERS) if budget == "rounds" else (paying, paying)
    return tuple(
        Cell(ends(f"cifar100-{settings.get('clients', 5)}-clients", zeta), "cifar100",
             {"zeta": zeta, **settings}, rows, at=ROUNDS, budget=budget)
        for settings, rows in ((FEW, few), (MANY, many))
        for zeta in (IID, NON_IID)
    )  # fmt: skip


def _theory() -> tuple[Cell, ...]:
    """C-FLAG where its assumptions hold, for the gradients of twenty rounds of replay."""
    rows = (*THEORY_ROWS, "theory-rates")
    return tuple(
        Cell(ends("whitened", zeta), "cifar100", {"zeta": zeta, **WHITENED}, rows, budget="gradients")
        for zeta in (IID, NON_IID)
    )


OTHER_BENCHMARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "cifar100, task-incremental": ("cifar100", {"scenario": "task"}),
    "cifar100, 10 × 10 classes": ("cifar100", {"tasks": 10}),
    "cifar10": ("cifar10", {}),
    "tiny-imagenet": ("tiny-imagenet", {}),
}


def _others() -> tuple[Cell, ...]:
    """Other sequences and data sets, at equal rounds."""
    return tuple(
        Cell(ends(name, zeta), source, {"zeta": zeta, **settings},
             _possible(LEADERS, settings.get("scenario", "class")))
        for name, (source, settings) in OTHER_BENCHMARKS.items()
        for zeta in (IID, NON_IID)
    )  # fmt: skip


PRETRAINED: dict[str, Campaign] = {
    c.name: c
    for c in (
        Campaign("pretrained-rates", "On pretrained features: which rate each method gets", "rates", _rates(),
                 scales=AT, own_seeds=(RATES_SEED,)),
        *(Campaign(f"pretrained-{budget}", f"On pretrained features, at equal {budget}", "rows", _cost(budget),
                   budget, base="replay", scales=AT)
          for budget in BUDGETS),
        Campaign("pretrained-theory", "C-FLAG where its assumptions hold: softmax regression on whitened features, at "
                 "equal gradients", "parts", _theory(), base="replay", scales=AT),
        Campaign("pretrained-others", "On pretrained features: other tasks and data sets, at equal rounds", "rows",
                 _others(), base="replay", scales=AT),
    )
}  # fmt: skip
