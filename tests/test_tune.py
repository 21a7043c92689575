"""Tuning: the same number of trials for all, on a seed of its own, and a file that a comparison can take."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cflag.tune import Search, Tuning, load_tuned, tune, write_tuned
from optuna.distributions import CategoricalDistribution as FixedChoice

from cflag import Result, registry
from cflag.cli import main
from cflag.config import flatten, load_raw, merge
from cflag.errors import UserError
from tests.support.quick import QUICK

pytestmark = pytest.mark.usefixtures("no_figures", "runs_here")

RAW: dict[str, Any] = merge(load_raw("digits"), flatten(QUICK))
FLAGS = [f"--set={k}={v}" for k, v in QUICK.items()]


@pytest.mark.parametrize("method", registry.names("method"))
def test_every_method_declares_a_space_that_its_settings_accept(method: str) -> None:
    space = registry.get("method", method).search_space
    if method == "ncm":
        assert not space, "it has no settings"
        return
    assert space
    search = Search(method, RAW, seed=1)
    for corner in (0, -1):
        search.config({name: choice[corner] for name, choice in space.items()})


def test_first_trial_is_the_presets_own_settings_and_the_search_repeats_itself() -> None:
    def asked() -> list[dict[str, Any]]:
        search = Search("cflag", RAW, seed=1)
        found = []
        for _ in range(12):
            trial = search.ask()
            search.study.tell(trial, -abs(trial.params["beta"] - 0.3))
            found.append(trial.params)
        return found

    first, again = asked(), asked()
    assert first == again
    assert first[0] == {"alpha": 0.1, "beta": 0.1}  # digits.toml
    assert len({trial["beta"] for trial in first}) == 12


def test_tune_then_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["tune", "finetune,cflag", "digits", *FLAGS, "--trials", "2", "--out", str(tmp_path / "t")]
    assert main(argv) == 0
    assert "finetune" in capsys.readouterr().out
    folders = sorted(path.name for path in (tmp_path / "t").iterdir() if path.is_dir())
    assert folders == [f"{method}-00{k}" for method in ("cflag", "finetune") for k in (1, 2)]
    results = {name: Result.load(tmp_path / "t" / name) for name in folders}
    assert {result.seed for result in results.values()} == {4321}
    found = tomllib.loads((tmp_path / "t" / "tuned.toml").read_text())
    assert found["tuning"] == {"preset": "digits", "trials": 2, "seed": 4321, "budget": "rounds"}
    for method in ("finetune", "cflag"):
        best = max((r for r in results.values() if r.method == method), key=lambda r: r.average_accuracy)
        assert {name: best.config[method][name] for name in found[method]} == found[method]

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "t").glob("*/result.json")}
    assert main(argv) == 0  # all trials are done: nothing is run again
    assert {path: path.stat().st_mtime_ns for path in before} == before

    compare = ["compare", "digits", *FLAGS, "--methods", "cflag", "--seeds", "1",
               "--tuned", str(tmp_path / "t" / "tuned.toml"), "--out", str(tmp_path / "c")]  # fmt: skip
    assert main(compare) == 0
    used = Result.load(tmp_path / "c" / "cflag-2-1").config["cflag"]
    assert used["beta"] == found["cflag"]["beta"]


def test_settings_that_diverge_are_worth_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.get("method", "finetune"), "search_space", {"lr": [0.1, 1e15]})
    raw = merge(RAW, [("optimizer", "momentum"), ("finetune.lr", 1e15)])
    found = tune(raw, ["finetune"], Tuning("digits", 2, 2, "rounds"), tmp_path, lambda _: None)
    accuracy, settings = found["finetune"]
    assert settings == {"lr": 0.1}
    assert accuracy > 0


def tuned(path: Path, trials: int, seed: int, *methods: str) -> Path:
    write_tuned(path, Tuning("digits", trials, seed, "rounds"), {method: {"lr": 0.5} for method in methods})
    return path


def test_settings_that_exclude_each_other_are_worth_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.get("method", "nccl"), "search_space", {"lr": [0.1, 0.3]})  # 0.3 is above 1/smoothness
    monkeypatch.setattr(Search, "ask", lambda self: self.study.ask({"lr": FixedChoice([0.3])}))
    found = tune(RAW, ["nccl"], Tuning("digits", 1, 2, "rounds"), tmp_path, lambda _: None)
    assert found["nccl"] == (0.0, {"lr": 0.3})
    assert not list(tmp_path.iterdir())


def test_equal_gradients_in_tuning_as_in_comparing(tmp_path: Path) -> None:
    raw = merge(RAW, [("rounds", 6)])
    tune(raw, ["finetune", "replay"], Tuning("digits", 1, 2, "gradients"), tmp_path, lambda _: None)
    results = [Result.load(tmp_path / f"{method}-001") for method in ("finetune", "replay")]
    assert results[1].config["rounds"] < results[0].config["rounds"] == 6


def test_what_is_set_by_hand_goes_before_what_was_tuned(tmp_path: Path) -> None:
    file = tuned(tmp_path / "t.toml", 5, 9, "finetune", "replay")
    argv = ["compare", "digits", *FLAGS, "--methods", "finetune", "--seeds", "1", "--tuned", str(file)]
    assert main([*argv, "--set", "finetune.lr=0.03", "--out", str(tmp_path / "out")]) == 0
    assert Result.load(tmp_path / "out" / "finetune-2-1").config["finetune"]["lr"] == 0.03


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tune", "finetune", "digits", "--trials", "0"], "at least one"),
        (["tune", "finetune,finetune", "digits"], "each name once"),
        (["tune", "fintune", "digits"], "did you mean 'finetune'"),
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
    one = tuned(tmp_path / "one.toml", 5, 9, "finetune")
    two = tuned(tmp_path / "two.toml", 6, 9, "replay")
    assert load_tuned([one], ["finetune"], [1, 2]) == {"finetune": {"lr": 0.5}}
    with pytest.raises(UserError, match="same number of trials"):
        load_tuned([one, two], ["finetune", "replay"], [1])
    with pytest.raises(UserError, match="tuned on seed 9"):
        load_tuned([one], ["finetune"], [8, 9])
    with pytest.raises(UserError, match="'replay' was not tuned"):
        load_tuned([one], ["finetune", "replay"], [1])
    with pytest.raises(UserError, match="tuned in another file, too"):
        load_tuned([one, tuned(tmp_path / "again.toml", 5, 9, "finetune")], ["finetune"], [1])
    (tmp_path / "plain.toml").write_text("[finetune]\nlr = 0.1\n")
    with pytest.raises(UserError, match=r"no \[tuning\] table"):
        load_tuned([tmp_path / "plain.toml"], ["finetune"], [1])
