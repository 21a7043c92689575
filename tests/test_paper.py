"""Campaigns: the paper's tables and figures, and our numbers beside the printed ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from cflag import registry
from cflag.cli import main
from cflag.config import load_raw, merge, resolve
from cflag.errors import UserError
from cflag.paper.campaigns import CAMPAIGNS, find_campaign
from cflag.paper.cells import DATA_SETS, Campaign, Cell, chosen
from cflag.paper.figures import draw
from cflag.paper.present import as_markdown, shown
from cflag.paper.reproduce import _gradients, _synthesis, estimate
from cflag.paper.scales import PROTOCOL, SCALES, SEEDS
from cflag.paper.summary import CellResult, Summary, printed, printed_row, summarise
from cflag.paper.variants import VARIANTS
from cflag.presets import preset_names
from cflag.results.result import Result

pytestmark = pytest.mark.usefixtures("no_figures", "runs_here")


def test_printed_numbers_as_in_the_paper() -> None:
    """A few read off the paper again, from all corners."""
    assert printed()["table-iid"]["cifar10"]["cflag"] == [89.28, 4.98, 7.23, 5.14]
    assert printed()["table-iid"]["tiny-imagenet"]["nccl"] == [28.93, 0.73, 9.51, 0.98]
    assert printed()["table-noniid"]["cifar100"]["replay"] == [31.25, 1.05, 32.40, 1.69]
    assert printed()["table-class-iid"]["cifar100"]["lwf"] == [35.86, 0.98, 35.72, 0.81]
    assert printed()["table-class-noniid"]["cifar10"]["icarl"] == [15.84, 4.23, 50.75, 12.95]
    assert printed()["table-clients"]["cifar10-iid"]["25"] == [90.77, 3.53]


def test_every_printed_number_has_a_cell_that_reproduces_it() -> None:
    for table, groups in printed().items():
        if table == "slip":
            continue
        cells = find_campaign(table).cells
        for group, rows in groups.items():
            for row, values in rows.items():
                assert all(isinstance(value, float) for value in values), "42 would lose its digits; write 42.00"
                for scale in PROTOCOL:
                    fits = [v for c in cells if c.group == group for v in c.variants(scale)
                            if row == printed_row(table, v, c.at)]  # fmt: skip
                    assert len(fits) == 1, (table, group, row, scale)


def test_slips_name_cells_that_are_printed() -> None:
    for slip in printed()["slip"]:
        assert slip["method"] in printed()[slip["table"]][slip["source"]]
    erg = printed()["table-iid"]["tiny-imagenet"]["replay"], printed()["table-noniid"]["cifar100"]["replay"]
    assert erg[0] == erg[1], "the slip that the notes on the paper tell of"


@pytest.mark.parametrize("scale", SCALES)
def test_every_campaign_has_valid_configs_at_every_scale(scale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cflag.pricing.equal_cost", lambda configs, *_: configs)  # pricing needs the data
    for campaign in (c for c in CAMPAIGNS.values() if scale in c.scales):
        jobs = campaign.jobs(scale, SEEDS, Path("runs"))
        assert len({job.folder for job in jobs}) == len(jobs)
        assert {job.config.method for job in jobs} <= set(registry.names("method"))
        assert {job.config.seed for job in jobs} == set(campaign.seeds(SEEDS))


def test_presets_exist_for_every_source_and_scale() -> None:
    for source in DATA_SETS:
        for scale in SCALES:
            assert f"{source}-{scale}" in preset_names()
    for campaign in ("table-class-iid", "table-class-noniid"):
        for cell in find_campaign(campaign).cells:
            for scale in PROTOCOL:
                assert cell.raw(scale)["scenario"] == "class"


def test_class_incremental_runs_have_rates_of_their_own_at_smoke_scale() -> None:
    rates = [load_raw(f"cifar100{kind}-smoke")["lwf"] for kind in ("", "-class")]
    assert rates[0] != rates[1]
    assert load_raw("cifar10-class-smoke")["lwf"] == rates[1]
    for cell in find_campaign("table-class-iid").cells:
        assert cell.raw("smoke")["lwf"] == rates[1]


def test_the_papers_own_settings() -> None:
    """Batch 128 (32), Adam 1e-4, two epochs, 20 rounds, 400 samples per task of which 200 are drawn, L = 5."""
    for cell in find_campaign("table-iid").cells:
        rows = Cell(cell.group, cell.source, cell.settings, ("cflag-paper",)).jobs("paper", [1234], Path("runs"))
        (job,) = rows["cflag-paper"]
        c, tiny = job.config, cell.source == "tiny-imagenet"
        assert (c.batch, c.tasks, c.model) == ((32, 10, "resnet50") if tiny else (128, 5, "resnet18"))
        assert (c.optimizer, c.epochs, c.rounds, c.clients) == ("adam", 2.0, 20, 5)
        assert (c.memory.per_task, c.memory.sample) == (400, 200)
        assert (c.settings.alpha, c.settings.beta, c.settings.smoothness) == (1e-4, 1e-4, 5.0)


def test_the_two_rows_of_the_papers_method() -> None:
    """At the paper's scale both are Algorithm 1 (drift 1, both rules); elsewhere its variant stands in."""
    cell = find_campaign("table-iid").cells[0]
    jobs = {job.folder.name: job.config for (job,) in cell.jobs("paper", [7], Path("runs")).values()}
    own, delayed = (jobs[f"cifar10_zeta=100000_{name}_7"] for name in ("cflag-paper", "cflag"))
    assert (own.method, own.optimizer, own.settings.estimator) == ("cflag", "adam", "minibatch")
    assert (delayed.method, delayed.settings.estimator) == ("cflag", "iag")
    for config in (own, delayed):
        assert (config.settings.drift, config.settings.rules) == (1.0, "both")
    for scale in ("smoke", "cpu"):
        methods = [job.config.method for (job,) in cell.jobs(scale, [7], Path("runs")).values()]
        assert methods == ["finetune", "ewc", "nccl", "fedtrack", "replay", "cflag-sgd"]
    smoke = cell.jobs("smoke", [7], Path("runs"))["cflag-sgd"][0].config
    s = smoke.settings
    assert (smoke.steps, s.estimator, s.drift, s.rules, s.weights) == (1, "minibatch", 0.0, "interference", "memory")


def test_rows_of_every_scale_are_variants_with_a_method() -> None:
    for scale in SCALES.values():
        assert set(scale.cflag) <= set(VARIANTS)
    assert {v.method for v in VARIANTS.values()} <= set(registry.names("method"))


def test_campaigns_share_runs() -> None:
    def folders(name: str) -> set[Path]:
        return {job.folder for job in find_campaign(name).jobs("smoke", SEEDS, Path("runs"))}

    assert folders("figure-tasks") < folders("table-iid")
    assert folders("figure-class-tasks") < folders("table-class-iid") | folders("table-class-noniid")
    for name, ordinary in (("figure-clients", 1 / 3), ("figure-memory-sample", 1 / 4), ("figure-memory-size", 1 / 6)):
        shared = folders(name) & (folders("table-iid") | folders("table-noniid"))
        assert len(shared) == ordinary * len(folders(name)), f"{name} passes through the tables' own settings"


def test_memory_sweeps_keep_their_shares_at_every_scale() -> None:
    for cell in find_campaign("figure-memory-sample").cells:
        for scale in PROTOCOL:
            memory = cell.raw(scale)["memory"]
            assert memory["sample"] / memory["per_task"] == pytest.approx((cell.at or 0) / 400, abs=0.01)
    for cell in find_campaign("figure-memory-size").cells:
        memory = cell.raw("paper")["memory"]
        assert (memory["per_task"], memory["sample"]) == (cell.at, (cell.at or 0) // 2)


def test_cutting_a_campaign_down() -> None:
    small = chosen(find_campaign("table-iid"), "smoke", ["cflag-sgd", "replay"], ["cifar10"])
    assert [(c.source, c.rows) for c in small.cells] == [("cifar10", ("replay", "cflag-sgd"))]
    both = chosen(find_campaign("table-iid"), "paper", ["cflag", "cflag-paper"], ["cifar10"])
    assert [c.rows for c in both.cells] == [("cflag-paper", "cflag")]
    points = chosen(find_campaign("cost-gradients"), "small", ["ewc"], [], ["cifar10-iid"], [1, 10])
    assert [(c.group, c.at, c.rows) for c in points.cells] == [("cifar10-iid", at, ("ewc",)) for at in (1, 10)]
    zetas = chosen(find_campaign("figure-heterogeneity"), "small", [], ["cifar100"], [], [1, 1e5])
    assert [(c.group, c.at) for c in zetas.cells] == [("cifar100", 1.0), ("cifar100", 1e5)]
    with pytest.raises(UserError, match="cost-gradients has nothing at 1, 7: its points are 1, 3, 10"):
        chosen(find_campaign("cost-gradients"), "small", [], [], [], [1, 7])
    with pytest.raises(UserError, match="table-iid has nothing at 7: it is no sweep"):
        chosen(find_campaign("table-iid"), "small", [], [], [], [7])
    with pytest.raises(UserError, match="did you mean 'cflag'"):
        chosen(find_campaign("table-iid"), "paper", ["cflg"], [])
    with pytest.raises(UserError, match="unknown row of table-iid at scale smoke 'cflag'; did you mean 'cflag-sgd'"):
        chosen(find_campaign("table-iid"), "smoke", ["cflag"], [])
    with pytest.raises(UserError, match="unknown table or figure 'table-idd'; did you mean 'table-iid'"):
        find_campaign("table-idd")


class Digits(Cell):
    """A cell that takes seconds, on data that are always there."""

    def raw(self, scale: Any) -> dict[str, Any]:
        quick = {"tasks": 2, "rounds": 2, "clients": 3, "width": 8, **self.settings}
        return merge(load_raw("digits"), quick.items())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Campaign:
    cells = (Digits("cifar10", "digits", {"zeta": 1e5}, ("finetune", "cflag-paper")),)
    campaign = Campaign("table-iid", "Small", "table", cells)
    monkeypatch.setitem(CAMPAIGNS, "table-iid", campaign)
    return campaign


def test_reproduce_runs_what_is_missing_and_writes_ours_beside_theirs(
    small: Campaign, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "table-iid", "--seeds", "1,2", "--jobs", "2", "--out", str(tmp_path)]
    assert main(command) == 0
    shown_ = capsys.readouterr().out
    assert "89.28 ± 4.98" in shown_  # the paper's C-FLAG
    summary = json.loads((tmp_path / "table-iid.json").read_text())
    for entry in summary["entries"]:
        runs = [Result.load(tmp_path / f"digits_zeta=100000_{entry['method']}_{seed}") for seed in (1, 2)]
        accuracies = [100 * run.average_accuracy for run in runs]
        assert entry["accuracy"] == pytest.approx([fmean(accuracies), stdev(accuracies)], abs=1e-3)
        assert entry["seeds"] == [1, 2]
    before = (tmp_path / "digits_zeta=100000_cflag-paper_1" / "result.json").stat().st_mtime_ns
    assert main(command) == 0
    assert (tmp_path / "digits_zeta=100000_cflag-paper_1" / "result.json").stat().st_mtime_ns == before


def test_a_dry_run_says_what_it_would_take_and_runs_nothing(
    small: Campaign, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "table-iid", "--seeds", "1,2", "--jobs", "2", "--out", str(tmp_path), "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 runs, 0 of them finished; about" in said
    assert "MB of disk" in said
    assert not list(tmp_path.iterdir())
    plan = estimate(small.jobs("smoke", [1, 2], tmp_path), 1)
    assert 0 < plan.seconds < 60
    assert plan.disk_mb > 0


@pytest.mark.parametrize(("batch", "samples", "each"), [(1, 5, 1), (5000, 7, 7)])
def test_targets_clients_also_compute_on_synthetic_samples(batch: int, samples: int, each: int) -> None:
    """From the second task on a step has as many synthetic samples as real ones, but no more than there are.

    By hand: 2 of 3 tasks x 4 rounds x 3 clients x E = 5 steps x `each` samples on top of what finetune computes; with
    mini-batches of one, finetune computes 3 tasks x 4 rounds x 3 clients x 5 steps x 1 sample = 180.
    """
    raw = merge(load_raw("digits"), {"tasks": 3, "rounds": 4, "clients": 3, "steps": 5, "batch": batch}.items())
    plain = resolve(merge(raw, [("method", "finetune")]))
    target = resolve(merge(raw, [("method", "target"), ("target.samples", samples)]))
    assert _gradients(target) - _gradients(plain) == pytest.approx(2 * 4 * 3 * 5 * each)
    if batch == 1:
        assert _gradients(plain) == pytest.approx(180)
    # The server: 2 tasks, each sample 2 x 30 times for the generator and 20 times for the student.
    assert _synthesis(target) == 2 * samples * 80
    assert _synthesis(plain) == 0


def test_so_far_shows_what_is_finished_and_runs_nothing(
    small: Campaign, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "table-iid", "--methods", "cflag-paper", "--seeds", "1", "--out", str(tmp_path)]) == 0
    assert main(["reproduce", "table-iid", "--seeds", "1,2", "--out", str(tmp_path), "--so-far"]) == 0
    capsys.readouterr()
    summary = json.loads((tmp_path / "table-iid.json").read_text())
    assert {e["method"]: e["seeds"] for e in summary["entries"]} == {"finetune": [], "cflag-paper": [1]}
    assert summary["command"] == "cflag reproduce table-iid --scale small --seeds 1,2"
    assert len(list(tmp_path.glob("digits*"))) == 1


@pytest.mark.parametrize("name", ["figure-tasks", "figure-clients", "figure-gamma", "parts", "cost-rounds"])
def test_a_figure_of_which_nothing_is_finished_is_not_drawn(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", name, "--so-far", "--out", str(tmp_path / "new")]) == 0
    assert sorted(path.suffix for path in tmp_path.glob(f"new/{name}.*")) == [".json", ".md"]
    assert "Traceback" not in capsys.readouterr().err


def test_a_sum_up_of_half_a_campaign(small: Campaign, tmp_path: Path) -> None:
    summary = summarise(small, "smoke", [1], tmp_path, "command")
    assert [e.accuracy for e in summary.entries] == [None, None]
    table = as_markdown(summary)
    assert "| cifar10 | C-FLAG, as in the paper's experiments | 89.28 ± 4.98 | – | 7.23 ± 5.14 | – | 0 |" in table
    other = replace(summary, entries=[replace(e, method="cflag-sgd") for e in summary.entries[1:]])
    table = as_markdown(other)
    assert "| cifar10 | C-FLAG-SGD | 89.28 ± 4.98 § | – | 7.23 ± 5.14 § | – | 0 |" in table
    assert "§ printed for C-FLAG; C-FLAG-SGD is a variant" in table
    assert Summary.from_dict(json.loads(json.dumps(summary.to_dict()))).entries[1].method == "cflag-paper"


def test_figures_of_every_kind_are_drawn() -> None:
    at = {"tasks": None, "sweep": 5.0, "gamma": 0.1}
    for kind, value in at.items():
        entries = [CellResult("cifar10", method, value, [1], (80.0, 1.0), (2.0, 0.5), (85.0, 2.0), (1.0, 0.1),
                         accuracies=[80.0], forgettings=[2.0], after_tasks=[[90.0, 80.0]], gamma=[None, 0.5, 0.2])
                   for method in ("cflag-paper", "cflag", "ewc")]  # fmt: skip
        summary = Summary("x", "smoke", "", "", "", entries)
        figure = draw(Campaign("x", "X", kind, (), "clients"), summary)  # type: ignore[arg-type]
        assert figure.axes[0].lines


def test_a_sweep_is_drawn_over_the_seeds_that_all_its_points_have() -> None:
    three = CellResult("g", "cflag", 5.0, [1, 2, 3], (60.0, 9.0), (0.0, 0.0), accuracies=[10.0, 70.0, 100.0],
                  forgettings=[0.0] * 3)  # fmt: skip
    one = CellResult("g", "cflag", 10.0, [2], (71.0, None), (0.0, None), accuracies=[71.0], forgettings=[0.0])
    figure = draw(Campaign("x", "X", "sweep", (), "clients"), Summary("x", "smoke", "", "", "", [three, one]))
    assert figure.axes[0].lines[0].get_ydata() == pytest.approx([70.0, 71.0])


def test_how_a_number_is_shown() -> None:
    assert shown(None) == "–"
    assert shown((12.345, None)) == "12.3"
    assert shown((12.345, 1.26)) == "12.3 ± 1.3"
