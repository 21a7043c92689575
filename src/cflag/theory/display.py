"""The laboratory's report in a terminal of 80 columns."""

from __future__ import annotations

from math import isfinite

from rich import box
from rich.console import Console
from rich.table import Table

from cflag.theory.lab import Report


def show(console: Console, report: Report) -> None:
    """Print what holds, what was printed and does not, and each problem's constants and rates."""
    console.print(_statements(report))
    console.print(_counter_examples(report))
    console.print(_problems(report))


def _table(title: str, *columns: tuple[str, bool]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, number in columns:
        table.add_column(name, justify="right" if number else "left")
    return table


def _statements(report: Report) -> Table:
    table = _table(
        "Statements, checked wherever their assumptions are met",
        ("statement", False), ("assumes", False), ("checked", True), ("worst", True), ("verdict", False),
    )  # fmt: skip
    for r in report.results:
        worst = f"{r.worst:.3f}" if isfinite(r.worst) else "-"
        word = f"[bold red]{r.verdict}[/]" if r.failures else r.verdict
        table.add_row(r.statement.name, r.statement.assumes, f"{r.checked}/{r.instances}", worst, word)
    table.caption = "worst: largest left over right side, - where that is 0 or negative; †: rates do not adapt"
    table.caption_justify = "left"
    return table


def _counter_examples(report: Report) -> Table:
    table = _table(
        "Printed, and refuted by a counter-example (docs/paper-notes.md)",
        ("printed", False), ("left", True), ("right", True), ("", False), ("holds instead", False),
    )  # fmt: skip
    for example, check in report.refuted:
        word = "[bold red]holds?[/]" if check.holds else "false"
        table.add_row(example.name, f"{check.left:.4f}", f"{check.right:.4f}", word, example.instead)
    return table


def _problems(report: Report) -> Table:
    table = _table(
        "Problems",
        ("problem", False), ("L", True), ("L est.", True), ("hetero.", True), ("m", True), ("r", True),
        ("slope, const. β", True), ("c/√T", True),
    )  # fmt: skip
    for inv in report.investigations:
        plain, rates = inv.runs["plain"], inv.rates
        table.add_row(
            inv.problem.name,
            f"{inv.problem.smoothness:.2f}",
            f"{inv.estimated:.2f}{' !' if any(r.failures for r in inv.with_estimate) else ''}",
            f"{inv.problem.heterogeneity(plain[0].x):.3f}",
            f"{max(t.m_ratio for t in plain):.2f}",
            f"{max(t.r_ratio for t in plain):.2f}",
            f"{rates.slope(rates.constant):.2f}",
            f"{rates.slope(rates.diminishing):.2f}",
        )
    table.caption = "L est.: by smoothness = 'auto', ! where a statement fails with it; slopes on log-log axes"
    table.caption_justify = "left"
    return table
