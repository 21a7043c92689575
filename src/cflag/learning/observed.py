"""What C-FLAG and its variants show of themselves: the forgetting term, the rates, the smoothness."""

from __future__ import annotations

from cflag.diagnostics import Figure, Marks, Series

FORGETTING_FIGURE = Figure(
    "forgetting",
    "Forgetting term Γ(t)",
    (Series("gamma", "Γ(t)"), Series("gamma_adapted", "Γ(t) with β*")),
)
"""Γ(t) at the plain rates α and β; with the server's β*, where it adapts."""

RATES_FIGURE = Figure(
    "rates",
    "Adaptive rates",
    (
        Series("alpha", "α_i", by_client=True),
        Series("beta", "β_i", by_client=True),
        Series("server_beta", "β*"),
        Series("lambda", "Λ_i", by_client=True, drawn=False),
        Series("capped", "caps that acted", by_client=True, total=True, drawn=False),
        Series("server_capped", "caps of β* that acted", total=True, drawn=False),
    ),
    Marks("case", ("interference", "transference"), "how current and memory gradients meet"),
    axis="rate",
)

SMOOTHNESS_FIGURE = Figure("smoothness", "Estimated smoothness L", (Series("smoothness", "L"),))
"""With `smoothness = "auto"`."""

FIGURES = (FORGETTING_FIGURE, RATES_FIGURE, SMOOTHNESS_FIGURE)
