"""What the report says in words, against numbers worked out by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cflag import Result, run
from cflag.problems.score import ACCURACY, Score
from cflag.report.page import make_page
from cflag.report.parts import dealt
from cflag.report.story import Groups, lead, short, stories, story
from tests.support.quick import QUICK

ERROR = Score("mae", "MAE", "mean absolute error", "mm", 1.0, 1, higher=False)


def made(method: str, seed: int, end: float, score: Score = ACCURACY, kept: float = 0.0, **more: Any) -> Result:
    """A run of two tasks that ends with a score in both, and had `end + kept` after the first."""
    matrix = [[end + kept, 0.0], [end, end]]
    costs = {"gradients_current": 1000, "gradients_memory": 500, "bytes_up": 2e6, "bytes_down": 1e6, **more}
    return Result(method, seed, {"task": matrix, "class": matrix}, [0.0, 0.0], [], costs, {"tasks": 2}, {}, score=score)


def groups(*results: Result) -> Groups:
    found: Groups = {}
    for result in results:
        found.setdefault(result.method, []).append(result)
    return found


def test_equal_seeds_are_compared_pair_by_pair() -> None:
    """Differences 0.10, 0.11, 0.12: mean 0.11, standard error 0.01/√3, t = 4.3027 with two degrees of freedom."""
    one = [made("a", s, v) for s, v in ((1, 0.60), (2, 0.81), (3, 0.32))]
    other = [made("b", s, v) for s, v in ((3, 0.20), (1, 0.50), (2, 0.70))]
    found = lead(one, other, lambda r: r.average_score)
    assert found.by == pytest.approx(0.11)
    assert found.within == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)
    assert found.sure


def test_other_seeds_are_compared_as_two_samples() -> None:
    """Both have standard deviation 0.1·√2 of two: errors 0.1 each, √0.02 together, Welch gives 2 degrees."""
    one = [made("a", s, v) for s, v in ((1, 0.8), (2, 0.6))]
    other = [made("b", s, v) for s, v in ((3, 0.4), (4, 0.6))]
    found = lead(one, other, lambda r: r.average_score)
    assert found.by == pytest.approx(0.2)
    assert found.within == pytest.approx(4.3027 * 0.02**0.5, rel=1e-4)
    assert not found.sure


def test_two_runs_of_one_seed_both_count() -> None:
    """As with two settings of one method in a folder: 0.8 and 0.6 against 0.5."""
    found = lead([made("a", 1, 0.8), made("a", 1, 0.6)], [made("b", 1, 0.5)], lambda r: r.average_score)
    assert found.by == pytest.approx(0.2)
    assert found.within is None


def test_a_sure_lead() -> None:
    """Differences of exactly 10 points at both seeds: an interval without width."""
    cheap: dict[str, Any] = {"gradients_memory": 0, "bytes_up": 0.5e6}
    runs = [made("a", 1, 0.75, kept=0.125), made("a", 2, 0.5, kept=0.125)]
    runs += [made("b", 1, 0.625, **cheap), made("b", 2, 0.375, **cheap)]
    assert story(groups(*runs)) == (
        "a leads with accuracy 62.5 %, 12.5 points above b (95 % interval 12.5 to 12.5, 2 seeds). "
        "b forgets least: 0.0 points, then a with 12.5 points. "
        "a costs 1.5 k gradients and 3 MB of traffic; b takes the fewest gradients: 1 k gradients and 1.5 MB."
    )


def test_a_lead_within_the_spread_says_so_and_from_whom() -> None:
    """a − b is 0.10 and 0.00: 5 ± 12.706 · 5 points; a − c is 0.5 at both."""
    runs = [made("c", 1, 0.2), made("c", 2, 0.1), made("b", 1, 0.6), made("b", 2, 0.6)]
    runs += [made("a", 1, 0.7), made("a", 2, 0.6)]
    said = story(groups(*runs))
    assert said.startswith(
        "a has the best accuracy on average, 65.0 %, 5.0 points above b (95 % interval −58.5 to 68.5, 2 seeds); "
    )
    assert "from b it cannot be told apart: the difference is within the spread" in said
    assert "leads" not in said
    assert "2 seeds); the difference is within the spread over seeds." in story(groups(*runs[2:]))


def test_a_lower_error_is_better_and_is_no_accuracy() -> None:
    said = story(groups(made("a", 1, 4.0, ERROR, kept=-1.0), made("b", 1, 2.0, ERROR, kept=-0.5)))
    assert said.startswith("b has the best mean absolute error, 2.0 mm, 2.0 mm below a; ")
    assert "2.0 mm below a; one seed does not say how sure that is." in said
    assert "b forgets least: 0.5 mm, then a with 1.0 mm." in said
    assert "accuracy" not in said


def test_a_single_method_has_nobody_to_lead() -> None:
    """Values 0.5 and 0.7: 60 ± 12.706 · 10 points."""
    said = story(groups(made("a", 1, 0.5), made("a", 2, 0.7)))
    assert said == (
        "a ends with accuracy 60.0 % ± 127.1 (95 % interval, 2 seeds). It forgets 0.0 points. "
        "A run costs 1.5 k gradients and 3 MB of traffic."
    )


def test_several_benchmarks_are_counted() -> None:
    """With one seed nothing is sure; a lead that is the same at both seeds is."""
    one, other = groups(made("a", 1, 0.5), made("b", 1, 0.4)), groups(made("a", 1, 0.3), made("b", 1, 0.4))
    sure = groups(made("a", 1, 0.75), made("a", 2, 0.5), made("b", 1, 0.5), made("b", 2, 0.25))
    assert stories([one, other, sure]) == (
        "Of 3 benchmarks, a has the best mean score in 2 (beyond the spread over seeds in 1) "
        "and b has the best mean score in 1 (beyond the spread over seeds in 0)."
    )


@pytest.mark.parametrize(("value", "text"), [(999, "999"), (999.6, "1 k"), (23456, "23.5 k"), (2e6, "2 M"), (0, "0")])
def test_large_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(("zeta", "said"), [(1e5, "Dirichlet ζ = 100000 (nearly even)"), (0.3, "Dirichlet ζ = 0.3")])
def test_a_large_zeta_is_said_in_words_too(zeta: float, said: str) -> None:
    assert dealt({"partition": "dirichlet", "zeta": zeta}) == said


@pytest.mark.usefixtures("no_figures")
def test_the_first_sentence_is_what_everybody_reads(tmp_path: Path) -> None:
    """Numbers have points, too: 62.5 % is not where it ends."""
    runs = [run("digits", method=name, **QUICK, out=tmp_path / name) for name in ("finetune", "replay")]
    page = make_page(runs, "T")
    strong, rest = re.findall(r'<p class="story"><strong>(.+?)</strong> (.+?)</p>', page)[0]
    assert re.fullmatch(r".+ \d+\.\d .+\.", strong)
    assert "forget" in rest
    assert "gradients" in rest
    assert f"{strong} {rest}" == story(groups(*runs))
