"""The HTML report."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflag import run
from cflag.cli import main
from cflag.report.page import find_results, make_page
from cflag.report.svg import Axis, Line, curves

QUICK: dict[str, Any] = {"tasks": 2, "rounds": 2, "clients": 3, "width": 8, "workers": 1}
VOID = {"meta", "link", "br", "img", "input"}


class Tags(HTMLParser):
    """Checks that every tag is closed, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method in ("cflag", "finetune"):
        run("digits", out=folder / method, method=method, **QUICK)
    return folder


def test_the_page_is_whole_and_needs_nothing_else(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert main(["report", str(runs), "--out", str(out), "--title", "<b>&"]) == 0
    page = out.read_text()
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
    outside = [link for link in re.findall(r"https?://[^\"' )]+", page) if "www.w3.org/2000/svg" not in link]
    assert outside == []
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    # curves, two matrices, Γ, rates and cases of C-FLAG, clients of both, the partition
    assert tags.seen["svg"] == 1 + 2 + 1 + 2 + 2 + 1
    assert tags.seen["table"] == 1


def test_the_numbers_are_the_runs(runs: Path) -> None:
    results = find_results([runs])
    page = make_page(results, "x")
    for result in results:
        assert f"<td>{100 * result.average_accuracy:.1f}</td>" in page
        for row in result.accuracy_matrix:
            for value in row:
                assert f">{100 * value:.0f}</text>" in page


def test_nothing_to_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no finished run" in capsys.readouterr().err


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_round_and_within(low: float, span: float) -> None:
    axis = Axis(low, low + span, 0, 100)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 8
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) + 1e-9 for tick in ticks)
    assert axis.at(low) == 0
    assert axis.at(low + span) == pytest.approx(100)


def test_curves_without_points_say_so() -> None:
    assert "nothing to draw" in curves([Line("a", [], 0)], "x", "y")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
def test_in_a_browser(runs: Path, tmp_path: Path) -> None:
    """No errors in the console, every figure has its buttons, and a click on a heading sorts."""
    probe = """
    <script>
    const notes = [];
    window.addEventListener("error", (event) => notes.push("error: " + event.message));
    window.addEventListener("load", () => {
      const table = document.querySelector("table.sort"), head = table.tHead.rows[0].cells[1];
      const column = () => [...table.tBodies[0].rows].map((row) => parseFloat(row.cells[1].textContent));
      head.click(); const down = column(); head.click(); const up = column();
      const sorted = (a, sign) => a.every((v, k) => k === 0 || sign * (v - a[k - 1]) >= 0);
      notes.push("down " + sorted(down, -1), "up " + sorted(up, 1));
      const figures = [...document.querySelectorAll("figure")];
      notes.push("figures " + figures.every((f) => f.querySelector("svg").getBoundingClientRect().width > 50));
      notes.push("buttons " + figures.every((f) => f.querySelectorAll(".save button").length === 2));
      notes.push("saved " + whole(figures[0].querySelector("svg")).includes("stroke:"));
      document.title = notes.join("; ");
      document.body.setAttribute("data-notes", notes.join("; "));
    });
    </script></head>"""
    page = make_page(find_results([runs]), "x").replace("</head>", probe, 1)
    file = tmp_path / "page.html"
    file.write_text(page)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--disable-quic",
             f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom"]  # fmt: skip
    done = subprocess.run(["chromium", *flags, file.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'data-notes="([^"]*)"', done.stdout)
    assert found, done.stderr[-500:]
    assert found[1] == "down true; up true; figures true; buttons true; saved true"
