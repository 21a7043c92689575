"""Our own studies: rates are chosen as the ledger says, differences are paired, budgets are what replay spends."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cflag.config import Config, load_raw, merge
from cflag.errors import UserError
from cflag.jobs import Job, prepare, run_all
from cflag.paper import prices
from cflag.paper.campaigns import find_campaign
from cflag.paper.cells import Campaign, Cell, chosen
from cflag.paper.figures import draw
from cflag.paper.scales import SCALES
from cflag.paper.study_tables import chosen_rates, difference, study_tables
from cflag.paper.summary import CellResult, Summary, summarise
from cflag.paper.variants import VARIANTS
from cflag.pricing import Budget, Price

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def row(method: str, accuracies: list[float], group: str = "cifar10-iid", at: float | None = None,
        seeds: list[int] | None = None, **more: Any) -> CellResult:  # fmt: skip
    mean = sum(accuracies) / len(accuracies) if accuracies else None
    return CellResult(group, method, at, seeds or list(range(len(accuracies))), None if mean is None else (mean, None),
                      None if mean is None else (1.0, None), accuracies=accuracies, forgettings=[1.0] * len(accuracies),
                      **more)  # fmt: skip


def summary(*entries: CellResult, campaign: str = "rates") -> Summary:
    return Summary(campaign, "small", "", "", "", list(entries))


def test_the_rate_with_the_best_mean_over_both_zetas_is_chosen() -> None:
    """1e-3: (80 + 60) / 2 = 70; 3e-3: (90 + 45) / 2 = 67.5. A row that misses a run is not judged."""
    cells = [("iid", 1e-3, 80.0), ("iid", 3e-3, 90.0), ("ζ=0.1", 1e-3, 60.0), ("ζ=0.1", 3e-3, 45.0)]
    entries = [row("replay", [acc], f"cifar10-task-{zeta}", rate) for zeta, rate, acc in cells]
    missing = [row("ewc", [acc] if rate < 2e-3 else [], f"cifar10-task-{zeta}", rate) for zeta, rate, acc in cells]
    found = summary(*entries, *missing)
    assert chosen_rates(found) == {("cifar10-task", "replay"): 1e-3}
    text = "".join(table.markdown() for table in study_tables(find_campaign("rates"), found))
    assert "| Erg-FL | **80.0** | 90.0 | **60.0** | 45.0 |" in text
    assert "EWC" not in text
    lost = [replace(e, lost=[] if e.accuracies else [7]) for e in missing]
    assert chosen_rates(summary(*lost)) == {("cifar10-task", "ewc"): 1e-3}
    text = "".join(table.markdown() for table in study_tables(find_campaign("rates"), summary(*lost)))
    assert "| EWC-FL | **80.0** | lost | **60.0** | lost |" in text


def test_a_zeta_at_which_a_row_was_never_tried_has_no_say() -> None:
    cells = [("iid", 1e-3, [80.0]), ("iid", 3e-3, [90.0]), ("ζ=0.1", 1e-3, []), ("ζ=0.1", 3e-3, [])]
    found = summary(*(row("replay", accs, f"cifar100-class-{zeta}", rate) for zeta, rate, accs in cells))
    assert chosen_rates(found) == {("cifar100-class", "replay"): 3e-3}
    text = "".join(table.markdown() for table in study_tables(find_campaign("rates"), found))
    assert "| Erg-FL | 80.0 | **90.0** | – | – |" in text


def test_a_rate_that_lost_a_run_is_not_chosen_however_good_its_others_are() -> None:
    weak = [row("ewc", [acc], f"cifar10-task-{zeta}", 1e-3) for zeta, acc in (("iid", 30.0), ("ζ=0.1", 10.0))]
    good = row("ewc", [90.0], "cifar10-task-iid", 3e-3)
    gone = replace(row("ewc", [], "cifar10-task-ζ=0.1", 3e-3), lost=[7])
    assert chosen_rates(summary(*weak, good, gone)) == {("cifar10-task", "ewc"): 1e-3}


@pytest.mark.parametrize(("scale", "name"), [("small", "rates"), ("pretrained", "pretrained-rates")])
def test_presets_have_the_rates_that_were_chosen(scale: str, name: str) -> None:
    """What the ledger says about rates is what the runs of the tables had."""
    path = RESULTS / scale / f"{name}.json"
    found = chosen_rates(Summary.from_dict(json.loads(path.read_text(encoding="utf-8"))))
    assert len(found) >= 7
    for (benchmark, row_name), rate in found.items():
        named = re.fullmatch(r"(.+)-(task|class)(-whitened)?", benchmark)
        assert named
        source, scenario, whitened = named.groups()
        cell = Cell("", source, {"scenario": scenario, **({"whiten": "some"} if whitened else {})})
        preset, variant = cell.preset(scale), VARIANTS[row_name]
        own = SCALES[scale].rates.get(row_name, {}).get(preset)
        table = load_raw(preset)[variant.method]
        for key in variant.rates:
            assert (own or table[key]) == rate, f"{preset}: {row_name}"


def test_differences_are_paired_by_seed() -> None:
    """Common seeds 2 and 3: differences 2 and 4, mean 3, error 1, t_{0.975, 1} = 12.706."""
    a = row("cflag-shared", [50.0, 62.0, 74.0], seeds=[1, 2, 3])
    b = row("replay", [60.0, 70.0, 99.0], seeds=[2, 3, 4])
    found = difference(a, b)
    assert found is not None
    assert found[0] == pytest.approx(3.0)
    assert found[1] == pytest.approx(12.706, abs=1e-3)
    assert difference(a, row("replay", [1.0], seeds=[9])) is None


def test_a_cost_table_is_sorted_and_compared_with_replay() -> None:
    entries = [row("replay", [70.0, 72.0], at=10.0, gradients=1800.0, megabytes=20.0, rounds=10.0),
               row("cflag-shared", [80.0, 82.0], at=10.0, gradients=1810.0, megabytes=900.0, rounds=15.0)]  # fmt: skip
    (table,) = study_tables(find_campaign("cost-gradients"), summary(*entries, campaign="cost-gradients"))
    text = table.markdown()
    lines = [line for line in text.splitlines() if line.startswith("| C-FLAG-Shared") or line.startswith("| Erg-FL")]
    assert "the budget of 10 rounds of replay per task" in text
    assert lines[0] == "| C-FLAG-Shared | 81.0 | +10.0 ± 0.0 | 1.0 | 15 | 1,810 | 900 | 2 |"
    assert lines[1].startswith("| Erg-FL | 71.0 | – |")
    assert "†" not in text
    (bytes_,) = study_tables(find_campaign("cost-bytes"), summary(*entries, campaign="cost-bytes"))
    assert bytes_.rows[0][0] == "C-FLAG-Shared †", "900 megabytes are no equal share of 20"
    assert "its bytes cannot be cut so finely" in bytes_.markdown()


def test_parts_are_drawn_as_differences_to_all_parts() -> None:
    entries = [row("cflag-paper", [70.0, 72.0]), row("part-no-drift", [60.0, 62.5]), row("part-fixed", [90.0, 50.0])]
    figure = draw(find_campaign("parts"), summary(*entries, campaign="parts"))
    axes = figure.axes[0]
    widths = [patch.get_width() for patch in axes.patches]  # type: ignore[attr-defined]
    assert widths == pytest.approx([-9.75, -1.0])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["no drift correction", "fixed rates"]


def test_cost_is_drawn_against_gradients_and_bytes() -> None:
    entries = [row("replay", [70.0], at=at, gradients=at * 100, megabytes=at) for at in (1.0, 10.0)]
    figure = draw(find_campaign("cost-gradients"), summary(*entries, campaign="cost-gradients"))
    lines: list[Any] = [axes.lines[0].get_xdata() for axes in figure.axes]
    assert [list(line) for line in lines] == [[100.0, 1000.0], [1.0, 10.0]]


def test_one_budget_is_drawn_from_the_best_to_the_worst() -> None:
    entries = [
        row("replay", [60.0, 80.0], seeds=[1, 2], at=10.0),
        row("ewc", [75.0], at=10.0),
        row("nccl", [50.0], at=10.0),
    ]
    (axes,) = draw(find_campaign("cost-bytes"), summary(*entries, campaign="cost-bytes")).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["NCCL-FL", "Erg-FL", "EWC-FL"]
    means = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]  # type: ignore[index]
    assert means == [50.0, 70.0, 75.0]
    (dotted,) = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert list(dotted.get_xdata()) == [70.0, 70.0]  # type: ignore[arg-type]


class Digits(Cell):
    """A cell on data that are always there."""

    def raw(self, scale: Any) -> dict[str, Any]:
        return merge(load_raw("digits"), {"tasks": 2, "clients": 3, **self.settings}.items())


def test_equal_gradients_are_what_replay_spends(tmp_path: Path) -> None:
    """Replay pays twice for each step of the second task, fine-tuning once: 3 units against 2, so 6 rounds pay 9."""
    cell = Digits("digits", "digits", {"zeta": 1e5, "rounds": 6}, ("replay", "finetune"), 6, budget="gradients")
    rounds = {name: config.rounds for name, config in cell.configs("small", tmp_path).items()}
    assert rounds == {"replay": 6, "finetune": 9}
    jobs = cell.jobs("small", [1], Path("runs"))
    assert {name: job.folder.name for name, (job,) in jobs.items()} == {
        "replay": "digits_zeta=100000_rounds=6_replay_1",
        "finetune": "digits_zeta=100000_rounds=9_finetune_1",
    }
    alone = replace(cell, rows=("finetune",)).configs("small", tmp_path)
    assert alone["finetune"].rounds == 9, "replay pays, whether it is run or not"


def test_prices_are_measured_once_and_kept_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look measures nothing; other settings have a price of their own; a damaged list is made anew."""
    measured: list[str] = []

    def measure(config: Config, budget: Budget) -> Price:
        measured.append(config.method)
        return Price(0.0, {"replay": 4.0, "finetune": 2.0}[config.method])

    monkeypatch.setattr(prices, "_measure", measure)
    cell = Digits("digits", "digits", {"zeta": 1e5, "rounds": 6}, ("finetune",), budget="gradients")
    for _ in range(2):
        assert cell.configs("small", tmp_path)["finetune"].rounds == 12
    assert measured == ["replay", "finetune"]
    assert replace(cell, settings={"zeta": 0.1, "rounds": 3}).configs("small", tmp_path)["finetune"].rounds == 6
    assert measured == ["replay", "finetune"] * 2
    (tmp_path / "prices.json").write_text("{")
    assert cell.configs("small", tmp_path)["finetune"].rounds == 12
    assert measured == ["replay", "finetune"] * 3
    assert not (tmp_path / "new").exists()
    cell.configs("small", tmp_path / "new")
    assert not (tmp_path / "new").exists(), "a dry run leaves nothing behind"


def test_a_cost_study_is_summed_up_from_the_runs_it_made(tmp_path: Path) -> None:
    """Each row's own rounds, not the payer's."""
    short = {"rounds": 2, "width": 8, "zeta": 1e5}
    cell = Digits("digits", "digits", short, ("replay", "finetune"), 2, budget="gradients")
    line = "digits_width=8_zeta=100000_rounds=3_finetune_2: diverged"
    campaign = Campaign("cost-gradients", "", "cost", (cell,), "gradients", base="replay")
    run_all(prepared(campaign.jobs("small", [1], tmp_path)), 1, lambda jobs: None)
    found = summarise(campaign, "small", [1], tmp_path, "", [line])
    assert [(e.method, e.rounds, e.seeds, e.lost) for e in found.entries] == [
        ("replay", 2.0, [1], []),
        ("finetune", 3.0, [1], []),
    ]
    again = summarise(campaign, "small", [1, 2], tmp_path, "", [line])
    assert again.entries[1].lost == [2]


def prepared(jobs: list[Job]) -> list[Job]:
    prepare(jobs)
    return jobs


def test_studies_are_for_the_scale_they_are_about() -> None:
    with pytest.raises(UserError, match="parts is for scale small, not cpu"):
        chosen(find_campaign("parts"), "cpu", [], [])


def test_no_two_lines_of_a_figure_look_the_same() -> None:
    entries = [row(v.name, [70.0], at=1.0, gradients=1.0, megabytes=1.0)
               for v in find_campaign("cost-gradients").cells[0].variants("small")]  # fmt: skip
    axes = draw(find_campaign("cost-gradients"), summary(*entries)).axes[0]
    looks = [(line.get_color(), line.get_linestyle(), line.get_linewidth()) for line in axes.lines]
    assert len(set(looks)) == len(looks) == len(entries)


def test_a_study_of_rates_has_a_seed_of_its_own() -> None:
    campaign = Campaign("rates", "", "rates", (), own_seeds=(7,))
    assert list(campaign.seeds([1, 2])) == [7]
    assert list(find_campaign("table-iid").seeds([1, 2])) == [1, 2]


def test_yardsticks_keep_their_rounds_whatever_the_budget(tmp_path: Path) -> None:
    """Ridge pays nothing, so that no number of rounds is worth replay's gradients; the probe has all tasks in one."""
    short = {"rounds": 2, "width": 8, "zeta": 1e5}
    cell = Digits("digits", "digits", short, ("replay", "ridge", "probe"), budget="gradients")
    configs = cell.configs("small", tmp_path)
    assert {name: config.rounds for name, config in configs.items()} == {"replay": 2, "ridge": 1, "probe": 50}
    assert (configs["probe"].tasks, configs["probe"].clients) == (1, 1)


def test_a_memory_step_as_long_as_the_local_ones_has_25_times_their_rate() -> None:
    assert dict(VARIANTS["theory-balanced"].at_rate(0.02)) == {"cflag.alpha": 0.5, "cflag.beta": 0.02}
    assert dict(VARIANTS["cflag"].at_rate(0.02)) == {"cflag.alpha": 0.02, "cflag.beta": 0.02}


def test_a_summary_tells_of_failures_without_the_folder_they_were_in(tmp_path: Path) -> None:
    campaign = Campaign("cost-gradients", "", "cost", (), "gradients", base="replay")
    line = f"run_1: it diverged; the last good checkpoint is kept in {tmp_path}/run_1/checkpoint"
    found = summarise(campaign, "small", [1], tmp_path, "", [line])
    assert found.failed == ["run_1: it diverged; the last good checkpoint is kept in run_1/checkpoint"]
