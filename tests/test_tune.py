"""Tuning: the same number of trials for all, on a seed of its own, by held-out training samples; never worse."""

from __future__ import annotations

import json
import sys
import tomllib
from math import log10
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflag import Around, Over, Rate, Result, Times, UserError, registry
from cflag.cli import main
from cflag.config import flatten, load_config, load_raw, merge, resolve
from cflag.data.benchmark import Benchmark
from cflag.data.load import load_source
from cflag.errors import PrunedError
from cflag.jobs import Job, prepare, run_all
from cflag.own import Own
from cflag.results.floors import Floors
from cflag.results.folder import RunFolder
from cflag.tuning.search import Search, Trial, best_of
from cflag.tuning.space import Space
from cflag.tuning.tune import carry_out
from cflag.tuning.tuned import Tuned, Tuning, load_tuned, write_tuned
from tests.support.quick import QUICK

pytestmark = pytest.mark.usefixtures("no_figures")

RAW: dict[str, Any] = merge(load_raw("digits"), flatten({**QUICK, "clients": 2, "model": "linear"}))
FLAGS = [f"--set={k}={v}" for k, v in QUICK.items()]


def search(method: str, raw: Any = RAW, trials: int = 20, out: Path | None = None, **options: Any) -> Tuned:
    tuning = Tuning("digits", trials, options.pop("seed", 2), options.pop("budget", "rounds"), **options)
    assert out is not None
    return carry_out(raw, method.split(","), tuning, out, Own(), 2, lambda _: None)


# What is searched -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", registry.names("method"))
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_method_declares_a_space_whose_corners_its_settings_accept(method: str, optimizer: str) -> None:
    if method == "ncm":
        assert not registry.get("method", method).search_space, "it has no settings"
        return
    one = Search(method, merge(RAW, [("optimizer", optimizer)]), 20, seed=1)
    assert one.space.spans
    for corner in (0, -1):
        one.config(one.space.settings({name: span[corner] for name, span in one.space.spans.items()}))


@pytest.mark.parametrize(("optimizer", "usual"), [("sgd", 0.1), ("momentum", 0.01), ("adam", 0.001)])
@given(own=st.floats(1e-5, 1e2))
def test_a_rate_is_searched_over_two_decades_or_more_that_hold_the_files_own_and_the_usual(
    optimizer: str, usual: float, own: float
) -> None:
    low, high = Rate().span(own, optimizer)
    assert low <= own / 9.99
    assert high >= own * 9.99
    assert low <= usual / 9.99 < usual * 9.99 <= high
    assert log10(high / low) == pytest.approx(2 + abs(log10(own / usual)))


def test_what_a_space_is_by_hand() -> None:
    """α = 0.5 is 5 β, Lα = 2.5; α as 2 to 100 times β, L as 0.1 to 0.9 over α: the last must be widened for 2.5."""
    config = load_config("digits", method="cflag", cflag={"alpha": 0.5, "beta": 0.1, "adapt": "off"})
    declared: Any = {"beta": Rate(), "alpha": Times("beta", 2.0, 100.0), "smoothness": Over("alpha", 0.1, 0.9),
                     "drift": Around(1.0), "order": ["cyclic", "random"], "alpha_cap": Around(),
                     "measure_gamma": (1.0, 2.0)}  # fmt: skip
    space = Space(declared, config.settings, "sgd")
    assert space.own_params() == {"beta": 0.1, "alpha": 5.0, "smoothness": 2.5, "drift": 1.0, "order": "shuffled"}
    assert space.spans["beta"] == pytest.approx((0.01, 1.0))
    assert space.spans["alpha"] == (2.0, 100.0)
    assert space.spans["smoothness"] == (0.1, 2.5)
    assert space.spans["drift"] == pytest.approx((10**-0.5, 10**0.5))
    assert space.spans["order"] == ["shuffled", "cyclic", "random"]
    assert space.settings(space.own_params())["alpha"] == 0.5
    found = space.settings({"beta": 0.02, "alpha": 10.0, "smoothness": 0.5, "drift": 1.0, "order": "cyclic"})
    assert found == {"beta": 0.02, "alpha": 0.2, "smoothness": 2.5, "drift": 1.0, "order": "cyclic"}


def test_cflags_space_leaves_out_what_has_no_effect_and_heeds_a_cap() -> None:
    def names(**settings: Any) -> Any:
        config = load_config("digits", method="cflag", cflag=settings)
        return registry.get("method", "cflag").space(config.settings)

    assert list(names(smoothness="auto")) == ["beta"]
    assert list(names(smoothness=5.0, adapt="off")) == ["beta", "alpha"]
    assert names(smoothness=5.0, alpha=0.06, alpha_cap=0.15)["alpha"] == (pytest.approx(0.002), 0.15)


def test_the_search_repeats_itself_and_begins_with_the_files_own_values() -> None:
    def asked() -> list[dict[str, Any]]:
        one = Search("cflag", RAW, 12, seed=1)
        for _ in range(12):
            trial = one.ask()
            trial.state, trial.values = "finished", [0.5, 1 / (1 + abs(trial.settings["beta"] - 0.3))]
            one.tell(trial)
        return [trial.settings for trial in one.trials]

    first, again = asked(), asked()
    assert first == again
    own = load_config("digits", method="cflag").settings
    assert first[0] == {name: getattr(own, name) for name in first[0]}
    assert len({trial["beta"] for trial in first}) == 12


# Held-out training samples --------------------------------------------------------------------------------------------


def test_validation_holds_out_a_share_of_each_class_of_the_training_samples() -> None:
    source = load_source("digits", Path())
    whole = Benchmark(source, load_config("digits"))
    held = Benchmark(source, load_config("digits", validation=0.25))
    train, test = held.source.train, held.source.test
    counts = np.bincount(whole.source.train.y.numpy())
    assert np.bincount(test.y.numpy()).tolist() == [round(0.25 * count) for count in counts]
    assert (np.bincount(train.y.numpy()) + np.bincount(test.y.numpy())).tolist() == counts.tolist()

    def rows(x: Any) -> set[bytes]:
        return {row.numpy().tobytes() for row in x}

    assert rows(train.x) | rows(test.x) == rows(whole.source.train.x)
    assert not rows(test.x) & (rows(whole.source.test.x) - rows(whole.source.train.x))
    again = Benchmark(source, load_config("digits", validation=0.25))
    assert bool((again.source.test.x == test.x).all())
    other = Benchmark(source, load_config("digits", validation=0.25, seed=7))
    assert not bool((other.source.test.x == test.x).all())
    with pytest.raises(UserError, match=r"validation = 1\.0 must be 0"):
        load_config("digits", validation=1.0)


# Giving up ------------------------------------------------------------------------------------------------------------


def test_floors_are_half_of_the_best_finished_trials_path() -> None:
    """The best at the end had 0.9 after the first task and 0.6 after the second: 0.45 and 0.3."""
    one = Search("finetune", RAW, 9, seed=1)
    paths = [[0.99, 0.5, 0.3], [0.9, 0.6, 0.4], [0.2, 0.2, 0.2], [0.95, 0.9, 0.1]]
    for path in [*paths, [0.01]]:
        assert one.floors() == (() if len(one.trials) < 4 else pytest.approx((0.45, 0.3)))
        trial = one.ask()
        trial.state, trial.values = "finished" if len(path) == 3 else "given up", path
        one.tell(trial)
    assert one.floors() == pytest.approx((0.45, 0.3)), "one that was given up changes nothing"


@pytest.mark.parametrize("forked", [True, False])
def test_a_hopeless_run_stops_after_its_task_also_when_it_is_repeated(forked: bool, tmp_path: Path) -> None:
    config = resolve(merge(RAW, [("method", "finetune"), ("workers", 1), ("eval_every", 10**6), ("tasks", 3)]))
    job = Job(tmp_path / "run", config, (0.0, 1.1))
    prepare([job])
    told: list[Any] = []
    if forked:
        run_all([job], 1, lambda _: None, lambda job, error: told.append(error))
        assert isinstance(told[0], PrunedError)
    else:
        assert main(["run", "--quiet", "--resume", str(job.folder), "--floors", "0.0,1.1"]) == PrunedError.exit_code
    folder = RunFolder(job.folder)
    assert folder.rounds_done() == 2 * config.rounds < job.rounds == job.done()
    assert not folder.finished
    assert json.loads(folder.pruned_file.read_text())["task"] == 2
    folder.pruned_file.unlink()  # as if it had been killed just before
    with pytest.raises(PrunedError):
        Own().experiment(config).resume(job.folder, Floors(folder, job.floors))
    assert folder.rounds_done() == 2 * config.rounds


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file with a good rate, and a space of mostly useless ones."""
    monkeypatch.setattr(registry.get("method", "finetune"), "search_space", {"lr": (1e-9, 0.5)})
    return merge(RAW, [("model", "mlp"), ("tasks", 3), ("finetune.lr", 0.5)])  # a linear one learns at any rate


def test_trials_are_given_up_and_the_files_own_never(wide: Any, tmp_path: Path) -> None:
    raw = wide
    tuned = search("finetune", raw, 8, tmp_path)
    states = [trial.state for trial in tuned.trials["finetune"]]
    assert states[:4] == ["finished"] * 4
    assert "given up" in states
    for trial in tuned.trials["finetune"]:
        done = RunFolder(tmp_path / f"finetune-{trial.number:03d}").rounds_done()
        assert done == 2 * len(trial.values)
        assert (done < 6) == (trial.state == "given up")


# What comes out -------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from(["finished", "given up", "diverged", "refused"]), st.floats(0, 1)), min_size=1)
)
def test_the_best_is_never_worse_than_the_files_own(found: list[tuple[Any, float]]) -> None:
    trials = [Trial("m", k, {}, state, [accuracy]) for k, (state, accuracy) in enumerate(found, 1)]
    trials[0].state = "finished"
    best = best_of(trials)
    assert best.state == "finished"
    assert best.worth >= trials[0].worth
    assert best is trials[0] or best.worth > trials[0].worth


def test_tune_then_compare_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["tune", "finetune,cflag", "digits", *FLAGS, "--trials", "2", "--out", str(tmp_path / "t")]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "finetune: the best of 2 trials" in shown
    assert max(map(len, shown.splitlines())) <= 100 + len(str(tmp_path))
    folders = sorted(path.name for path in (tmp_path / "t").iterdir() if path.is_dir())
    trials = [f"{method}-00{k}" for method in ("cflag", "finetune") for k in (1, 2)]
    assert (
        set(trials) <= set(folders) <= {*trials, *(f"{m}-{w}" for m in ("cflag", "finetune") for w in ("own", "best"))}
    )
    results = {name: Result.load(tmp_path / "t" / name) for name in folders}
    assert {result.seed for result in results.values()} == {4321}
    assert {name: result.config["validation"] for name, result in results.items()} == {
        name: 0.2 if name in trials else 0.0 for name in folders
    }
    found = tomllib.loads((tmp_path / "t" / "tuned.toml").read_text())
    assert found["tuning"] == {"preset": "digits", "trials": 2, "seed": 4321, "budget": "rounds", "parallel": 4,
                               "validation": 0.2}  # fmt: skip
    for method in ("finetune", "cflag"):
        best = max((results[n] for n in trials if n.startswith(f"{method}-")), key=lambda r: r.average_accuracy)
        assert {name: best.config[method][name] for name in found[method]} == found[method]
    assert (tmp_path / "t" / "search.png").stat().st_size > 10_000

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "t").glob("*/result.json")}
    assert main(argv) == 0  # all trials are done: nothing is run again
    assert {path: path.stat().st_mtime_ns for path in before} == before

    compare = ["compare", "digits", *FLAGS, "--methods", "cflag", "--seeds", "1",
               "--tuned", str(tmp_path / "t" / "tuned.toml"), "--out", str(tmp_path / "c")]  # fmt: skip
    assert main(compare) == 0
    used = Result.load(tmp_path / "c" / "cflag-2-1").config["cflag"]
    assert used["beta"] == found["cflag"]["beta"]


def test_a_search_that_was_stopped_ends_as_one_that_was_not(
    wide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the third group with two trials of it undone, and on another number of cores."""
    raw = wide
    whole = search("finetune", raw, 8, tmp_path / "whole", parallel=3)
    calls: list[int] = []

    def stop(jobs: Any, at_once: int, *rest: Any) -> Any:
        calls.append(len(jobs))
        if len(calls) == 3:
            run_all(jobs[:1], 1, *rest)
            raise KeyboardInterrupt
        return run_all(jobs, 1, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("cflag.tuning.tune.run_all", stop)
        with pytest.raises(KeyboardInterrupt):
            search("finetune", raw, 8, tmp_path / "stopped", parallel=3)
    gone_on = search("finetune", raw, 8, tmp_path / "stopped", parallel=3)
    assert gone_on.records() == whole.records()
    assert (tmp_path / "stopped" / "tuned.toml").read_bytes() == (tmp_path / "whole" / "tuned.toml").read_bytes()


def test_settings_that_diverge_are_worth_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.get("method", "finetune"), "search_space", {"lr": [0.1, 1e15]})
    raw = merge(RAW, [("model", "mlp"), ("optimizer", "momentum"), ("finetune.lr", 1e15)])
    tuned = search("finetune", raw, 4, tmp_path)
    assert tuned.trials["finetune"][0].state == "diverged"
    assert tuned.best["finetune"] == {"lr": 0.1}
    assert tuned.tests["finetune"][0] is None
    assert "diverged" in str(tuned)


def test_where_nothing_is_better_the_files_own_values_are_kept_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.get("method", "finetune"), "search_space", {"lr": [1e-9]})
    tuned = search("finetune", merge(RAW, [("finetune.lr", 0.5)]), 3, tmp_path)
    assert tuned.best == {"finetune": {"lr": 0.5}}
    assert "nothing beat the file's own values" in str(tuned)
    assert max(map(len, str(tuned).splitlines())) <= 80
    own, best = tuned.tests["finetune"]
    assert own == best


def test_settings_that_exclude_each_other_are_worth_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.get("method", "nccl"), "search_space", {"lr": [0.3, 0.4, 0.5]})  # above 1/L
    tuned = search("nccl", RAW, 4, tmp_path)
    assert {trial.state for trial in tuned.trials["nccl"]} == {"finished", "refused"}
    assert tuned.unbeaten() == ["nccl"]


def test_equal_gradients_in_tuning_as_in_comparing(tmp_path: Path) -> None:
    search("finetune,replay", merge(RAW, [("rounds", 6)]), 1, tmp_path, budget="gradients")
    results = [Result.load(tmp_path / f"{method}-001") for method in ("finetune", "replay")]
    assert results[1].config["rounds"] < results[0].config["rounds"] == 6


def tuned_file(path: Path, trials: int, seed: int, *methods: str) -> Path:
    write_tuned(path, Tuning("digits", trials, seed, "rounds"), {method: {"lr": 0.5} for method in methods})
    return path


def test_what_is_set_by_hand_goes_before_what_was_tuned(tmp_path: Path) -> None:
    file = tuned_file(tmp_path / "t.toml", 5, 9, "finetune", "replay")
    argv = ["compare", "digits", *FLAGS, "--methods", "finetune", "--seeds", "1", "--tuned", str(file)]
    assert main([*argv, "--set", "finetune.lr=0.03", "--out", str(tmp_path / "out")]) == 0
    assert Result.load(tmp_path / "out" / "finetune-2-1").config["finetune"]["lr"] == 0.03


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tune", "finetune", "digits", "--trials", "0"], "at least one"),
        (["tune", "finetune", "digits", "--parallel", "0"], "at least one"),
        (["tune", "finetune", "digits", "--validation", "1"], "validation = 1.0 must be between 0 and 1"),
        (["tune", "finetune,finetune", "digits"], "each name once"),
        (["tune", "fintune", "digits"], "did you mean 'finetune'"),
        (["tune", "ncm", "digits"], "declares no space"),
        (["compare", "digits", "--methods", "finetune", "--seeds", "1,1"], "each name once"),
        (["compare", "digits", "--methods", "finetune", "--jobs", "-1"], "--jobs -1"),
    ],
)
def test_mistakes_end_in_one_line(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_without_optuna_the_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", "finetune", "digits", *FLAGS, "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'cflag[tune]'" in capsys.readouterr().err


def test_what_would_be_unfair_is_refused(tmp_path: Path) -> None:
    one = tuned_file(tmp_path / "one.toml", 5, 9, "finetune")
    two = tuned_file(tmp_path / "two.toml", 6, 9, "replay")
    assert load_tuned([one], ["finetune"], [1, 2]) == {"finetune": {"lr": 0.5}}
    with pytest.raises(UserError, match="same number of trials"):
        load_tuned([one, two], ["finetune", "replay"], [1])
    with pytest.raises(UserError, match="tuned on seed 9"):
        load_tuned([one], ["finetune"], [8, 9])
    with pytest.raises(UserError, match="'replay' was not tuned"):
        load_tuned([one], ["finetune", "replay"], [1])
    with pytest.raises(UserError, match="tuned in another file, too"):
        load_tuned([one, tuned_file(tmp_path / "again.toml", 5, 9, "finetune")], ["finetune"], [1])
    (tmp_path / "plain.toml").write_text("[finetune]\nlr = 0.1\n")
    with pytest.raises(UserError, match=r"no \[tuning\] table"):
        load_tuned([tmp_path / "plain.toml"], ["finetune"], [1])
