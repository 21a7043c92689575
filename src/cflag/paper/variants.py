"""The rows of tables: methods, where needed with settings of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Variant:
    """A row of a table: a method, where needed with settings of its own."""

    name: str
    """Its key in folder names and summaries."""
    label: str
    method: str
    printed: str | None
    """The row of the paper's tables that it is compared with."""
    settings: tuple[tuple[str, Any], ...] = ()
    rates: tuple[str, ...] = ("lr",)
    """The settings of the method that hold its rate; several are set to the same value (the paper's α = β)."""
    alpha: float = 1.0
    """α in units of β; the paper's own is 1."""
    rounds: int = 0
    """Rounds of its own, where more would be no use or are no matter: a yardstick that no budget is shared with."""

    def at_rate(self, rate: float) -> list[tuple[str, Any]]:
        """Return the settings with which it runs at a rate."""
        return [(f"{self.method}.{name}", self.alpha * rate if name == "alpha" else rate) for name in self.rates]


PAPERS_OWN = "C-FLAG"
"""In a cell, stands for whichever variants of C-FLAG a scale runs."""
BOTH_RATES = ("alpha", "beta")
CFLAG_VARIANTS = (
    Variant("cflag-paper", "C-FLAG, as in the paper's experiments", "cflag", "cflag",
            (("cflag.estimator", "minibatch"), ("optimizer", "adam")), BOTH_RATES),
    Variant("cflag", "C-FLAG, delayed gradients", "cflag", None, (("cflag.estimator", "iag"),), BOTH_RATES),
    Variant("cflag-sgd", "C-FLAG-SGD", "cflag-sgd", "cflag", rates=BOTH_RATES),
)  # fmt: skip
"""The closest to what the paper ran comes first: claims about C-FLAG are judged on the first that was run."""
BASELINES = {"finetune": "Fine-FL", "ewc": "EWC-FL", "nccl": "NCCL-FL", "replay": "Erg-FL", "fedtrack": "FedTrack",
             "lwf": "LwF-FL", "icarl": "iCaRL-FL", "target": "TARGET"}  # fmt: skip
"""What the paper calls our other methods."""
TAIL = (("average_tail", 0.25),)
OTHERS = (
    *(Variant(name, label, name, name, rates=("beta",) if name == "fedtrack" else ("lr",))
      for name, label in BASELINES.items()),
    Variant("cflag-shared", "C-FLAG-Shared", "cflag-shared", None, rates=("beta",)),
    Variant("cflag-tracked", "C-FLAG-Tracked", "cflag-tracked", None, rates=("beta",)),
    Variant("cflag-balanced", "C-FLAG-Balanced", "cflag-balanced", None, rates=("beta",)),
    Variant("cflag-balanced-fresh", "C-FLAG-Balanced, fresh moments", "cflag-balanced", None,
            (("cflag-balanced.moments", "fresh"),), rates=("beta",)),
    Variant("replay-tail", "Erg-FL, last quarter averaged", "replay", None, TAIL),
    Variant("cflag-shared-tail", "C-FLAG-Shared, last quarter averaged", "cflag-shared", None, TAIL, rates=("beta",)),
    Variant("agem", "A-GEM-FL", "agem", None),
    Variant("derpp", "DER++-FL", "derpp", None),
    Variant("er-ace", "ER-ACE-FL", "er-ace", None),
    Variant("cflag-sgd-own", "C-FLAG-SGD, own labels", "cflag-sgd", None, (("cflag-sgd.labels", "own"),), BOTH_RATES),
    Variant("joint", "joint training", "joint", None),
    Variant("ncm", "nearest class mean", "ncm", None, rates=(), rounds=1),
    Variant("slda", "streaming LDA", "slda", None, rates=(), rounds=1),
    Variant("ridge", "ridge regression", "ridge", None, rates=(), rounds=1),
    Variant("probe", "offline linear probe", "finetune", None,
            (("tasks", 1), ("clients", 1), ("finetune.lr", 0.015)), rounds=50),
)  # fmt: skip


def _part(name: str, label: str, **settings: Any) -> Variant:
    """C-FLAG as in the paper's experiments, but for one thing or two."""
    paper = CFLAG_VARIANTS[0]
    own = tuple((key if "." in key else f"cflag.{key}", value) for key, value in settings.items())
    return Variant(f"part-{name}", label, paper.method, None, (*paper.settings, *own), paper.rates)


PARTS = (
    _part("delayed", "delayed gradients, same rates", estimator="iag"),
    _part("no-drift", "no drift correction", drift=0.0),
    _part("interference", "interference rule only", rules="interference"),
    _part("transference", "transference rule only", rules="transference"),
    _part("fixed", "fixed rates", adapt="off"),
    _part("average", "average case", adapt="average"),
    _part("alpha-5", "α = 5β", alpha=5e-3),
    _part("alpha-fifth", "α = β/5", alpha=2e-4),
    _part("no-memory", "no memory", **{"memory.kind": "none"}),
)
"""What each part of C-FLAG buys: the paper's own with one thing changed, at β = 1e-3."""


def _theory(name: str, label: str, **settings: Any) -> Variant:
    """C-FLAG as printed, with a memory step as long as the E = 26 local ones, but for one thing."""
    own = tuple((f"cflag.{key}", value) for key, value in settings.items())
    return Variant(f"theory-{name}", label, "cflag", None, own, BOTH_RATES, alpha=25.0)


THEORY = (
    Variant("theory-rates", "C-FLAG, rates of the theory", "cflag", None,
            (("cflag.smoothness", "auto"), ("cflag.beta", 1e9)), rates=()),
    _theory("balanced", "C-FLAG, α = 25 β"),
    _theory("minibatch", "C-FLAG, α = 25 β, mini-batches", estimator="minibatch"),
    _theory("no-drift", "C-FLAG, α = 25 β, no drift correction", drift=0.0),
)  # fmt: skip
"""C-FLAG with plain SGD where the paper's assumptions hold: with the rates that they ask for, and part by part."""


def _of(method: str, name: str, label: str, **settings: Any) -> Variant:
    """A variant of ours, changed in one thing or two."""
    own = tuple((f"{method}.{key}", value) for key, value in settings.items())
    return Variant(f"{method.removeprefix('cflag-')}-{name}", label, method, None, own, ("beta",))


SHARED_PARTS = (
    _of("cflag-shared", "own", "own memory only", past="own"),
    _of("cflag-shared", "fresh", "fresh moments", moments="fresh"),
    _of("cflag-shared", "own-fresh", "own memory only, fresh moments", past="own", moments="fresh"),
    _of("cflag-shared", "still", "m stands still between exchanges", track=0),
    _of("cflag-shared", "no-rule", "no interference rule", rule="off"),
    _of("cflag-shared", "pull-half", "pull = 0.5", pull=0.5),
    _of("cflag-shared", "pull-2", "pull = 2", pull=2.0),
    _of("cflag-shared", "exchange-2", "exchange every 2 steps", exchange=2),
    _of("cflag-shared", "exchange-8", "exchange every 8 steps", exchange=8),
    _of("cflag-shared", "exchange-32", "exchange every 32 steps", exchange=32),
)
"""What each part of C-FLAG-Shared buys."""
BALANCED_PARTS = (
    _of("cflag-balanced", "no-rule", "no interference rule", rule="off"),
    _of("cflag-balanced", "fresh", "fresh moments", moments="fresh"),
    _of("cflag-balanced", "no-prior", "plain losses", prior="none"),
    _of("cflag-balanced", "rule-only", "plain losses, fresh moments", prior="none", moments="fresh"),
)
"""What each part of C-FLAG-Balanced buys."""
VARIANTS = {v.name: v for v in (*CFLAG_VARIANTS, *OTHERS, *PARTS, *THEORY, *SHARED_PARTS, *BALANCED_PARTS)}
TASK_ROWS = ("finetune", "ewc", "nccl", "fedtrack", "replay", PAPERS_OWN)
CLASS_ROWS = ("finetune", "ewc", "lwf", "icarl", "target", "nccl", "fedtrack", PAPERS_OWN)


def label(name: str) -> str:
    """Return what a row is called in tables and figures."""
    return VARIANTS[name].label if name in VARIANTS else name


def main_cflag(names: Sequence[str]) -> str | None:
    """Return the variant of C-FLAG, of those that were run, which claims about C-FLAG are judged on."""
    return next((v.name for v in CFLAG_VARIANTS if v.name in names), None)
