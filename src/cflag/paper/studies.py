"""Our own questions to the paper's protocol: which rates, what each part buys, what leads at equal cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cflag.paper.cells import DATA_SETS, IID, NON_IID, Campaign, Cell
from cflag.paper.variants import BALANCED_PARTS, CLASS_ROWS, PAPERS_OWN, PARTS, SHARED_PARTS, TASK_ROWS, Variant

if TYPE_CHECKING:
    from cflag.pricing import Budget

RATES = (3e-4, 1e-3, 3e-3)
"""The Adam rates that every method may choose from."""
RATES_SEED, RATES_ROUNDS = 7, 4
"""A seed outside of every table, and fewer rounds than any has."""
MORE_ROWS = ("cflag-sgd", "cflag-shared", "cflag-tracked", "cflag-balanced", "agem", "derpp", "joint")
"""Rows of ours that the paper does not have."""
TAIL_ROWS = ("replay-tail", "cflag-shared-tail")
"""The leaders with the average of a task's last models, where there are enough of them."""
CHEAP_ROWS = ("cflag-balanced-fresh",)
"""The leader with as few bytes as replay."""
ALL_ROWS = tuple(dict.fromkeys((*TASK_ROWS, *CLASS_ROWS, *MORE_ROWS)))
AT = ("small",)
"""The scale that our studies are about."""
BUDGETS: dict[Budget, tuple[int, ...]] = {"gradients": (1, 3, 10), "rounds": (10,), "bytes": (10,)}
"""How many rounds of replay, per task, a budget is worth."""


def ends(name: str, zeta: float) -> str:
    """Return a benchmark's name with its ζ."""
    return f"{name}-{'iid' if zeta == IID else f'ζ={zeta:g}'}"


def _rates() -> tuple[Cell, ...]:
    """Every method with every rate, on every source and in every scenario, at both ends of the tables' ζ."""
    benchmarks = [(source, "task") for source in DATA_SETS] + [(source, "class") for source in DATA_SETS[:2]]
    return tuple(
        Cell(ends(f"{source}-{scenario}", zeta), source,
             {"scenario": scenario, "zeta": zeta, "rounds": RATES_ROUNDS, "eval_every": RATES_ROUNDS},
             ALL_ROWS, at=rate, rate=rate)
        for source, scenario in benchmarks
        for zeta in (IID, NON_IID)
        for rate in RATES
    )  # fmt: skip


def _parts() -> tuple[Cell, ...]:
    rows = ("finetune", PAPERS_OWN, *(part.name for part in PARTS))
    return tuple(Cell(ends("cifar10", zeta), "cifar10", {"zeta": zeta}, rows) for zeta in (IID, 1.0, NON_IID))


def _cost(budget: Budget) -> tuple[Cell, ...]:
    """All methods for the same gradients, rounds or bytes; ten rounds of replay are the largest budget."""
    more = CHEAP_ROWS if budget == "bytes" else ()
    rows = {rounds: (*ALL_ROWS, *(TAIL_ROWS if rounds >= 10 else ()), *more) for rounds in BUDGETS[budget]}
    return tuple(
        Cell(ends("cifar10", zeta), "cifar10", {"zeta": zeta, "rounds": rounds}, rows[rounds], at=rounds,
             budget=budget)
        for zeta in (IID, 0.3, NON_IID)
        for rounds in BUDGETS[budget]
    )  # fmt: skip


def _class_cost() -> tuple[Cell, ...]:
    """All methods, class-incremental, for the gradients of ten rounds of replay."""
    return tuple(
        Cell(ends("cifar10-class", zeta), "cifar10", {"zeta": zeta, "scenario": "class"}, ALL_ROWS, at=10,
             budget="gradients")
        for zeta in (IID, 0.3, NON_IID)
    )  # fmt: skip


def _own_parts(whole: str, parts: tuple[Variant, ...]) -> tuple[Cell, ...]:
    """A method of ours, changed in one thing, for the gradients of three rounds of replay; replay beside it."""
    rows = ("replay", whole, *(part.name for part in parts))
    return tuple(
        Cell(ends("cifar10", zeta), "cifar10", {"zeta": zeta, "rounds": 3}, rows, budget="gradients")
        for zeta in (IID, 0.3, NON_IID)
    )


STUDIES: dict[str, Campaign] = {
    c.name: c
    for c in (
        Campaign("rates", "Which rate each method gets", "rates", _rates(), scales=AT, own_seeds=(RATES_SEED,)),
        Campaign("parts", "What each part of C-FLAG buys", "parts", _parts(), base="cflag-paper", scales=AT),
        Campaign("shared-parts", "What each part of C-FLAG-Shared buys, at equal gradients", "parts",
                 _own_parts("cflag-shared", SHARED_PARTS), base="cflag-shared", scales=AT),
        Campaign("balanced-parts", "What each part of C-FLAG-Balanced buys, at equal gradients", "parts",
                 _own_parts("cflag-balanced", BALANCED_PARTS), base="cflag-balanced", scales=AT),
        *(Campaign(f"cost-{budget}", f"All methods at equal {budget}", "cost", _cost(budget), budget,
                   base="replay", scales=AT)
          for budget in BUDGETS),
        Campaign("cost-class", "All methods at equal gradients, class-incremental", "cost", _class_cost(), "gradients",
                 base="replay", scales=AT),
    )
}  # fmt: skip
