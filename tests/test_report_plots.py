"""Charts of points in the report: costs and the spread over clients."""

from __future__ import annotations

import re

import pytest

from cflag import Result
from cflag.problems.score import ACCURACY, Score
from cflag.report import parts
from cflag.report.plots import MOST_DOTS, Dots, Strip, scatter, strips
from cflag.report.svg import Shade


def made(method: str, seed: int, end: float, gradients: float) -> Result:
    costs = {"gradients_current": gradients, "gradients_memory": 500, "bytes_up": 2e6, "bytes_down": 1e6}
    return Result(method, seed, {"task": [[end]], "class": [[end]]}, [0.0], [], costs, {"tasks": 1}, {}, score=ACCURACY)


def test_costs_count_memory_gradients_and_both_ways() -> None:
    """a: 1.5 k and 2.5 k gradients, 80 % and 60 %; b: 1 k and 90 %; all send 2 + 1 MB."""
    runs = {"a": [made("a", 1, 0.8, 1000), made("a", 2, 0.6, 2000)], "b": [made("b", 1, 0.9, 500)]}
    html = parts.costs(runs, "", {"a": 0, "b": 1})
    gradients, traffic = html.split('<figure id="accuracy-against-traffic">')
    assert re.findall(r"<title>([^<]+)</title>", gradients) == ["b: 1, 90", "a: 2, 70"], "the better first"
    assert re.findall(r"<title>([^<]+)</title>", traffic) == ["b: 3, 90", "a: 3, 70"]
    assert gradients.count("pale") == 2, "the runs of a; the only one of b is its mean"


def test_names_of_equal_points_do_not_lie_on_each_other() -> None:
    drawn = scatter([Dots(name, k, [(1.0, 1.0)]) for k, name in enumerate("abc")], "x", "y")
    ys = [float(y) for y in re.findall(r'<text class="name f\d" [^>]*y="([^"]+)"', drawn)]
    assert len(ys) == 3
    assert min(abs(p - q) for k, p in enumerate(ys) for q in ys[k + 1 :]) >= 20


def test_a_strip_has_a_box_at_the_quarters() -> None:
    """Of 0, 10, 20, 30, 100 the quarters are 10, 20, 30: on an axis from 0 to 106."""
    drawn = strips([Strip("a", 3, [30, 0, 100, 10, 20])], "x")
    assert "a, 5 values: least 0, first quarter 10, median 20, third quarter 30, greatest 100" in drawn
    start, width = map(float, re.findall(r'<rect class="f3 box" x="([^"]+)" y="[^"]+" width="([^"]+)"', drawn)[0])
    left = 14  # the name is above, not beside
    unit = (640 - 14 - left) / 106
    assert start == pytest.approx(left + 10 * unit, abs=0.1)
    assert width == pytest.approx(20 * unit, abs=0.2)
    assert drawn.count("<circle") == 5


def test_very_many_values_are_a_box_alone_and_few_are_dots_alone() -> None:
    assert "<circle" not in strips([Strip("a", 0, [float(k) for k in range(MOST_DOTS + 1)])], "x")
    assert "box" not in strips([Strip("a", 0, [1.0, 2.0])], "x")


def test_the_spread_is_over_the_clients_of_all_seeds() -> None:
    """Two seeds with three clients each, one without a value: 10, 20, 30, 40, 50 %, of which 30 is the middle."""
    runs = [made("a", 1, 0.8, 1), made("a", 2, 0.8, 1)]
    runs[0].measures["clients"] = {"accuracy_seen": [0.5, None, 0.1]}
    runs[1].measures["clients"] = {"accuracy_seen": [0.2, 0.3, 0.4]}
    html = parts.spread({"a": runs}, "", {"a": 0})
    assert "a, 5 values: least 10, first quarter 20, median 30, third quarter 40, greatest 50" in html
    assert "2 seeds" in html
    assert parts.spread({"b": [made("b", 1, 0.8, 1)]}, "", {"b": 0}) == "", "nothing is known of its clients"


def test_of_200_clients_each_has_a_column() -> None:
    """Client 7 has 0.25 in the second task."""
    rows = [[0.5, 0.25 if client == 7 else 0.75] for client in range(200)]
    drawn = parts.by_client(rows, "task", Shade.of(ACCURACY), [1, 2])
    assert "<title>task 2, 7: 25</title>" in drawn
    assert drawn.count("<rect") == 400
    few = parts.by_client(rows[:8], "task", Shade.of(ACCURACY), [1, 2])
    assert "<title>client 7, 2: 25</title>" in few


def test_an_axis_says_where_less_is_better() -> None:
    assert parts.on_axis(ACCURACY, " on them") == "accuracy on them (%)"
    assert parts.on_axis(Score("mae", "MAE", "error", "mm", higher=False)) == "error (mm), less is better"


def test_a_name_does_not_lie_on_another_methods_dot() -> None:
    """The name of the dot at the right goes to its left, where the other dot is: so it goes higher or lower."""
    drawn = scatter([Dots("a-long-name", 0, [(100.0, 50.0)]), Dots("b", 1, [(97.0, 50.0)])], "x", "y")
    name = float(re.findall(r'<text class="name f0" [^>]*y="([^"]+)"', drawn)[0])
    dots = [float(y) for y in re.findall(r'<circle [^>]*cy="([^"]+)"', drawn)]
    assert all(abs(name - 4 - y) >= 20 for y in dots)


def test_many_names_are_in_a_legend_and_the_second_dozen_is_hollow() -> None:
    few, many = ([Dots(f"m{k}", k % 12, [(k, k)], dash=k > 11) for k in range(count)] for count in (9, 14))
    assert scatter(few, "x", "y").count('<text class="name') == 9
    drawn = scatter(many, "x", "y")
    assert '<text class="name' not in drawn
    assert re.findall(r'<i class="(b\d+ dash)"></i>(m\d+)', drawn) == [("b0 dash", "m12"), ("b1 dash", "m13")]
    assert len(re.findall(r'<circle class="c\d+ hollow"', drawn)) == 2
