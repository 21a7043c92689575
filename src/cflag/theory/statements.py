"""The paper's statements, each as a function of a trajectory: left side, right side, and whether it is claimed there.

Where a printed statement is false, the corrected one is listed here; `counterexamples.py` shows why. Lemmas and
theorems have the paper's numbers; "S." marks statements of its supplement without a number in the main text. Those
about C-FLAG-Shared and C-FLAG-Balanced are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Generic, TypeVar

from cflag.theory import algorithm, balanced, convergence, shared
from cflag.theory.checks import Check, Checks, always, by_clients, drift_holds, error_holds, growth_holds, lemma1_holds
from cflag.theory.round import Round, Trajectory

T = TypeVar("T")
"""What a statement is checked on."""


@dataclass(frozen=True)
class Statement(Generic[T]):
    """A statement about what happened in a run: the paper's, its correction, or ours about a variant."""

    name: str
    claim: str
    assumes: str
    """What must hold; † stands for rates that do not adapt."""
    check: Callable[[T], Checks]

    def __reduce__(self) -> tuple[Callable[[str], Statement[Any]], tuple[str]]:
        """Pickle by name, since the check itself cannot be pickled."""
        return statement_named, (self.name,)


def _rounds(met: Callable[[Round], bool], sides: Callable[[Round], Check]) -> Callable[[Trajectory], Checks]:
    """A statement about each round by itself."""

    def check(seen: Trajectory) -> Checks:
        return (sides(t) if met(t) else None for t in seen)

    return check


STATEMENTS: tuple[Statement[Trajectory], ...] = (
    Statement("Eq. (4), local step", "x_{k+1} = x_k − β (∇g − ∇g_i + v_k)", "none",
              _rounds(always, algorithm.local_step)),
    Statement("Eq. (5), first v", "v_{i,0} = ∇g_i(x_t)", "none", _rounds(always, algorithm.start_gradient)),
    Statement("Eq. (5), later v", "v_k − v_{k−1} = w_j (∇g_j(x_k) − ∇g_j(x_τ)) for one j", "none",
              _rounds(always, algorithm.later_gradients)),
    Statement("Line 12, server step", "x_{t+1} = x_t − Σ p_i (α_i m + β_i (E (g − g_i) + a_i))", "none",
              _rounds(always, algorithm.server_update)),
    Statement("Table 1, adaptive rates", "α_i = α − βΛ_i/‖m‖² or β_i = (1 − Lα) Λ_i/(L w_i ‖a_i‖²)", "clients adapt",
              _rounds(by_clients, algorithm.adaptive_rates)),
    Statement("Γ(t) as reported", "the run's Γ is (L/2)β²‖Σp_i a_i‖² − β(1−Lα)⟨m, Σp_i a_i⟩", "none",
              _rounds(always, algorithm.reported_gamma)),
    Statement("S. zero bias", "E_M[b(x)] = 0 at a fixed x", "M uniform", algorithm.zero_bias),
    Statement("S. averaged bias", "‖b‖² ≤ max_i ‖b_i‖²", "none", _rounds(always, algorithm.averaged_bias)),
    Statement("S. memory gradient", "‖∇f†‖ ≤ max_i r_i ‖∇g‖", "none", _rounds(always, algorithm.memory_gradient)),
    Statement("S. gradient error, any β", "‖e_k‖ ≤ βLE‖∇g‖ + 3βL²E max_{b<k}‖x_b − x_t‖", "L-smooth",
              _rounds(always, algorithm.error_lemma)),
    Statement("S. client drift", "‖x_k − x_t‖ ≤ 4βk‖∇g‖", "β ≤ 1/(4LE)", _rounds(drift_holds, algorithm.drift)),
    Statement("S. gradient error", "‖e_k‖ ≤ 2βLE‖∇g‖", "β ≤ 1/(12LE)", _rounds(error_holds, algorithm.error)),
    Statement("S. summed gradients I", "‖Σ_k ρ̄_k‖ ≤ (4LβE² + E)‖∇g‖", "β ≤ 1/(4LE)",
              _rounds(drift_holds, algorithm.summed_gradients)),
    Statement("S. summed gradients II", "‖Σ_k ρ̄_k‖² ≤ (32β²L²E⁴ + 2E²)‖∇g‖²", "β ≤ 1/(4LE)",
              _rounds(drift_holds, algorithm.summed_gradients_squared)),
    Statement("S. accumulated error", "‖Σ_k ē_k‖ ≤ 2βLE²‖∇g‖", "β ≤ 1/(12LE)",
              _rounds(error_holds, algorithm.summed_errors)),
    Statement("S. current gradient", "‖∇g‖² ≤ 2‖∇h̃‖² + 2ω²", "none", _rounds(always, convergence.current_gradient)),
    Statement("Lemma 1", "‖∇f‖² ≤ (f(x_t) − f(x_{t+1}) + B + Γ) / (α[1 − (L/2)α(1+m)])", "α < 2/(L(1+m)) †",
              _rounds(lemma1_holds, convergence.lemma1)),
    Statement("Theorem 2, B kept", "min‖∇f‖² ≤ 2L(1+m)/T (F + Σ Γ + B)", "α = 1/(L(1+m)) †", convergence.theorem2_kept),
    Statement("Theorem 2, corrected", "min‖∇f‖² ≤ 2/(α(1−m)T) (F + Σ Γ + β⟨b, Σp_i a_i⟩)",
              "m < 1, α ≤ 1/L †", convergence.theorem2_sure),
    Statement("Lemma 3, corrected", "min‖∇Φ‖² ≤ 2/(βT) (Φ_0 − Φ_T) + (6βLE²)² mean‖∇g‖²",
              "β ≤ 1/(12LE), L(α + βE) ≤ 1 †", convergence.lemma3),
    Statement("Lemma 4, one round", "Γ ≤ ½Q_t ‖∇g‖²", "β ≤ 1/(12LE), r finite †",
              _rounds(growth_holds, convergence.lemma4_round)),
    Statement("Lemma 4, with ω", "Γ ≤ Q_t (‖∇h̃‖² + ω²)", "β ≤ 1/(12LE), r finite †",
              _rounds(growth_holds, convergence.lemma4_joint)),
    Statement("Lemma 4, corrected", "mean Γ ≤ ½Q mean‖∇g‖²", "β ≤ 1/(12LE), r finite †", convergence.lemma4),
    Statement("S. constant β, corrected", "mean Γ ≤ ½(11/(60L) + 2r|1−Lα|/(15L)) mean‖∇g‖²",
              "β = 1/(60LE), r finite †", convergence.constant_step),
    Statement("Theorem 5, corrected", "min‖∇f‖² ≤ 2/(α(1−m)) (f(x_0)/T + ½QG² + βE(1+6βLE)DG)",
              "m < 1, α ≤ 1/L, β ≤ 1/(12LE), r finite †", convergence.theorem5),
    Statement("Lemma 6", "Γ_i with α_i ≤ Γ_i with α", "Λ_i ≤ 0", convergence.lemma6),
    Statement("Lemma 7, per client", "Σ p_i Γ_i with α_i, β_i ≤ Σ p_i Γ_i with α, β", "clients adapt",
              _rounds(by_clients, convergence.lemma7)),
    Statement("Lemma 7, for Γ", "Γ with α_i, β_i ≤ Σ p_i Γ_i with α, β", "clients adapt, worst case",
              _rounds(lambda t: t.at.adapt == "worst", convergence.lemma7_itself)),
    Statement("Section 5, server's β*", "Γ with β* ≤ Γ with β", "the server adapts",
              _rounds(lambda t: t.at.adapt == "server", convergence.server_beta)),
    Statement("S. IFO calls", "a round costs Σ (|C^i| + |M^i| + E − 1)", "components of one row",
              _rounds(lambda t: t.at.component == 1, algorithm.calls)),
)  # fmt: skip


SHARED_STATEMENTS = tuple(Statement(name, *about) for name, about in shared.SIDES.items())

BALANCED_STATEMENTS = tuple(Statement(name, *about) for name, about in balanced.SIDES.items())
MINIMISER = Statement("Balanced, one minimiser", "∇f_i(f) = 0 for every client at f = log p(x|c)",
                      "clients differ in class shares alone", balanced.at_minimiser)  # fmt: skip


def statement_named(name: str) -> Statement[Any]:
    """Return a statement by its name."""
    both: tuple[Statement[Any], ...] = (*STATEMENTS, *SHARED_STATEMENTS, *BALANCED_STATEMENTS, MINIMISER)
    return next(statement for statement in both if statement.name == name)


@dataclass(frozen=True)
class StatementResult:
    """How a statement fared over some trajectories."""

    statement: Statement[Any]
    instances: int
    checked: int
    worst: float
    """The largest left / right, where the right side is positive."""
    failures: tuple[Check, ...]

    @property
    def verdict(self) -> str:
        """ "holds", "FAILS", or "not met" where its assumptions were never met."""
        return "FAILS" if self.failures else "holds" if self.checked else "not met"


def judge(statement: Statement[T], trajectories: list[T]) -> StatementResult:
    """Check a statement wherever it is claimed."""
    checks = [check for seen in trajectories for check in statement.check(seen)]
    met = [check for check in checks if check is not None]
    ratios = [check.ratio for check in met if isfinite(check.ratio)]
    failures = tuple(check for check in met if not check.holds)
    return StatementResult(statement, len(checks), len(met), max(ratios, default=nan), failures)


def total(results: list[StatementResult]) -> StatementResult:
    """Combine the results of one statement over several problems."""
    ratios = [r.worst for r in results if isfinite(r.worst)]
    failures = tuple(check for r in results for check in r.failures)
    count = sum(r.instances for r in results), sum(r.checked for r in results)
    return StatementResult(results[0].statement, *count, max(ratios, default=nan), failures)
