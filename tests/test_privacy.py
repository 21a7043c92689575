"""Differential privacy: ε against values derived elsewhere, what is clipped, what is noised, and what is counted."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cflag import Experiment, registry, resume, run
from cflag.config import Config, flatten, load_raw, merge, resolve
from cflag.conversation import Answer, Ask
from cflag.data.samples import Samples
from cflag.engines.flower.client.station import Station
from cflag.engines.flower.server.secure_mean import SecureMean
from cflag.engines.local import LocalEngine
from cflag.errors import CflagError, UserError
from cflag.learning.distillation import distillation
from cflag.learning.learner import Learner, shortened
from cflag.privacy.accounting import BudgetError, delta_at, epsilon_at
from cflag.privacy.noise import KEY_FILE, Noise, noise_key
from cflag.privacy.options import PrivacyOptions
from cflag.privacy.rules import NOT_BY_SAMPLE, RULES
from cflag.privacy.shield import SampleLedger, Shield
from cflag.results.result import Result
from tests.support.crashes import Crash, stop_after
from tests.support.grid import QUICK as FLEET
from tests.support.grid import Fleet, local, numbers
from tests.support.quick import QUICK, same

pytestmark = pytest.mark.usefixtures("no_figures")

STUDY: dict[str, Any] = {"unit": "sample", "repeatable_noise": True}
"""Noise that repeats."""


def config_of(**settings: Any) -> Config:
    return resolve(merge(load_raw("digits"), flatten({**QUICK, "workers": 1, **settings})))


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# ε


def integrated_delta(epsilon: float, mu: float) -> float:
    """∫ max(0, p − e^ε q) for p = N(μ, 1) and q = N(0, 1): what δ means, summed up on a fine grid."""
    x = np.linspace(-12, 12 + mu, 2_000_001)
    p = np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    q = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.maximum(0, p - math.exp(epsilon) * q).sum() * (x[1] - x[0]))


@pytest.mark.parametrize(("epsilon", "mu"), [(0.0, 0.5), (0.5, 0.3), (1.0, 1.0), (4.0, 1.5), (12.0, 3.0)])
def test_delta_is_what_its_definition_says(epsilon: float, mu: float) -> None:
    assert delta_at(epsilon, mu) == pytest.approx(integrated_delta(epsilon, mu), rel=1e-6, abs=1e-12)


def test_epsilon_is_that_of_dp_accounting() -> None:
    """Made with dp-accounting 0.6.0, δ = 1e-5: its PLD accountant, which rounds up, and its RDP accountant, a bound."""
    for mu, pld, rdp in ((0.05, 0.1600421, 0.1816173), (0.5, 1.9930914, 2.1657157), (2.0, 9.9972562, 10.7255097),
                         (5.0, 33.1037323, 35.0817540), (10.0, 91.8172896, 96.1163084)):  # fmt: skip
        assert epsilon_at(1e-5, mu) == pytest.approx(pld, abs=1e-6)
        assert epsilon_at(1e-5, mu) < rdp


def test_epsilon_is_that_of_dp_accounting_where_it_is_installed() -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    for noise, times in ((2.0, 1), (4.0, 9), (1.0, 3)):
        accountant = dp_accounting.pld.PLDAccountant()
        accountant.compose(dp_accounting.GaussianDpEvent(noise), times)
        mine = epsilon_at(1e-6, math.sqrt(times) / noise)
        assert mine == pytest.approx(accountant.get_epsilon(1e-6), abs=2e-3)


@given(st.floats(0.01, 40), st.floats(1e-10, 0.2))
def test_epsilon_and_delta_are_each_others_inverse(mu: float, delta: float) -> None:
    epsilon = epsilon_at(delta, mu)
    assert delta_at(epsilon, mu) <= delta * (1 + 1e-6)
    assert epsilon == 0 or delta_at(epsilon * (1 - 1e-6), mu) > delta * (1 - 1e-4)


def test_no_release_costs_nothing() -> None:
    assert epsilon_at(1e-5, 0.0) == 0.0


# noise


def test_noise_is_normal() -> None:
    """Moments of a million numbers, within five standard errors; its largest is about √(2 ln n)."""
    drawn = Noise(b"key").like(torch.zeros(1_000_001, dtype=torch.float64), "a")
    for power, moment, spread in (
        (1, 0.0, 1.0),
        (2, 1.0, math.sqrt(2)),
        (3, 0.0, math.sqrt(15)),
        (4, 3.0, math.sqrt(96)),
    ):
        assert float((drawn**power).mean()) == pytest.approx(moment, abs=5 * spread / 1000)
    assert 4 < float(drawn.abs().max()) < 6.5
    assert abs(float((drawn[1:] * drawn[:-1]).mean())) < 5e-3


def test_noise_has_a_name_and_a_key() -> None:
    like = torch.zeros(5)
    noise = Noise(b"key")
    assert torch.equal(noise.like(like, "a", 1), Noise(b"key").like(like, "a", 1))
    others = [
        noise.like(like, "a", 2),
        noise.like(like, "a1"),
        noise.like(like, "a", "1"),
        Noise(b"Key").like(like, "a", 1),
    ]
    assert not any(torch.equal(noise.like(like, "a", 1), other) for other in others)


def test_a_key_is_drawn_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    options = PrivacyOptions(unit="client")
    key = noise_key(options, 1, tmp_path)
    assert key == noise_key(options, 1, tmp_path)
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert key != noise_key(options, 1, None) != noise_key(options, 1, None)
    (tmp_path / KEY_FILE).write_bytes(b"short")
    with pytest.raises(UserError, match="is damaged"):
        noise_key(options, 1, tmp_path)


def test_repeatable_noise_comes_from_the_seed_alone(tmp_path: Path) -> None:
    options = PrivacyOptions(unit="client", repeatable_noise=True)
    assert noise_key(options, 1, tmp_path) == noise_key(options, 1) != noise_key(options, 2)
    assert not (tmp_path / KEY_FILE).exists()


# gradients of single samples


def learner_and_samples(**settings: Any) -> tuple[Learner, Samples]:
    experiment = Experiment(config_of(**settings))
    return experiment.learner, experiment.benchmark.train(0, 0)[:7]


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_samples_gradient_is_the_gradient_on_it_alone(model: str) -> None:
    learner, samples = learner_and_samples(model=model, scenario="class")
    rows = torch.cat(list(learner.sample_gradients(samples)))
    alone = torch.stack([learner.value_and_grad(one)[1] for one in samples.split(1)])
    torch.testing.assert_close(rows, alone, atol=1e-6, rtol=1e-5)


def test_a_samples_gradient_of_a_loss_that_knows_the_batch() -> None:
    """The teacher's answers of LwF's loss are those of the whole mini-batch."""
    learner, samples = learner_and_samples()
    answers, heads = torch.randn(7, 10), [learner.heads.own[0]]

    def loss(outputs: Tensor, chosen: Samples) -> Tensor:
        here = answers if len(outputs) == 7 else answers[which : which + 1]
        return distillation(outputs, here, heads, 2.0) + learner.loss(outputs, chosen)

    rows = torch.cat(list(learner.sample_gradients(samples, loss)))
    for which, one in enumerate(samples.split(1)):
        torch.testing.assert_close(rows[which], learner.value_and_grad(one, loss)[1], atol=1e-6, rtol=1e-5)


def test_a_large_model_takes_its_samples_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, samples = learner_and_samples()
    whole = list(learner.sample_gradients(samples))
    monkeypatch.setattr("cflag.learning.learner.ROWS", 2 * learner.params.numel() + 1)
    pieces = list(learner.sample_gradients(samples))
    assert [len(piece) for piece in whole] == [7]
    assert [len(piece) for piece in pieces] == [2, 2, 2, 1]
    torch.testing.assert_close(torch.cat(pieces), torch.cat(whole))


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e3])
def test_a_clipped_sum_is_the_sum_of_clipped_gradients(model: str, clip: float) -> None:
    learner, samples = learner_and_samples(model=model, scenario="class")
    alone = [learner.value_and_grad(one)[1] for one in samples.split(1)]
    expected = torch.stack([g * min(1.0, clip / float(g.norm())) for g in alone]).sum(0)
    torch.testing.assert_close(learner.clipped_sum(samples, clip), expected, atol=1e-6 * min(clip, 1), rtol=1e-4)


def test_a_gradient_that_is_not_finite_is_left_out() -> None:
    learner, samples = learner_and_samples()
    x = samples.x.float()
    x[2] = torch.inf
    broken = replace(samples, x=x)
    others = broken[torch.tensor([0, 1, 3, 4, 5, 6])]
    torch.testing.assert_close(learner.clipped_sum(broken, 1.0), learner.clipped_sum(others, 1.0))


numbers_of_any_size = st.floats(width=32) | st.floats(-10, 10, width=32)


@given(st.lists(st.lists(numbers_of_any_size, min_size=3, max_size=3), min_size=1, max_size=4), st.floats(0.1, 10))
def test_no_sample_counts_for_more_than_the_clip(rows: list[list[float]], clip: float) -> None:
    given_rows = torch.tensor(rows)
    short = shortened(given_rows, clip)
    assert short.isfinite().all()
    assert (short.norm(dim=1) <= clip * (1 + 1e-5)).all()
    small = given_rows.isfinite().all(1) & (given_rows.norm(dim=1) <= clip)
    torch.testing.assert_close(short[small], given_rows[small])


def test_a_released_gradient_is_the_clipped_mean_plus_noise() -> None:
    learner, samples = learner_and_samples()
    samples = replace(samples, index=torch.arange(7))
    clip, noise = 0.5, 3.0
    ledger = SampleLedger(PrivacyOptions("sample", clip, noise), Noise(b"key"), 4)
    released = ledger.gradient(learner, samples, None)
    exact = torch.zeros_like(learner.params)
    for one in samples.split(1):
        gradient = learner.value_and_grad(one)[1]
        exact += gradient * min(1.0, clip / float(gradient.norm()))
    left = (7 * released - exact).double()
    count = len(left)
    assert float(left.mean()) == pytest.approx(0, abs=5 * noise * clip / math.sqrt(count))
    assert float(left.std()) == pytest.approx(noise * clip, rel=5 / math.sqrt(2 * count))


def test_a_released_square_is_at_least_zero_and_noised_for_the_clip_squared() -> None:
    learner, samples = learner_and_samples()
    samples = replace(samples, index=torch.arange(7))
    ledger = SampleLedger(PrivacyOptions("sample", 0.5, 1000.0), Noise(b"key"), 4)
    released = 7 * ledger.squared_gradient(learner, samples)
    positive = released[released > 0].double()
    assert float(released.min()) == 0.0
    assert len(positive) == pytest.approx(len(released) / 2, rel=0.1)
    assert float(positive.square().mean().sqrt()) == pytest.approx(1000 * 0.5**2, rel=0.1)  # half a normal distribution
    assert ledger.most() == 1


def test_samples_that_cannot_be_counted_are_refused() -> None:
    learner, samples = learner_and_samples()
    ledger = SampleLedger(PrivacyOptions("sample"), Noise(b"key"), 4)
    with pytest.raises(CflagError, match="cannot tell whose samples"):
        ledger.gradient(learner, samples, None)
    with pytest.raises(CflagError, match="holds a sample twice"):
        ledger.gradient(learner, replace(samples, index=torch.tensor([0, 1, 2, 3, 4, 5, 0])), None)
    ledger.gradient(learner, replace(samples, index=torch.full((7,), -1)), None)  # nobody's
    assert ledger.most() == 0


def test_noise_is_not_used_twice_within_a_question() -> None:
    """Not for another call, other samples or another model; the same only for what is made again."""
    learner, samples = learner_and_samples()
    samples = replace(samples, index=torch.arange(7))
    ledger = SampleLedger(PrivacyOptions("sample", 1e-9, 1e9), Noise(b"key"), 4)  # noise alone
    ledger.turn_to("start")
    first = ledger.gradient(learner, samples, None)
    second = ledger.gradient(learner, samples, None)
    ledger.restart("start")
    ledger.again = True
    again = ledger.gradient(learner, samples, None)
    ledger.restart("start")
    other = ledger.gradient(learner, samples[1:], None)
    learner.params[0] += 1
    ledger.restart("start")
    elsewhere = ledger.gradient(learner, samples, None)
    assert torch.equal(first, again)
    made = [first, second, other, elsewhere]
    for k, one in enumerate(made):
        for another in made[:k]:
            assert abs(float(torch.corrcoef(torch.stack([one, another]))[0, 1])) < 0.1
    assert ledger.uses[0].tolist() == [2] * 7


# what is counted


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """How often each sample, known by its pixels, had a gradient taken."""
    counts: Counter[bytes] = Counter()
    for name in ("clipped_sum", "clipped_square_sum"):
        made = getattr(Learner, name)

        def listen(self: Learner, samples: Samples, *args: Any, made: Any = made) -> Any:
            counts.update(x.numpy().tobytes() for x in samples.x)
            return made(self, samples, *args)

        monkeypatch.setattr(Learner, name, listen)
    return counts


@pytest.mark.parametrize(
    "method", ["cflag", "cflag-sgd", "cflag-shared", "cflag-tracked", "replay", "derpp", "ewc", "joint"]
)
def test_every_use_of_a_sample_is_counted(method: str, tmp_path: Path, seen: Counter[bytes]) -> None:
    """Over questions, rounds, tasks and replays: ε is that of the sample with most gradients, counted by its pixels."""
    out = tmp_path / "run"
    result = run("digits", out=out, method=method, **{**QUICK, "batch": 16, "tasks": 3}, workers=1,
                 privacy={**STUDY, "noise": 4.0}, memory={"per_task": 10, "sample": 5})  # fmt: skip
    most = max(seen.values())
    epsilon = epsilon_at(1e-5, math.sqrt(most) / 4.0)
    assert result.costs["epsilon"] == pytest.approx(epsilon, rel=1e-9)
    so_far = [record["epsilon"] for record in records(out)]
    assert so_far == sorted(so_far)
    assert so_far[-1] == result.costs["epsilon"]


@pytest.mark.parametrize(
    "method",
    [{"method": "cflag"}, {"method": "cflag-tracked"}, {"method": "cflag-shared", "cflag-shared": {"past": "own"}}],
)
def test_what_is_made_again_is_no_use(method: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without room for its table makes it again, in a later question or the same: with the same numbers."""
    own: dict[str, Any] = {**QUICK, "workers": 1, "privacy": STUDY, **method}
    first = run("digits", out=tmp_path / "kept", **own)
    monkeypatch.setattr("cflag.learning.gradient_table.Workspace.keep", lambda *_: False)
    second = run("digits", out=tmp_path / "lost", **own)
    assert first.costs["epsilon"] == second.costs["epsilon"] > 0
    same(tmp_path / "kept", tmp_path / "lost")


# whole clients


class Watched(LocalEngine):
    """Keeps the means as the clients' answers make them, before they are noised."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.exact: dict[str, Any] = {}

    def ask(self, ask: Ask, *args: Any) -> Any:
        mean = super().ask(ask, *args)
        self.exact[ask.question] = {name: v.clone() if isinstance(v, Tensor) else v for name, v in mean.items()}
        return mean


def conversation(config: Config) -> tuple[Experiment, Watched, list[tuple[str, Any]]]:
    """Two tasks of one round each; return the means that the method saw."""
    experiment = Experiment(config)
    engine = Watched(experiment.host(), 1)
    session = experiment.session(engine)
    assert engine.warden is not None
    after, given_means = engine.warden.after, []

    def note(ask: Ask, *args: Any) -> Any:
        mean = after(ask, *args)
        given_means.append((ask.question, mean))
        return mean

    setattr(engine.warden, "after", note)  # noqa: B010 (mypy forbids the assignment)
    for task in range(2):
        session.play(task)
    return experiment, engine, given_means


def test_a_mean_has_noise_for_its_largest_client() -> None:
    """z √K clip p_max on each of the K parts that a question's answers have."""
    config = config_of(rounds=1, width=32, cflag={"measure_gamma": False}, zeta=0.5,
                       privacy={"unit": "client", "clip": 0.7, "noise": 2.0})  # fmt: skip
    experiment, engine, means = conversation(config)
    sizes = experiment.benchmark.sizes(1).values()
    largest = max(sizes) / sum(sizes)
    assert [question for question, _ in means] == ["gradients", "local_steps", "remember"] * 2
    for question, parts in (("gradients", ("g", "m")), ("local_steps", ("delta",))):
        mean = next(mean for asked, mean in reversed(means) if asked == question)
        exact = engine.exact[question]
        assert {name for name in mean if mean[name].numel()} == set(parts)
        for name in parts:
            assert float(exact[name].norm()) <= 0.7 * (1 + 1e-5)
            left = (mean[name] - exact[name]).double()
            expected = 2.0 * math.sqrt(len(parts)) * 0.7 * largest
            assert float(left.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * len(left)))
            assert float(left.mean()) == pytest.approx(0, abs=5 * expected / math.sqrt(len(left)))


def test_a_clients_account_follows_its_weight_and_its_rounds() -> None:
    """Three of five clients a round: only they pay, the largest in full, others by the square of their share."""
    config = config_of(
        rounds=1, method="finetune", clients_per_round=3, zeta=0.5, privacy={"unit": "client", "noise": 2.0}
    )
    experiment, engine, _ = conversation(config)
    assert engine.warden is not None
    expected: dict[int, float] = {}
    for task in range(2):
        session = experiment.session()
        session.enter(task)
        sizes = experiment.benchmark.sizes(task)
        cohort = session.cohort() or []
        assert len(cohort) == 3
        for number in cohort:
            part = sizes[number] / max(sizes[n] for n in cohort)
            expected[number] = expected.get(number, 0.0) + (part / 2.0) ** 2
    assert engine.warden.spent == pytest.approx(expected)
    assert engine.warden.epsilon() == pytest.approx(epsilon_at(1e-5, math.sqrt(max(expected.values()))))


def test_each_part_of_an_answer_has_its_own_clip() -> None:
    shield = Shield(PrivacyOptions("client", clip=2.0), "cflag-sgd", b"key")
    answer: Answer = {"g": torch.tensor([3.0, 4.0]), "m": torch.tensor([0.3, 0.4]), "factor": 17.0}
    left = shield.answered("gradients", answer)
    assert torch.allclose(torch.as_tensor(left["g"]), torch.tensor([1.2, 1.6]))
    assert torch.equal(torch.as_tensor(left["m"]), torch.tensor([0.3, 0.4]))
    assert left["factor"] == 17.0
    assert set(shield.answered("local_steps", {"delta": torch.ones(1), "alpha": 0.3})) == {"delta"}
    for question, extra in (("gradients", {"secret": 1.0}), ("unheard", {})):
        with pytest.raises(CflagError, match="no rule"):
            shield.answered(question, {**answer, **extra})


# every method

CLIENT_SETTINGS: dict[str, Any] = {
    **{name: {"measure_gamma": False} for name in ("cflag", "cflag-sgd")},
    **{name: {"moments": "fresh"} for name in ("cflag-shared", "cflag-balanced")},
}


@pytest.mark.parametrize("unit", ["sample", "client"])
@pytest.mark.parametrize("method", sorted(RULES))
def test_every_method_is_private_or_refused(method: str, unit: str, tmp_path: Path) -> None:
    own = {method: CLIENT_SETTINGS[method]} if unit == "client" and method in CLIENT_SETTINGS else {}
    settings = {**QUICK, "workers": 1, "method": method, "privacy": {"unit": unit}, **own}
    if unit == "sample" and method in NOT_BY_SAMPLE:
        with pytest.raises(UserError, match=r"cannot protect .*one of them (decides what others|changes others' grad)"):
            run("digits", **settings)
        return
    if method == "target":
        settings["target"] = {"samples": 8, "batch": 8, "generator_steps": 1, "student_steps": 1}
    result = run("digits", out=tmp_path / "run", **settings)
    assert result.costs["epsilon"] > 0
    for record in records(tmp_path / "run"):
        assert record["clients"] == {}
        assert record["loss"] is record["memory_loss"] is None
        assert "cohort" not in record
    assert not (tmp_path / "run" / "benchmark.json").exists()


def test_all_methods_of_the_package_have_rules() -> None:
    """But for those without training: which classes a client has is in their sums, and no noise was thought of yet."""
    assert set(registry.names("method")) - set(RULES) == {"ncm", "slda", "ridge"}
    assert set(RULES) <= set(registry.names("method"))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"cflag": {"measure_gamma": True}}, "set cflag.measure_gamma = false"),
        ({"cflag": {"smoothness": "auto", "measure_gamma": False}}, "would measure the noise"),
        ({"method": "cflag-shared"}, "moments = 'fresh'"),
        ({"cflag": {"measure_gamma": False}, "mean": {"kind": "median"}}, "needs the plain mean"),
        ({"privacy.clip": 0}, "privacy.clip = 0.0 must be positive"),
        ({"privacy.noise": -1}, "privacy.noise = -1.0 must be positive"),
        ({"privacy.epsilon": -1}, "privacy.epsilon = -1.0 must be a budget"),
        ({"privacy.delta": 1}, "privacy.delta = 1.0 must lie between 0 and 1"),
        ({"privacy.unit": "hospital"}, "'sample' or 'client'"),
    ],
)
def test_what_cannot_be_protected_is_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        config_of(**{"privacy": {"unit": "client"}, **settings})


def test_batch_norm_is_refused() -> None:
    with pytest.raises(UserError, match="norm = 'group'"):
        Experiment(config_of(model="cnn", norm="batch", method="finetune", privacy={"unit": "sample"}))


def test_nothing_is_different_where_privacy_is_off(tmp_path: Path) -> None:
    result = run("digits", out=tmp_path / "run", **QUICK, workers=1)
    assert "epsilon" not in result.costs
    assert all("epsilon" not in record for record in records(tmp_path / "run"))
    assert not (tmp_path / "run" / KEY_FILE).exists()


# the budget


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_a_budget_stops_a_run_before_it_is_exceeded(unit: str, tmp_path: Path) -> None:
    """After the first of two tasks; the run is over, with that task's result, and one line says why."""
    settings = {**QUICK, "workers": 1, "method": "joint", "seed": 3}
    free = run("digits", out=tmp_path / "free", **settings, privacy={"unit": unit, "repeatable_noise": True})
    spent = [record["epsilon"] for record in records(tmp_path / "free")]
    assert spent[2] < spent[3] == free.costs["epsilon"]
    budget = (spent[2] + spent[3]) / 2
    private = {"unit": unit, "repeatable_noise": True, "epsilon": budget}
    result = run("digits", out=tmp_path / "stopped", **settings, privacy=private)
    assert [record["epsilon"] for record in records(tmp_path / "stopped")] == spent[:3]
    assert spent[2] == result.costs["epsilon"] <= budget
    assert result.accuracy_matrix == free.accuracy_matrix[:1]
    assert Result.load(tmp_path / "stopped").accuracy_matrix == result.accuracy_matrix
    (line,) = (tmp_path / "stopped" / "events.log").read_text().splitlines()
    assert "the privacy budget is spent" in line
    assert f"privacy.epsilon = {budget:g}" in line
    assert "task 2, round 2" in line
    assert "the result is that of the 1 finished tasks" in line


def test_a_round_that_the_budget_cuts_in_two_is_paid_for_as_far_as_it_went(tmp_path: Path) -> None:
    """C-FLAG asks two questions a round; five are allowed, so the third round, of the second task, has only one."""
    budget = epsilon_at(1e-5, math.sqrt(5)) + 1e-9
    settings = {**QUICK, "workers": 1, "partition": "iid", "cflag": {"measure_gamma": False}}
    private = {"unit": "client", "epsilon": budget}
    result = run("digits", out=tmp_path / "run", **settings, privacy=private)
    lines = [record["epsilon"] for record in records(tmp_path / "run")]
    assert lines == pytest.approx([epsilon_at(1e-5, math.sqrt(k)) for k in (2, 4)], rel=0.02)
    assert lines[-1] < result.costs["epsilon"] <= budget


def test_a_budget_for_no_task_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"client 0 in task 1, round 1 would bring epsilon to .*no task was finished"):
        run("digits", out=tmp_path / "run", **QUICK, workers=1, privacy={"unit": "sample", "epsilon": 0.1})


def test_the_budget_is_kept_to_the_last_use() -> None:
    learner, samples = learner_and_samples()
    samples = replace(samples, index=torch.arange(7))
    options = PrivacyOptions("sample", noise=3.0, epsilon=epsilon_at(1e-5, math.sqrt(4) / 3.0) + 1e-9)
    ledger = SampleLedger(options, Noise(b"key"), 0)
    for _ in range(4):
        ledger.gradient(learner, samples, None)
    with pytest.raises(BudgetError, match="client 0"):
        ledger.gradient(learner, samples[:1], None)


# runs that end, and engines


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_a_resumed_run_has_the_same_noise_and_account(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**QUICK, "workers": 1, "cflag": {"measure_gamma": False}}
    settings["privacy"] = {"unit": unit, "repeatable_noise": True}
    run("digits", out=tmp_path / "whole", **settings)
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            run("digits", out=tmp_path / "resumed", **settings)
    resume(tmp_path / "resumed")
    same(tmp_path / "whole", tmp_path / "resumed")


def test_the_key_lives_as_long_as_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that is played again has the noise it had; when all is over nobody can subtract it."""
    settings = {**QUICK, "workers": 1, "privacy": {"unit": "sample"}}
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(Crash):
            run("digits", out=tmp_path / "run", **settings)
    key, (line,) = (tmp_path / "run" / KEY_FILE).read_bytes(), records(tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoint").iterdir():
        path.unlink()  # back to the start
    resume(tmp_path / "run")
    again = records(tmp_path / "run")[0]
    assert {**again, "seconds": 0} == {**line, "seconds": 0}
    assert len(key) == 32 + 32  # with its checksum
    assert not (tmp_path / "run" / KEY_FILE).exists()


def test_two_runs_have_noise_of_their_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run("digits", out=tmp_path / name, **QUICK, workers=1, privacy={"unit": "sample"})
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one != two


@pytest.mark.parametrize("unit", ["sample", "client"])
@pytest.mark.parametrize("method", ["cflag", "ewc"])
def test_all_engines_have_the_same_numbers(method: str, unit: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {"method": method, "zeta": 0.5, "cflag": {"measure_gamma": False}}
    own["privacy"] = {"unit": unit, "repeatable_noise": True, "held_out": "noised"}
    local(tmp_path, **own)
    run("digits", out=tmp_path / "two", **{**FLEET, **own}, workers=2)
    Fleet(tmp_path, **own).run()
    assert numbers(tmp_path / "local") == numbers(tmp_path / "two") == numbers(tmp_path / "run")


def test_a_client_of_a_fleet_whose_budget_is_spent_stops_the_run(tmp_path: Path) -> None:
    """Two rounds of one pass each are two uses of a sample; joint training uses it again in the next task."""
    budget = epsilon_at(1e-5, math.sqrt(2)) + 1e-9
    private = {**STUDY, "epsilon": budget}
    fleet = Fleet(tmp_path, method="joint", partition="iid", batch=500, privacy=private)
    result = fleet.run()
    assert result.costs["epsilon"] == pytest.approx(budget, rel=1e-6)
    assert len(result.accuracy_matrix) == 1
    assert "the privacy budget is spent: client 0 in task 2" in (fleet.path / "events.log").read_text()


# under secure aggregation clients add the noise together

SECURE: dict[str, Any] = {"engine": "flower-sim", "secure": True, "clients": 4, "zeta": 0.5, "min_clients": 3}


def test_the_shares_of_any_enough_clients_hide_the_largest() -> None:
    """Σ n_i ξ_i of the three clients that a mean needs has the deviation z clip n_max; of all four it has more."""
    sizes, clip, noise = [10, 20, 30, 80], 0.5, 2.0
    shield = Shield(PrivacyOptions("client", clip, noise), "finetune", b"key")
    zero: Answer = {"delta": torch.zeros(20_000), "buffers": torch.zeros(0)}
    total = torch.zeros(20_000)
    for number, size in enumerate(sizes[:3]):
        total += size * torch.as_tensor(shield.share("local_steps", zero, 80 / size / math.sqrt(3), number)["delta"])
    assert float(total.std()) == pytest.approx(noise * clip * 80, rel=5 / math.sqrt(40_000))


def test_a_secure_mean_has_the_clients_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of four noised answers, against that of the answers before noise: √(4/3) z clip p_max."""
    means: list[Tensor] = []
    clear: list[tuple[int, Tensor]] = []
    ask, noised = SecureMean.ask, Station.with_noise

    def note(self: SecureMean, *args: Any) -> Any:
        mean, heads = ask(self, *args)
        means.extend([mean["delta"]] if "delta" in mean else [])
        return mean, heads

    def listen(self: Station, head: Any, sent: Any, answer: Answer) -> Answer:
        if "delta" in answer:
            clear.append((self.host.benchmark.size(self.number, 0), torch.as_tensor(answer["delta"]).double()))
        return noised(self, head, sent, answer)

    monkeypatch.setattr(SecureMean, "ask", note)
    monkeypatch.setattr(Station, "with_noise", listen)
    private = {"unit": "client", "clip": 0.1, "noise": 3.0}
    fleet = Fleet(tmp_path, **SECURE, method="finetune", tasks=1, rounds=1, width=32, privacy=private)
    result = fleet.run()
    sizes = [size for size, _ in clear]
    exact = torch.stack([size * delta for size, delta in clear]).sum(0) / sum(sizes)
    left = means[0] - exact
    expected = math.sqrt(4 / 3) * 3.0 * 0.1 * max(sizes) / sum(sizes)
    assert float(left.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * len(left)))
    assert result.costs["epsilon"] == pytest.approx(epsilon_at(1e-5, 1 / 3.0))


def test_samples_are_protected_under_secure_aggregation_too(tmp_path: Path) -> None:
    own: dict[str, Any] = {"tasks": 1, "rounds": 1, "method": "finetune", "zeta": 0.5, "clients": 4, "privacy": STUDY}
    secure = Fleet(tmp_path, **{**SECURE, **own}).run()
    plain = local(tmp_path, **own)
    assert secure.costs["epsilon"] == plain.costs["epsilon"] > 0


@pytest.mark.parametrize(
    ("private", "line"),
    [
        ({"unit": "client", "held_out": "noised"}, "set privacy.held_out = 'public'"),
        ({"unit": "sample", "epsilon": 3.0}, "set privacy.epsilon = 0"),
    ],
)
def test_what_secure_aggregation_cannot_carry_is_refused(private: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=line):
        Fleet(tmp_path, **SECURE, method="finetune", privacy=private)


# held-out samples


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_a_test_of_held_out_samples_is_paid_for(unit: str, tmp_path: Path) -> None:
    """One test before the first round and one after each: of samples that learn nothing, or of the same clients."""
    private = {"unit": unit, "noise": 2.0, "held_out": "noised"}
    settings = {**QUICK, "workers": 1, "method": "finetune", "batch": 500, "epochs": 1, "partition": "iid", "tasks": 1}
    result = run("digits", out=tmp_path / "run", **settings, privacy=private)
    learned, tested = 2 / 2.0**2, 3 / 2.0**2
    spent = learned + tested if unit == "client" else max(learned, tested)
    assert result.costs["epsilon"] == pytest.approx(epsilon_at(1e-5, math.sqrt(spent)))
    assert len(result.client_matrices) == (0 if unit == "client" else 5)


def test_counts_are_noised_for_one_sample_and_stay_counts() -> None:
    shield = Shield(PrivacyOptions("sample", noise=3.0, held_out="noised"), "finetune", b"key")
    counts = torch.tensor([[500, 400, 1000]]).repeat(4000, 1)
    released = shield.tested(counts, 0)
    assert released.dtype == torch.long
    assert torch.equal(released[:, 2], counts[:, 2])
    assert float((released - counts)[:, :2].double().std()) == pytest.approx(3.0 * math.sqrt(2), rel=0.05)
    few = shield.tested(torch.tensor([[0, 1, 1]]).repeat(4000, 1), 0)
    assert int(few[:, :2].min()) == 0
    assert int(few[:, :2].max()) == 1
    plain = Shield(PrivacyOptions("sample"), "finetune", b"key")
    assert torch.equal(plain.tested(counts, 0), counts)
