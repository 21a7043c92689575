"""The HTML report."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cflag import Result, Source, run
from cflag.cli import main
from cflag.diagnostics import Figure, Marks, Series
from cflag.problems.score import ACCURACY
from cflag.report.measured import sections
from cflag.report.page import apart, by_benchmark, find_results, make_page
from cflag.report.parts import over_seeds, source_name
from cflag.report.svg import ROW, Axis, Line, Rug, Shade, curves, heat

pytestmark = pytest.mark.usefixtures("no_figures")

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
    # two of costs, curves, two matrices, Γ, rates and cases of C-FLAG, the spread over clients, two maps, the partition
    assert tags.seen["svg"] == 2 + 1 + 2 + 1 + 2 + 1 + 2 + 1
    assert tags.seen["table"] == 1 + 2, "of the methods, and of each one's clients"
    assert '<figure id="schedule' not in page, "everybody is always in the same task"


def test_clients_have_their_own_measures(runs: Path) -> None:
    results = find_results([runs / "finetune"])
    page = make_page(results, "x")
    table = page[page.index("finetune, seed 1234: each client") :].partition("</table>")[0]
    rows = [re.findall(r"<td>(?:<a [^>]*>)?([^<]*)", row) for row in table.split("<tr>")[2:]]
    for k, row in enumerate(rows):
        assert f'href="#client-{k}"' in table
        own = results[0].client_matrices[k]
        assert row[0] == str(k)
        assert row[1] == row[2] == f"{50 * (own[1][0] + own[1][1]):.1f}", "all have begun both tasks"  # type: ignore[operator]
        assert row[4] == f"{100 * (own[0][0] - own[1][0]):.1f}"  # type: ignore[operator]
    assert len(rows) == 3


def test_runs_with_other_settings_are_no_seeds_of_each_other(tmp_path: Path) -> None:
    """As a folder has them in which one comparison followed another: rounds and a setting of the method differ."""
    kinds: dict[str, dict[str, Any]] = {
        "a": {"rounds": 1},
        "b": {"rounds": 1, "seed": 5},
        "c": {},
        "d": {"finetune": {"lr": 0.01}},
    }
    for name, own in kinds.items():
        run("digits", out=tmp_path / name, method="finetune", **{**QUICK, **own, "eval_every": 1})
    results = apart(find_results([tmp_path]))
    assert [result.method for result in results] == [
        *["finetune, rounds = 1, lr = 0.1"] * 2,
        "finetune, rounds = 2, lr = 0.1",
        "finetune, rounds = 2, lr = 0.01",
    ]
    page = make_page(find_results([tmp_path]), "x")
    assert not re.findall(r'id="[^"]*[ =,][^"]*"', page)
    assert [r.method for r in apart(find_results([tmp_path / "a", tmp_path / "b"]))] == ["finetune"] * 2


def test_a_run_with_clocks_of_their_own_has_a_picture_and_rows_by_round(tmp_path: Path) -> None:
    schedule = {"kind": "joining", "join": 1, "leave": 1}
    run("digits", out=tmp_path / "run", method="finetune", schedule=schedule, **{**QUICK, "tasks": 3})
    run("digits", out=tmp_path / "together", method="finetune", **{**QUICK, "tasks": 3})
    results = find_results([tmp_path / "run", tmp_path / "together"])
    assert list(by_benchmark(results)) == [
        "digits, task-incremental, schedule = joining (join 1, leave 1, lacking 0.0)",
        "digits, task-incremental, schedule = together",
    ]
    page = make_page(results[:1], "x")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    picture = page[page.index('<figure id="schedule-picture">') :].partition("</figure>")[0]
    stays = re.findall(r"<title>client (\d): task (\d), rounds (\d) to (\d)</title>", picture)
    assert stays == [tuple(found) for found in ("0112", "1234", "2356")], "one comes, one goes"
    assert "Accuracy whenever someone leaves a task" in page
    assert "<title>after round 4, 2: " in page, "a row of the matrix is named after its round"
    assert "own moment" in page


def test_tiles_say_the_source_the_partition_the_day_and_the_commit(runs: Path, tmp_path: Path) -> None:
    away = shutil.copytree(runs / "finetune", tmp_path / "run")
    raw = json.loads((away / "result.json").read_text())
    raw["config"] |= {"source": "npz:some/where/mine.npz", "partition": "classes", "classes_per_client": 3}
    raw["versions"] |= {"commit": "abc123"}
    (away / "result.json").write_text(json.dumps(raw))
    (away / "digests.json").unlink()
    os.utime(away / "result.json", (86400 * 365, 86400 * 365))  # a year of 365 days after 1970 began
    page = make_page(find_results([tmp_path]), "x")
    tiles = re.findall(r'<div class="card"><b>([^<]+)</b><span>([^<]+)</span>', page)
    assert ("mine.npz", "task-incremental") in tiles
    assert ("3", "clients, 3 classes each") in tiles
    assert ("1971-01-01", "last run finished; commit abc123") in tiles
    assert ("1", "seed") in tiles


def test_a_source_of_ones_own_has_its_name(tmp_path: Path) -> None:
    x, y = torch.zeros(40, 4), torch.arange(40) % 4
    own = Source.from_tensors((x, y), (x, y), name="birds")
    result = run(source=own, out=tmp_path / "run", method="finetune", **QUICK)
    assert source_name(result) == "birds"


def test_the_numbers_are_the_runs(runs: Path) -> None:
    results = find_results([runs])
    page = make_page(results, "x")
    for result in results:
        assert f"<td>{100 * result.average_accuracy:.1f}</td>" in page
        for row in result.accuracy_matrix:  # one seed: its own mean
            for value in row:
                assert f">{100 * value:.0f}</text>" in page


def test_runs_of_several_benchmarks_get_a_part_each_and_one_table(runs: Path, tmp_path: Path) -> None:
    for zeta in (0.5, 5.0):
        run("digits", out=tmp_path / str(zeta), method="finetune", zeta=zeta, **QUICK)
    results = [*find_results([runs]), *find_results([tmp_path])]
    groups = by_benchmark(results)
    assert {name: [r.method for r in mine] for name, mine in groups.items()} == {
        "digits, task-incremental, zeta = 100000": ["cflag", "finetune"],
        "digits, task-incremental, zeta = 0.5": ["finetune"],
        "digits, task-incremental, zeta = 5": ["finetune"],
    }
    page = make_page(results, "x")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen["table"] == 4 + 4, "one of all, one each, and one of each run's clients"
    names = re.findall(r'<figure id="([^"]+)"', page)
    assert len(names) == len(set(names)), "a saved figure is named after its id"


def test_the_band_reaches_from_the_worst_seed_to_the_best(tmp_path: Path) -> None:
    results = [run("digits", out=tmp_path / str(seed), method="finetune", seed=seed, **QUICK) for seed in (1, 2)]
    page = make_page(results, "x")
    (points,) = re.findall(r'<polygon class="band f1" points="([^"]+)"', page)
    ys = [float(pair.split(",")[1]) for pair in points.split()]
    ends = sorted(100 * r.average_accuracy for r in results)
    middle = re.findall(r'<circle class="f1" r="3" cx="[^"]+" cy="([^"]+)"', page)
    assert len(ys) == 4, "two tasks there and back"
    assert ys[1] >= float(middle[1]) >= ys[2], "pixels count downwards"
    assert (ys[1] > ys[2]) == (ends[1] > ends[0])


def test_a_report_needs_neither_the_data_nor_the_method(runs: Path, tmp_path: Path) -> None:
    """The folder says which classes clients had and what the method measured: a plugin may be gone."""
    page = make_page(find_results([runs]), "x")
    away = shutil.copytree(runs / "cflag", tmp_path / "gone")
    raw = json.loads((away / "result.json").read_text())
    raw["config"] |= {"method": "gone", "source": "gone"}
    (away / "result.json").write_text(json.dumps({**raw, "method": "gone"}))
    (away / "digests.json").unlink()
    again = make_page(find_results([tmp_path]), "x")
    for name in ("forgetting", "rates-gone", "rates-case-gone", "partition"):
        assert f'<figure id="{name}">' in again
        assert f'<figure id="{name.replace("gone", "cflag")}">' in page


def test_what_is_not_known_has_no_part(runs: Path, tmp_path: Path) -> None:
    """A deployment's server does not know the clients' classes; FedAvg declares no figures."""
    away = shutil.copytree(runs / "finetune", tmp_path / "fleet")
    (away / "benchmark.json").unlink()
    page = make_page(find_results([tmp_path]), "x")
    heads = re.findall(r"<h2>([^<]+)</h2>", page)
    assert heads == ["Summary", "Methods and costs", "Accuracy against cost", "Accuracy after each task",
                     "Accuracy matrices", "Clients", "One client at a time", "Config"]  # fmt: skip


def test_class_counts_are_drawn_from_the_folder(runs: Path, tmp_path: Path) -> None:
    away = shutil.copytree(runs / "finetune", tmp_path / "run")
    counts = [{7: [101, 0, 1], 3: [102, 103, 1]}, {3: [1000, 0, 0], 5: [104, 105, 1]}]  # class 3 is in two tasks
    (away / "benchmark.json").write_text(json.dumps({"class_counts": counts}))
    page = make_page(find_results([tmp_path]), "x")
    drawn = page[page.index('<figure id="partition">') :].partition("</figure>")[0]
    titles = re.findall(r"<title>client (\d), (\d): (\d+)</title>", drawn)
    assert titles == [("0", "7", "101"), ("0", "3", "1102"), ("0", "5", "104"),
                      ("1", "7", "0"), ("1", "3", "103"), ("1", "5", "105"),
                      ("2", "7", "1"), ("2", "3", "1"), ("2", "5", "1")]  # fmt: skip
    assert "task 1: 203 (7: 101, 3: 102)\ntask 2: 1104 (3: 1000, 5: 104)" in page, "client 0, by task"


def measured(folder: Path, method: str, seed: int, rows: list[dict[str, Any]], own: Figure) -> Result:
    """A run that measured something: a line of metrics for each row, in tasks of two rounds."""
    folder.mkdir()
    lines = [{"task": 1 + k // 2, "round": 1 + k % 2, "clients": {}, **row} for k, row in enumerate(rows)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Result(method, seed, {}, [], [], {}, {}, {}, figures=(own,), folder=folder)


def test_declared_figures_show_the_mean_over_seeds_with_a_band(tmp_path: Path) -> None:
    own = Figure("warmth", "Warmth", (Series("warmth", "w"), Series("never", "n")))
    rows: dict[int, list[float | None]] = {1: [1.0, 3.0, 5.0], 2: [3.0, 3.0, None]}
    results = [measured(tmp_path / str(s), "a", s, [{"warmth": w} for w in ws], own) for s, ws in rows.items()]
    other = measured(tmp_path / "other", "b", 1, [{"warmth": 2.0}, {"warmth": 4.0}, {}], own)
    ((key, title, html),) = sections({"a": results, "b": [other]}, "x-", {"a": 0, "b": 1})
    assert (key, title) == ("x-measured-warmth", "Warmth")
    shown = re.findall(r"<title>(\w): ([\d.]+)</title>", html)
    assert shown == [("a", "2"), ("a", "3"), ("a", "5"), ("b", "2"), ("b", "4")]
    assert [names.count("band") for names in re.findall(r'<polygon class="([^"]+)"', html)] == [1], "b has one seed"
    assert re.findall(r'<text class="small"[^>]*>([^<]+)<', html) == ["task 2"]


def test_marks_are_drawn_where_most_clients_logged_them(tmp_path: Path) -> None:
    own = Figure("pull", "Pull", (Series("pull", "p_i", by_client=True),), Marks("case", ("up", "down"), "which way"))
    said = [["up", "up", "down"], ["down", "none", "none"], ["down", "down", "none"]]
    rows = [{"clients": {"pull": [1.0, 2.0, 6.0], "case": words}} for words in said]
    ((_, _, html),) = sections({"a": [measured(tmp_path / "1", "a", 7, rows, own)]}, "", {"a": 0})
    rugs = re.findall(r"<rect class=\"(f\d+)\"[^>]*><title>(\w+) in most clients: (\d)</title>", html)
    assert rugs == [("f11", "up", "1"), ("f10", "down", "3")], "colours that no method has"
    assert re.findall(r"<title>mean p_i: ([\d.]+)</title>", html) == ["3", "3", "3"]
    assert re.findall(r"<title>up: ([\d.]+)</title>", html) == ["66.67", "0", "0"]
    assert re.findall(r"<h3>([^<]+)</h3>", html) == ["a, seed 7: Pull", "a, seed 7: which way"]


def test_matrices_are_means_over_seeds_and_say_the_spread() -> None:
    """0.5 and 0.7 make 0.6; a seed in which nobody could test does not count."""
    mean, spread = over_seeds([[[0.5, None]], [[0.7, 0.2]], [[0.6, None]]], ACCURACY)
    assert mean == [[pytest.approx(0.6), 0.2]]
    assert spread(0, 0) == " (50.0 to 70.0 over 3 seeds)"
    assert spread(0, 1) == ""


def test_a_method_has_one_colour_everywhere(runs: Path, tmp_path: Path) -> None:
    """Also where a benchmark has only the second of the page's methods."""
    run("digits", out=tmp_path / "other", method="finetune", zeta=0.5, **QUICK)
    page = make_page([*find_results([runs]), *find_results([tmp_path])], "x")
    figures = re.findall(r'<figure id="([^"]+)">(.*?)</figure>', page, re.S)
    for method, colour in (("cflag", "0"), ("finetune", "1")):
        maps = [html for key, html in figures if re.search(f"(matrix|clients)-{method}$", key)]
        assert len(maps) == {"cflag": 2, "finetune": 4}[method]
        assert {c for html in maps for c in re.findall(r'<rect class="f(\d)"', html)} == {colour}
        names = {c for _, html in figures for c in re.findall(rf'<text class="name f(\d)"[^>]*>{method}<', html)}
        assert names == {colour}
        assert set(re.findall(rf'<i class="swatch b(\d)"></i>{method}<', page)) == {colour}


def test_what_is_not_learned_yet_is_faint_and_many_classes_are_small() -> None:
    squares = heat([[0.9, 0.9], [0.9, 0.9]], "x", "y", Shade.of(ACCURACY), faint=lambda i, j: j > i)
    assert squares.count('class="value faint"') == 1
    small = heat([[0.5] * 100], "x", "y", Shade.of(ACCURACY), first=(0, [7] * 100))
    assert 'class="value"' not in small
    assert "<title>y 0, 7: 50</title>" in small


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


def test_a_rug_marks_its_moments() -> None:
    drawn = curves([Line("a", [(1.0, 0.1), (2.0, 0.2), (3.0, 0.3)], 0)], "x", "y", rugs=[Rug("r", [2.0], 1)])
    (x, width) = re.findall(r'<rect class="f1" x="([^"]+)" y="[^"]+" width="([^"]+)"', drawn)[0]
    centre = re.findall(r'<circle class="f0" r="3" cx="([^"]+)"', drawn)[1]
    assert float(x) + float(width) / 2 == pytest.approx(float(centre), abs=0.2)


def test_an_axis_that_does_not_begin_at_0_says_so() -> None:
    """From 90 to 100 there are 0.6 of room on either side; 10 of 100 can be seen from 0 on."""
    near = curves([Line("a", [(1.0, 90.0), (2.0, 100.0)], 0)], "x", "y (%)")
    assert "y (%); the axis begins at 89.4, not at 0<" in near
    far = curves([Line("a", [(1.0, 10.0), (2.0, 100.0)], 0)], "x", "y (%)")
    assert "not at 0" not in far
    assert ">0</text>" in far


def test_few_lines_have_their_names_at_their_ends_and_many_a_legend() -> None:
    few = [Line(f"m{k}", [(1.0, 1.0), (2.0, 5.0 - 0.01 * k)], k) for k in range(4)]
    drawn = curves(few, "x", "y")
    named = re.findall(r'<text class="name f(\d)" x="[^"]+" y="([^"]+)">m(\d)<', drawn)
    assert [(colour, name) for colour, _, name in named] == [(str(k), str(k)) for k in range(4)], "the highest first"
    ys = [float(y) for _, y, _ in named]
    assert all(b - a == pytest.approx(ROW, abs=0.2) for a, b in pairwise(ys)), "moved apart"
    assert drawn.count('<span class="narrow">') == 4, "a narrow chart has a legend instead"
    assert "<span>" not in drawn
    for lines in ([*few, Line("m4", [(1.0, 1.0)], 4)], [few[0], replace(few[1], colour=0, dash=True)]):
        legend = curves(lines, "x", "y")
        assert 'class="name' not in legend
        assert legend.count("<span>") == len(lines)


def test_lines_fill_the_width() -> None:
    """Of 640 units 14 are left at the right, and 7 for each letter of the longest name at a line's end."""
    both = [Line("short", [(1.0, 1.0), (2.0, 5.0)], 0), Line("longer", [(1.0, 1.0), (2.0, 4.0)], 1)]
    named, plain = curves(both, "x", "y"), curves(both, "x", "y", ends=False)
    last = r'<polyline [^>]*points="[^"]* ([\d.]+),[\d.]+"'
    assert re.findall(last, named) == ["584.0", "584.0"]
    assert "--narrow:598/300" in named, "where a narrow chart is cut off"
    assert re.findall(last, plain) == ["626.0", "626.0"]
    assert 'class="name' not in plain
    assert plain.count("<span>") == 2


def test_numbers_of_an_axis_are_whole_on_a_phone() -> None:
    """There letters are 21 units high and less than 13 wide: the last number may not reach over the drawing's 640."""
    for last in (8, 50, 300, 20_000):
        drawn = curves([Line("a", [(0.0, 0.1), (float(last), 0.2)], 0)], "x", "y", ends=False)
        shown = re.findall(r'<text y="264" x="([\d.]+)" text-anchor="(\w+)">(\d+)<', drawn)
        assert shown[-1][2] == str(last)
        for x, anchor, text in shown:
            assert float(x) + 12.5 * len(text) * {"middle": 0.5, "end": 0.0}[anchor] <= 640


def test_curves_without_points_say_so() -> None:
    assert "nothing to draw" in curves([Line("a", [], 0)], "x", "y")


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
@pytest.mark.parametrize("width", [1280, 420])
def test_in_a_browser(width: int, runs: Path, tmp_path: Path) -> None:
    """No errors in the console, every figure has its buttons, above the plot, and a click on a heading sorts."""
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
      const drawn = figures.map((f) => [f.querySelector("svg").getBoundingClientRect(), f]);
      const below = (f) => f.querySelector(".save").getBoundingClientRect().bottom;
      notes.push("off the plot " + drawn.every(([box, f]) => below(f) <= box.top));
      const charts = drawn.filter(([, f]) => f.querySelector("svg.chart"));
      const inside = (f) => f.clientWidth - 2 * parseFloat(getComputedStyle(f).paddingLeft);
      notes.push("full width " + charts.every(([box, f]) => Math.abs(box.width - inside(f)) < 1));
      const right = (part) => part.getBoundingClientRect().right;
      const reached = charts.filter(([, f]) => f.querySelector("polyline")).map(([box, f]) =>
        (box.right - Math.max(...[...f.querySelectorAll("polyline, .ends .name")].map(right))) / box.width);
      notes.push("filled " + (reached.length > 0) + " " + reached.every((rest) => rest >= 0 && rest < 0.1));
      const named = [...document.querySelectorAll(".ends .name, .legend .narrow")].filter((n) => n.checkVisibility());
      notes.push("named " + [...new Set(named.map((n) => n.getAttribute("class").split(" ")[0]))]);
      const saved = new DOMParser().parseFromString(whole(document.querySelector(".ends")), "text/xml");
      notes.push("saved names " + [...saved.querySelectorAll(".name")].every((n) => n.style.fontSize === "11.5px"));
      document.querySelectorAll("details").forEach((part) => { part.open = true; });
      location.hash = "#client-2";
      setTimeout(() => {
        const shown = [...document.querySelectorAll(".clients > details")].filter((part) => part.checkVisibility());
        const squares = [...document.querySelectorAll("#client-2 table.cells")].map((t) => t.rows.length);
        notes.push("client " + shown.map((part) => part.id) + " " + squares + " " + !!shown[0].querySelector("svg"));
        document.querySelector(".pick button:last-child").click();
        notes.push("next " + location.hash + " " + document.querySelector(".pick select").value);
        const boxes = [...document.querySelectorAll(".wide, .scroll")];
        const told = boxes.every((b) => (b.scrollWidth > b.clientWidth + 1) === b.classList.contains("more"));
        notes.push("scrolls told " + told + " " + boxes.some((b) => b.classList.contains("more")));
        document.body.setAttribute("data-notes", notes.join("; "));
      }, 500);
    });
    </script></head>"""
    page = make_page(find_results([runs]), "x").replace("</head>", probe, 1)
    file = tmp_path / "page.html"
    file.write_text(page)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--disable-quic",
             f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2000",
             "--virtual-time-budget=3000", "--dump-dom"]  # fmt: skip
    done = subprocess.run(["chromium", *flags, file.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'data-notes="([^"]*)"', done.stdout)
    assert found, done.stderr[-500:]
    assert found[1] == (
        "down true; up true; figures true; buttons true; saved true; off the plot true; full width true; "
        f"filled true true; named {'name,narrow' if width == 1280 else 'narrow'}; saved names true; "
        f"client client-2 3,3 true; next #client-0 0; scrolls told true {str(width == 420).lower()}"
    )
