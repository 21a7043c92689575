"""The laboratory's figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cflag.results.colours import COLOURS
from cflag.results.figures import INK, new_panels, save
from cflag.theory.lab import Investigation, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREEN = COLOURS[:3]


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Draw the figures, one panel per problem, into a folder; return the PNG files."""
    kinds = {"rate": draw_rate, "gamma": draw_gamma, "bounds": draw_bounds}
    return [save(_panels(report, draw), folder / what)[0] for what, draw in kinds.items()]


def _panels(report: Report, draw: Callable[[Investigation, Axes], None]) -> Figure:
    """One panel for each problem, and one legend: all panels have the same lines."""
    columns = min(3, len(report.investigations))
    rows = -(-len(report.investigations) // columns)
    figure, panels = new_panels(rows, columns)
    for investigation, axes in zip(report.investigations, panels, strict=False):
        draw(investigation, axes)
        axes.xaxis.set_major_formatter("{x:.0f}")
    for axes in panels[len(report.investigations) :]:
        axes.set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw_rate(investigation: Investigation, axes: Axes) -> None:
    """min ‖∇f‖² against T on log-log axes, with fitted slopes, the bound and the paper's −1/2."""
    rates = investigation.rates
    axes.set(xscale="log", yscale="log", xlabel="rounds T", ylabel="min ‖∇f‖²")
    series = (("constant β", rates.constant, RED, "s"), ("β = c/√T", rates.diminishing, BLUE, "o"))
    for label, values, colour, marker in series:
        axes.plot(rates.horizons, values, marker=marker, color=colour, label=label)
    axes.plot(rates.horizons, rates.bound, color=INK, lw=1, label="Theorem 5, corrected, for β = c/√T")
    anchor = rates.diminishing[0]
    guide = [anchor * (T / rates.horizons[0]) ** -0.5 for T in rates.horizons]
    axes.plot(rates.horizons, guide, color=INK, lw=1, ls=":", label="slope −1/2")
    axes.set_xticks(rates.horizons, [str(T) for T in rates.horizons])
    axes.minorticks_off()
    slopes = f"slopes {rates.slope(rates.constant):.2f} and {rates.slope(rates.diminishing):.2f}"
    axes.set_title(f"{investigation.problem.name}: {slopes}")


def draw_gamma(investigation: Investigation, axes: Axes) -> None:
    """Γ(t) from the same start: plain rates α = β, and rates that adapt at clients or at the server."""
    runs = investigation.runs
    adapted = {label: [t.gamma_adapted() for t in runs[label]] for label in ("average", "worst")}
    server = [t.gamma(beta=t.logs["server_beta"]) for t in runs["server"]]
    lines = (
        ("rates that do not adapt", [t.gamma() for t in runs["fixed"]], INK, "-"),
        ("clients adapt, average case", adapted["average"], RED, "--"),
        ("clients adapt, worst case", adapted["worst"], BLUE, "-"),
        ("the server adapts", server, GREEN, "-."),
    )
    for label, values, colour, style in lines:
        axes.plot(range(1, len(values) + 1), values, color=colour, ls=style, label=label)
    axes.axhline(0, color=INK, lw=0.5)
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="round t", ylabel="Γ(t)", title=investigation.problem.name)


def draw_bounds(investigation: Investigation, axes: Axes) -> None:
    """The farthest client and the largest gradient error of each round, beside their bounds."""
    seen = investigation.runs["plain"]
    L, E, beta = seen[0].at.smoothness, seen[0].at.steps, seen[0].at.beta
    size = [float(t.g.norm()) for t in seen]
    lines = (
        ("drift max ‖x_k − x_t‖", [float(t.drift[:, :-1].max()) for t in seen], BLUE, "-"),
        ("its bound 4β(E−1)‖∇g‖", [4 * beta * (E - 1) * g for g in size], BLUE, ":"),
        ("gradient error max ‖e_k‖", [float(t.errors.norm(dim=2).max()) for t in seen], RED, "-"),
        ("its bound 2βLE‖∇g‖", [2 * beta * L * E * g for g in size], RED, ":"),
    )
    for label, values, colour, style in lines:
        axes.plot(range(1, len(values) + 1), values, color=colour, ls=style, label=label)
    axes.locator_params(axis="x", integer=True)
    axes.set(yscale="log", xlabel="round t", title=investigation.problem.name)
