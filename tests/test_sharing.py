"""Cells that campaigns have in common: in the ledger, what one of them ran is there for the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from cflag.paper.ledger import keep, make_ledger
from cflag.paper.sharing import completed
from cflag.paper.summary import CellResult, Summary


def row(group: str, method: str, accuracy: float, at: float | None = None, rounds: float = 10.0) -> CellResult:
    made = CellResult(group, method, at, [1234, 1235], (accuracy, 1.0), (5.0, 1.0), rounds=rounds,
                      gradients=1000.0, megabytes=47.0)  # fmt: skip
    return replace(made, accuracies=[accuracy - 1, accuracy + 1], forgettings=[4.0, 6.0])


def summary(campaign: str, *entries: CellResult) -> Summary:
    return Summary(campaign, "small", f"cflag reproduce {campaign}", "2025-05-03", "abc1234", list(entries))


def rows(found: Summary) -> dict[tuple[str, str, float | None], tuple[float, str]]:
    return {(e.group, e.method, e.at): (e.accuracy[0], e.shared) for e in found.entries if e.accuracy}


def test_a_row_is_taken_where_the_same_run_is_asked_for() -> None:
    """EWC at ζ = 0.1 on CIFAR100 is a row of the table and a point of the figure; at ζ = 1e5 it is in another table."""
    table = summary("table-noniid", row("cifar100", "ewc", 20.0), row("cifar10", "ewc", 60.0))
    figure = summary("figure-heterogeneity", row("cifar10", "ewc", 70.0, at=0.1))
    _, found = completed([table, figure])
    assert rows(found) == {("cifar10", "ewc", 0.1): (70.0, ""), ("cifar100", "ewc", 0.1): (20.0, "table-noniid")}


def test_half_a_row_gives_way_to_the_whole_and_a_whole_one_to_none() -> None:
    """One seed of a run that another campaign made with three, or with five of which a table wants three."""

    def made(group: str, at: float | None, *seeds: int) -> CellResult:
        return replace(row(group, "replay", 80.0, at), seeds=list(seeds), accuracies=[80.0] * len(seeds))

    def seeds(own: tuple[int, ...]) -> list[int]:
        five = summary("cost-rounds", made("cifar10-iid", 10, 1234, 1235, 1236, 1237, 1238))
        _, found = completed([five, summary("table-iid", made("cifar10", None, *own))])
        (entry,) = [e for e in found.entries if e.method == "replay"]
        return entry.seeds

    assert seeds((1234,)) == [1234, 1235, 1236, 1237, 1238]
    assert seeds((1234, 1235, 1236)) == [1234, 1235, 1236]
    assert seeds((1234, 1239)) == [1234, 1239], "what nobody else has is not lost"


def test_what_runs_are_called_decides_and_not_their_budget() -> None:
    """Nine rounds bought with replay's gradients are no row of ten rounds; ten are, whatever they were bought with."""
    bought = summary("cost-gradients", row("cifar10-iid", "ewc", 80.0, 10, rounds=9.0),
                     row("cifar10-iid", "nccl", 86.0, 10))  # fmt: skip
    equal = summary("cost-rounds", row("cifar10-iid", "replay", 87.0, 10))
    again, found = completed([bought, equal])
    assert rows(found) == {
        ("cifar10-iid", "nccl", 10): (86.0, "cost-gradients"),
        ("cifar10-iid", "replay", 10): (87.0, ""),
    }
    assert rows(again) == rows(bought), "what another budget buys cannot be told from a name"


def test_a_budget_shares_what_it_was_found_to_buy() -> None:
    """Asked but not run, a row says how many rounds replay's bytes are worth: ten are the table's, nine are not."""
    table = summary("table-iid", row("cifar10", "ewc", 82.0), row("cifar10", "nccl", 86.0))
    asked = [
        CellResult("cifar10-iid", name, 10, [], None, None, rounds=n) for name, n in (("ewc", 10.0), ("nccl", 9.0))
    ]
    _, found = completed([table, summary("cost-bytes", *asked)])
    assert rows(found) == {("cifar10-iid", "ewc", 10): (82.0, "table-iid")}


def taken_in(folder: Path, *summaries: Summary) -> dict[str, Summary]:
    """Let a ledger in `folder` take in summaries; return what it has then."""
    given = folder / "given"
    given.mkdir(exist_ok=True)
    for made in summaries:
        (given / f"{made.campaign}.json").write_text(json.dumps(made.to_dict()))
    keep([given], folder / "results")
    for path in given.iterdir():
        path.unlink()
    return {p.stem: Summary.from_dict(json.loads(p.read_text())) for p in (folder / "results/small").glob("*.json")}


def test_what_is_shared_is_found_anew_each_time(tmp_path: Path) -> None:
    """It stays while it is wanted and there; runs of its own are never lost to it, whoever shared before."""
    table = summary("table-iid", row("cifar10", "ewc", 82.0))
    asked = summary("cost-bytes", CellResult("cifar10-iid", "ewc", 10, [], None, None, rounds=10.0))
    key = "cifar10-iid", "ewc", 10
    both = taken_in(tmp_path, table, asked)
    assert rows(both["cost-bytes"]) == {key: (82.0, "table-iid")}
    assert rows(taken_in(tmp_path, asked)["cost-bytes"]) == {key: (82.0, "table-iid")}
    own = replace(row(*key[:2], 90.0, at=10), seeds=[1237, 1238])
    theirs = taken_in(tmp_path, summary("cost-bytes", own))["cost-bytes"]
    assert [(e.seeds, e.shared) for e in theirs.entries] == [([1237, 1238], "")]
    again = taken_in(tmp_path, both["cost-bytes"])["cost-bytes"]  # as a ledger of somebody else's has it
    assert [(e.seeds, e.shared) for e in again.entries] == [([1237, 1238], "")]


def test_what_is_no_longer_wanted_or_there_is_not_shared_any_more(tmp_path: Path) -> None:
    asked = CellResult("cifar10-iid", "ewc", 10, [], None, None, rounds=10.0)
    taken_in(tmp_path, summary("table-iid", row("cifar10", "ewc", 82.0)), summary("cost-bytes", asked))
    assert rows(taken_in(tmp_path, summary("cost-bytes", replace(asked, rounds=9.0)))["cost-bytes"]) == {}
    assert rows(taken_in(tmp_path, summary("cost-bytes", asked))["cost-bytes"]) != {}
    (tmp_path / "results/small/table-iid.json").unlink()
    assert rows(taken_in(tmp_path, summary("cost-rounds"))["cost-bytes"]) == {}


def test_runs_of_other_settings_are_neither_shared_nor_mixed() -> None:
    """A preset's rate is in no name: what its settings come to tells runs with another one apart."""
    made = row("cifar10", "ewc", 82.0)
    figure = summary("figure-tasks", row("cifar10", "nccl", 86.0))
    curve = replace(made, after_tasks=[[90.0, 82.0]])
    _, found = completed([summary("table-iid", replace(curve, settings="other")), figure])
    assert ("cifar10", "ewc", None) not in rows(found)
    _, found = completed([summary("table-iid", curve), figure])
    assert rows(found)["cifar10", "ewc", None] == (82.0, "table-iid"), "of older runs it is not known"
    older, newer = replace(made, settings="a"), replace(made, seeds=[1240], accuracies=[90.0], settings="b")
    assert summary("table-iid", newer).added_to(summary("table-iid", older)).entries == [newer]
    longer = replace(newer, settings="a", rounds=11.0)
    assert summary("table-iid", longer).added_to(summary("table-iid", older)).entries == [longer]
    more = replace(newer, settings="a")
    unknown = replace(made, rounds=None)
    assert summary("table-iid", more).added_to(summary("table-iid", unknown)).entries[0].seeds == [1234, 1235, 1240]
    assert summary("table-iid", more).added_to(summary("table-iid", older)).entries[0].seeds == [1234, 1235, 1240]


def test_a_campaign_of_others_runs_alone_says_so(tmp_path: Path) -> None:
    asked = Summary("cost-bytes", "small", "cflag reproduce cost-bytes", "", "",
                    [CellResult("cifar10-iid", "ewc", 10, [], None, None, rounds=10.0)])  # fmt: skip
    for made in (summary("table-iid", row("cifar10", "ewc", 82.0)), asked):
        (tmp_path / f"{made.campaign}.json").write_text(json.dumps(made.to_dict()))
    keep([tmp_path], tmp_path / "results")
    ledger = make_ledger(tmp_path / "results")
    assert (
        "- scale `small` ≠: `cflag reproduce cost-bytes`, none of it run here\n  - cells in common with [tab" in ledger
    )
    assert "- scale `small` ≠: `cflag reproduce table-iid`, seeds 1234, 1235, 2025-05-03, commit abc1234\n" in ledger


def test_the_papers_own_numbers_are_those_of_the_place_where_a_row_is_shown() -> None:
    """The paper prints 87.89 for five clients in one table and 89.28 for the same run in another."""
    one = summary("table-iid", replace(row("cifar10", "cflag-paper", 77.7), paper_accuracy=(89.28, 4.98)))
    _, found = completed([one, summary("table-clients", row("cifar10-iid", "cflag-paper", 76.6, at=10))])
    (entry,) = [e for e in found.entries if e.at == 5]
    assert (entry.accuracy, entry.paper_accuracy, entry.shared) == ((77.7, 1.0), (87.89, None), "table-iid")


def test_a_figure_takes_no_row_that_lacks_what_it_shows() -> None:
    table, curve = row("cifar10", "ewc", 82.0), replace(row("cifar10", "nccl", 86.0), after_tasks=[[90.0, 86.0]])
    _, found = completed([summary("table-iid", table, curve), summary("figure-tasks", row("cifar100", "ewc", 39.0))])
    assert rows(found) == {("cifar10", "nccl", None): (86.0, "table-iid"), ("cifar100", "ewc", None): (39.0, "")}


def test_the_ledger_shares_what_it_takes_in_and_says_so(tmp_path: Path) -> None:
    """A row of its own takes the place of one that was shared; what was shared is not passed on as if it were made."""
    for name, entries in {
        "table-noniid": [row("cifar100", "ewc", 20.0)],
        "figure-heterogeneity": [row("cifar10", "ewc", 70.0, at=0.1)],
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(summary(name, *entries).to_dict()))
    keep([tmp_path], tmp_path / "results")
    ledger = make_ledger(tmp_path / "results")
    assert "  - cells in common with [table-noniid](#table-noniid) are from there\n" in ledger
    assert "| EWC-FL, 0.1 | 20.0 ± 1.0 |" in ledger
    assert (
        "| [`figure-heterogeneity`](#figure-heterogeneity) | Heterogeneity: ζ = 0.1, 1 and 1e5 | 2 of 24 (4 runs)"
        in (ledger)
    )
    own = tmp_path / "own"
    own.mkdir()
    made = summary("figure-heterogeneity", row("cifar100", "ewc", 21.0, at=0.1))
    (own / "figure-heterogeneity.json").write_text(json.dumps(made.to_dict()))
    keep([own], tmp_path / "results")
    kept = json.loads((tmp_path / "results" / "small" / "figure-heterogeneity.json").read_text())
    assert rows(Summary.from_dict(kept))["cifar100", "ewc", 0.1] == (21.0, "")
