"""A method looks the same wherever it is drawn."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations
from pathlib import Path

import pytest
import torch

from cflag import registry, run
from cflag.paper.campaigns import CAMPAIGNS
from cflag.paper.cells import Campaign
from cflag.paper.figures import PLAIN, _looks
from cflag.paper.variants import VARIANTS
from cflag.report.page import make_page
from cflag.results.colours import COLOURS, OWN, colour, dashed, numbers
from cflag.results.figures import draw_accuracy
from tests.support.pages import ROOT
from tests.support.quick import QUICK

pytestmark = pytest.mark.usefixtures("no_figures")


CSS = (files("cflag.report") / "page.css").read_text(encoding="utf-8")
LIGHT, DARK = (re.findall(r"--c\d+: (#\w+)", part) for part in CSS.split("@media (prefers-color-scheme: dark)")[:2])
PAGES = {"light": (LIGHT, ("#fbfaf7", "#ffffff")), "dark": (DARK, ("#14191e", "#1b2229"))}


def linear(colour: str) -> torch.Tensor:
    """Return red, green and blue as light: IEC 61966-2-1."""
    c = torch.tensor([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)], dtype=torch.float64)
    return torch.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return WCAG's contrast, 1 to 21."""
    weights = torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64)
    dark, light = sorted(float(linear(c) @ weights) for c in (one, other))
    return (light + 0.05) / (dark + 0.05)


def oklab(colour: str) -> torch.Tensor:
    """Return a colour where distances are what people see: Ottosson's OKLab."""
    cones = torch.tensor([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                          [0.0883024619, 0.2817188376, 0.6299787005]], dtype=torch.float64)  # fmt: skip
    lab = torch.tensor([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
                        [0.0259040371, 0.7827717662, -0.8086757660]], dtype=torch.float64)  # fmt: skip
    return lab @ (cones @ linear(colour)) ** (1 / 3)


def test_a_method_has_its_colour_whoever_is_beside_it() -> None:
    assert numbers(["replay", "finetune"])["replay"] == numbers(["replay"])["replay"] == 2
    assert numbers(["mine", "cflag", "yours"]) == {"mine": 1, "cflag": 0, "yours": 2}
    assert sorted(OWN) == sorted(registry.names("method"))
    assert len({(colour(k), dashed(k)) for k in range(len(OWN))}) == len(OWN)


def test_the_page_and_the_pictures_have_the_same_colours() -> None:
    assert tuple(LIGHT) == COLOURS
    assert len(DARK) == len(COLOURS)
    for kind in "cfb":
        for k in range(len(COLOURS)):
            assert f".{kind}{k} {{ " in CSS


@pytest.mark.parametrize("page", PAGES)
def test_every_colour_is_seen_on_its_page_and_told_from_the_others(page: str) -> None:
    """3 to 1 is what WCAG asks of graphics; the first eight, which were chosen by eye, are 0.083 apart and more."""
    colours, papers = PAGES[page]
    assert min(contrast(c, paper) for c in colours for paper in papers) > 3
    assert min(float((oklab(a) - oklab(b)).norm()) for a, b in combinations(colours, 2)) > 0.08


def test_the_ledger_draws_methods_as_runs_do() -> None:
    looks = _looks([*VARIANTS])
    for name in set(OWN) & set(VARIANTS) - {"cflag"}:
        assert looks[name]["color"] == colour(OWN.index(name))
        assert looks[name]["ls"] == ("--" if dashed(OWN.index(name)) else "-")
    assert looks["cflag-paper"]["color"] == looks["cflag"]["color"] == colour(0)
    assert (looks["cflag-paper"]["ls"], looks["cflag"]["ls"], looks["replay-tail"]["ls"]) == ("-", "--", ":")
    assert looks["replay-tail"]["color"] == looks["replay"]["color"]


@pytest.mark.parametrize("campaign", [c for c in CAMPAIGNS.values() if c.kind not in PLAIN], ids=lambda c: c.name)
def test_no_two_lines_of_a_figure_look_the_same(campaign: Campaign) -> None:
    rows = {v.name for cell in campaign.cells for v in cell.variants("small")}
    looks = _looks(sorted(rows)) if campaign.kind != "parts" else {}
    assert len({(look["color"], str(look["ls"])) for look in looks.values()}) == len(looks)


def test_replay_alone_looks_as_it_does_beside_others(tmp_path: Path) -> None:
    """In the run's own figure, in its report, and in the first page's picture."""
    result = run("digits", method="replay", out=tmp_path / "run", **QUICK)
    (line,) = draw_accuracy([result]).axes[0].get_lines()
    assert line.get_color() == colour(2)
    assert set(re.findall(r'<text class="name f(\d)"[^>]*>replay<', make_page([result], "x"))) == {"2"}
    drawn = (ROOT / "docs" / "images" / "forgetting.svg").read_text(encoding="utf-8")
    assert re.search(rf'fill="{colour(2)}"[^>]*>replay ', drawn)
