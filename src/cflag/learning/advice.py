"""What C-FLAG can say about its own settings after a task: that its rates do not adapt, or that its memory is starved.

Pure functions of lines of `metrics.jsonl`. Each returns one line that says what to change, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from cflag.diagnostics import Record

STARVED = 0.25
"""Below this part of what replay spends on the memory, or of the way it goes along it, the memory is starved."""
INSTEAD = "cflag-balanced"
"""What to take where it is (docs/which-method.md)."""


def about_caps(table: str, alpha: float, cap: float, records: Sequence[Record]) -> str:
    """Say that the cap decides α_i, where it stopped every one that the interference rule raised in a task's rounds."""
    columns = [(r["clients"].get("case") or [], r["clients"].get("capped") or []) for r in records]
    raised = [stopped for cases, capped in columns for case, stopped in zip(cases, capped, strict=False)
              if case == "interference"]  # fmt: skip
    if len(raised) < len(records) or not all(raised):
        return ""
    none = alpha > 0.9 * cap
    what = f"{table}.alpha = {alpha:g} leaves it no room" if none else f"it is {alpha:g} or {cap:g}"
    then = f"{table}.alpha lower, or {table}.adapt = 'off'" if none else f"{table}.alpha higher or {table}.beta lower"
    return (
        f"{table}: the interference rule met its cap {cap:g} all {len(raised)} times, so α_i does not adapt ({what}): "
        f"set {then}"
    )


def about_memory(
    table: str, alpha: float, beta: float, steps: int, replayed: int, records: Sequence[Record]
) -> str:  # fmt: skip
    """Say that the past has little say, where one step of α stands against E of β, or few samples against replay's."""
    spent = sum(record["gradients_memory"] for record in records)
    if not spent or not replayed:
        return ""
    say, share = alpha / (steps * beta), spent / replayed
    if share < STARVED:
        return (
            f"{table}: the memory gets {share:.0%} of the gradients that replay would spend on it: "
            f"raise memory.sample, or play more and shorter rounds (epochs, steps); or take method = '{INSTEAD}'"
        )
    if say < STARVED:
        return (
            f"{table}: one memory step of α = {alpha:g} stands against {steps} steps of β = {beta:g}, so the past has "
            f"{say:.0%} of the say it has in replay: play more and shorter rounds, raise {table}.alpha towards "
            f"{steps * beta:.2g} (and {table}.smoothness below 1/alpha), or take method = '{INSTEAD}'"
        )
    return ""
