"""A method looks the same wherever it is drawn."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from cflag import registry, run
from cflag.report.page import make_page
from cflag.results.colours import COLOURS, OWN, colour, numbers
from cflag.results.figures import draw_accuracy
from tests.support.pages import ROOT
from tests.support.quick import QUICK

pytestmark = pytest.mark.usefixtures("no_figures")


def test_a_method_has_its_colour_whoever_is_beside_it() -> None:
    assert numbers(["replay", "finetune"])["replay"] == numbers(["replay"])["replay"] == 2
    assert numbers(["mine", "cflag", "yours"]) == {"mine": 1, "cflag": 0, "yours": 2}
    every = numbers(registry.names("method"))
    assert sorted(every.values()) == list(range(len(every)))
    assert set(OWN) <= set(every)


def test_the_page_and_the_pictures_have_the_same_colours() -> None:
    css = (files("cflag.report") / "page.css").read_text(encoding="utf-8")
    assert tuple(re.findall(r"--c\d: (#\w+)", css)[: len(COLOURS)]) == COLOURS
    assert len(set(COLOURS)) == len(OWN) == len(COLOURS)


def test_replay_alone_looks_as_it_does_beside_others(tmp_path: Path) -> None:
    """In the run's own figure, in its report, and in the first page's picture."""
    result = run("digits", method="replay", out=tmp_path / "run", **QUICK)
    (line,) = draw_accuracy([result]).axes[0].get_lines()
    assert line.get_color() == colour(2)
    assert set(re.findall(r'<text class="name f(\d)"[^>]*>replay<', make_page([result], "x"))) == {"2"}
    drawn = (ROOT / "docs" / "images" / "forgetting.svg").read_text(encoding="utf-8")
    assert re.search(rf'fill="{colour(2)}"[^>]*>replay ', drawn)
