"""The picture on the first page, drawn from the ledger: `python docs/_ext/forgetting.py` writes it anew.

Few lines with their names at their ends and large letters: it is read on a phone, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

from cflag.results.colours import colour, numbers

DOCS = Path(__file__).parent.parent
PICTURE = DOCS / "images" / "forgetting.svg"
LINES = {"replay": "replay", "ewc": "EWC", "cflag-paper": "C-FLAG", "finetune": "plain training"}
"""Methods of the ledger's figure, and what the picture calls them."""
SHADES = numbers(["cflag", *LINES])
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 60, 440, 90, 330
LOW, HIGH = 60, 95


def curves() -> dict[str, list[float]]:
    """Return the mean over seeds of the accuracy on the tasks so far, after each task of Split-CIFAR10."""
    entries = json.loads((DOCS / "results" / "small" / "figure-tasks.json").read_text())["entries"]
    found = {entry["method"]: entry["after_tasks"] for entry in entries if entry["group"] == "cifar10"}
    return {name: [fmean(seeds) for seeds in zip(*found[name], strict=True)] for name in LINES}


def _at(task: int, accuracy: float) -> tuple[float, float]:
    """Return where a number is drawn; the first task is number 0."""
    across = LEFT + 20 + (RIGHT - LEFT - 40) * task / 4
    return across, BOTTOM - (BOTTOM - TOP) * (accuracy - LOW) / (HIGH - LOW)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{text}</text>'


def _axes() -> list[str]:
    parts = []
    for level in range(60, 91, 10):
        _, y = _at(0, level)
        parts.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, y + 6, str(level), 'text-anchor="end" fill="#555"'))
    for task in range(5):
        parts.append(_text(_at(task, 0)[0], BOTTOM + 26, str(task + 1), 'text-anchor="middle" fill="#555"'))
    parts.append(_text((LEFT + RIGHT) / 2, BOTTOM + 54, "tasks learned", 'text-anchor="middle" fill="#555"'))
    return parts


def _line(name: str, values: list[float]) -> list[str]:
    label, shade = LINES[name], colour(SHADES[name.removesuffix("-paper")])
    points = [_at(task, value) for task, value in enumerate(values)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{shade}"/>' for x, y in points)
    x, y = points[-1]
    said = _text(x + 14, y + 6, f"{label} {values[-1]:.1f}", f'fill="{shade}" font-weight="bold"')
    return [f'<polyline points="{path}" fill="none" stroke="{shade}" stroke-width="3"/>', dots, said]


def picture() -> str:
    """Return the picture."""
    about = "Accuracy on the classes learned so far: plain training falls, C-FLAG falls less, replay least"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="18" role="img" aria-label="{about}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(20, 32, "Five clients learn photos, two classes at a time", 'font-weight="bold" font-size="20"'),
        _text(20, 60, f"accuracy on what was learned so far (%), from {LOW} on", 'fill="#555"'),
        *_axes(),
        *(part for name, values in curves().items() for part in _line(name, values)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
