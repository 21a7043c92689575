"""Means of answers: by hand on small numbers, and what they promise whatever a few clients say."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from statistics import median as true_median
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cflag import Experiment, registry, run
from cflag.config import load_config
from cflag.conversation import Answer, Mean
from cflag.engines.engine import Engine
from cflag.errors import UserError
from cflag.means import base
from cflag.means.base import MeanOptions, RobustMean
from cflag.means.krum import choose
from cflag.means.mean import RunningMean
from cflag.means.shares import absurd, believed, outliers, shares
from tests.support.quick import QUICK, same

pytestmark = pytest.mark.usefixtures("no_figures")

ROBUST = ("clipped", "trimmed", "median", "krum")
numbers = st.floats(-1e6, 1e6, width=32)


def mean_of(kind: str, answers: Sequence[Answer], weights: Sequence[float] | None = None, **options: Any) -> Mean:
    """The mean of answers, with equal weights unless others are given."""
    ratios = options.pop("ratios", {})
    mean = registry.get("mean", kind)(MeanOptions(kind, **options), ratios)
    for number, answer in enumerate(answers):
        mean.add(answer, 1 / len(answers) if weights is None else weights[number], number)
    made: Mean = mean.result()
    return made


def rows(*values: Sequence[float]) -> list[Answer]:
    return [{"v": torch.tensor(row)} for row in values]


def test_median_by_hand() -> None:
    odd = rows([1.0, 9.0], [2.0, -5.0], [1e30, 3.0])
    assert mean_of("median", odd).v.tolist() == [2.0, 3.0]
    assert mean_of("median", [*odd, *rows([4.0, 4.0])], liars=1).v.tolist() == [3.0, 3.5]
    assert mean_of("median", [{"n": 1.0}, {"n": 7.0}, {"n": 2.0}]).n == 2.0
    assert mean_of("median", odd, weights=[0.98, 0.01, 0.01]).v.tolist() == [2.0, 3.0]  # one client, one vote


def test_trimmed_by_hand() -> None:
    five = rows([1.0], [2.0], [6.0], [1e9], [-1e9])
    assert mean_of("trimmed", five, liars=1, trim=0.0).v.tolist() == [3.0]
    assert mean_of("trimmed", five, liars=0, trim=0.4).v.tolist() == [2.0]  # two at either end
    assert mean_of("trimmed", rows([1.0], [2.0], [6.0]), liars=0, trim=0.0).v.tolist() == [3.0]
    assert mean_of("trimmed", rows([1.0], [2.0]), liars=3).v.tolist() == [1.5]  # never all


def test_clipped_by_hand() -> None:
    """Lengths 5, 1 and 100, median 5: the last is cut to a twentieth."""
    answers = rows([3.0, 4.0], [0.0, 1.0], [100.0, 0.0])
    clipped = mean_of("clipped", answers, weights=[0.5, 0.25, 0.25])
    assert clipped.v.tolist() == pytest.approx([1.5 + 1.25, 2.0 + 0.25])
    twice = mean_of("clipped", answers, weights=[0.5, 0.25, 0.25], clip=2.0)
    assert twice.v.tolist() == pytest.approx([1.5 + 2.5, 2.0 + 0.25])
    huge = rows([1.0, 0.0], [0.0, 1.0], [3e38, 3e38])  # its square is no number in single precision
    assert mean_of("clipped", huge).v.tolist() == pytest.approx([(1 + 0.5**0.5) / 3] * 2)


def test_krum_by_hand() -> None:
    """n = 5, f = 1: scores are sums over the two nearest, 1+9, 1+4, 4+9, ...; the two smallest are averaged."""
    answers = rows([0.0], [1.0], [3.0], [50.0], [7.0])
    # nearest two, squared: 0: 1+9; 1: 1+4; 3: 4+9; 50: 43²+47²; 7: 16+36
    assert choose([answer["v"] for answer in answers], 2) == [0, 1]  # type: ignore[misc]
    assert mean_of("krum", answers).v.tolist() == [0.5]


def test_each_part_of_an_answer_is_combined_by_itself() -> None:
    """Buffers may be empty, numbers are numbers, shapes stay."""
    answers: list[Answer] = [{"d": torch.full((2, 3), float(k)), "b": torch.zeros(0), "n": k} for k in range(5)]
    for kind in ROBUST:
        mean = mean_of(kind, answers)
        assert mean.d.shape == (2, 3)
        assert mean.b.shape == (0,)
        assert isinstance(mean.n, float)
        assert mean_of(kind, [{}] * 5) == {}
    assert mean_of("median", answers).n == 2.0


FACTORS: list[Answer] = [{"m": f * torch.tensor([m]), "factor": f} for f, m in [(1, 2.0), (4, 3.0), (2, 9.0)]]


@pytest.mark.parametrize(("kind", "expected"), [("median", 3.0), ("trimmed", 3.0)])
def test_a_part_weighted_by_another_is_a_mean_of_what_was_weighted(kind: str, expected: float) -> None:
    """Of f m = 2, 12, 18 and f = 1, 4, 2 the medians are 12 and 2: their ratio, 6, is nobody's m."""
    mean = mean_of(kind, FACTORS, ratios={"m": "factor"})
    assert (mean.m / mean.factor).tolist() == pytest.approx([expected])


def test_clipped_keeps_the_weights_of_a_pair_but_bounds_them() -> None:
    """m = 2, 3, 9 cut to 2, 3, 3; weights f cut to the median: 1, 2, 2."""
    mean = mean_of("clipped", FACTORS, ratios={"m": "factor"})
    assert (mean.m / mean.factor).tolist() == pytest.approx([(2 + 2 * 3 + 2 * 3) / 5])


def test_a_client_without_memory_has_no_say_in_m() -> None:
    empty: Answer = {"m": torch.zeros(1), "factor": 0.0}
    for kind in ("median", "trimmed", "clipped"):
        mean = mean_of(kind, [empty, *FACTORS, empty], ratios={"m": "factor"})
        assert 2.0 <= float(mean.m / mean.factor) <= 3.0
    liar: Answer = {"m": torch.full((1,), 1e9), "factor": 1e9}
    alone = mean_of("median", [empty, empty, liar], ratios={"m": "factor"})
    assert alone == {"m": torch.zeros(1), "factor": 0.0}  # over_all_samples makes "no memory yet" of it


@pytest.mark.parametrize("kind", ROBUST)
@given(values=st.lists(st.tuples(numbers, numbers), min_size=5, max_size=9), data=st.data())
def test_who_has_which_number_does_not_matter(kind: str, values: list[tuple[float, float]], data: Any) -> None:
    answers = rows(*values)
    order = data.draw(st.permutations(range(len(values))))
    one, other = mean_of(kind, answers).v, mean_of(kind, [answers[k] for k in order]).v
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6 * float(max(a["v"].abs().max() for a in answers)))  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ROBUST)
@given(value=st.lists(numbers, min_size=1, max_size=4), clients=st.integers(5, 9))
def test_of_equal_answers_it_is_that_answer(kind: str, value: list[float], clients: int) -> None:
    answers: list[Answer] = [{"v": torch.tensor(value), "m": 3.0 * torch.tensor(value), "f": 3.0}] * clients
    mean = mean_of(kind, answers, ratios={"m": "f"})
    if kind == "clipped":
        torch.testing.assert_close(mean.v, answers[0]["v"], rtol=1e-5, atol=1e-30)
    else:
        assert torch.equal(mean.v, torch.tensor(value))
    torch.testing.assert_close(mean.m / mean.f, torch.tensor(value), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("kind", ["median", "trimmed"])
@given(
    honest=st.lists(st.tuples(numbers, numbers), min_size=3, max_size=6),
    lies=st.lists(st.tuples(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 2), max_size=5),
    at=st.integers(0, 6),
)
def test_whatever_a_minority_says_the_result_lies_among_honest_values(
    kind: str, honest: list[tuple[float, float]], lies: list[tuple[float, float]], at: int
) -> None:
    lies = lies[: (len(honest) - 1)]  # fewer liars than honest clients
    answers = rows(*honest[:at], *lies, *honest[at:])
    mean = mean_of(kind, answers, liars=len(lies), trim=0.0).v
    true = torch.tensor(honest)
    assert bool((mean >= true.min(0).values).all())
    assert bool((mean <= true.max(0).values).all())


@given(
    liars=st.integers(0, 3),
    more=st.integers(0, 3),
    seed=st.integers(0, 2**30),
    far=st.sampled_from([1e3, 1e10, 3e38]),
    agree=st.booleans(),
)
def test_krum_picks_honest_answers_where_these_are_close(
    liars: int, more: int, seed: int, far: float, agree: bool
) -> None:
    """n ≥ 2f + 3, honest ones within 1 of each other, liars far away, all at one place or each elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    clients = 2 * liars + 3 + more
    honest = 0.2 * torch.rand(clients - liars, 8, generator=generator)
    wrong = torch.randn(liars, 8, generator=generator).sign() * far
    values = torch.cat([wrong[:1].expand(liars, -1) if agree and liars else wrong, honest])
    shuffled = torch.randperm(clients, generator=generator)
    chosen = choose([values[k] for k in shuffled], clients - liars - 2)
    assert len(chosen) >= clients - liars - 2
    assert all(int(shuffled[k]) >= liars for k in chosen)


@given(st.lists(st.tuples(st.integers(1, 50), numbers, numbers), min_size=1, max_size=8))
def test_the_plain_mean_is_the_running_sum_it_always_was(given: list[tuple[int, float, float]]) -> None:
    """Bit for bit: the first answer times its weight, then each answer added with its weight, in order."""
    total = sum(n for n, _, _ in given)
    mean = RunningMean()
    vector, number = torch.tensor([given[0][1]] * 3) * (given[0][0] / total), given[0][2] * (given[0][0] / total)
    for k, (n, v, x) in enumerate(given):
        mean.add({"v": torch.tensor([v] * 3), "x": x}, n / total, k)
        if k:
            vector.add_(torch.tensor([v] * 3), alpha=n / total)
            number += n / total * x
    assert torch.equal(mean.result().v, vector)
    assert mean.result().x == number


def test_the_plain_mean_holds_no_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("answers were gathered")

    monkeypatch.setattr(Engine, "mean_of", never)
    run("digits", out=tmp_path / "run", workers=1, **QUICK)


def test_coordinates_are_taken_in_hand_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [torch.randn(101, generator=torch.Generator().manual_seed(k)) for k in range(7)]
    answers: list[Answer] = [{"v": value} for value in values]
    whole = {kind: mean_of(kind, answers).v for kind in ROBUST}
    monkeypatch.setattr(base, "CHUNK", 70)
    sizes = [block.shape for block in base.blocks(values)]
    assert sizes == [(7, 10)] * 10 + [(7, 1)]
    assert max(map(prod, sizes)) <= 70
    for kind in ROBUST:
        torch.testing.assert_close(mean_of(kind, answers).v, whole[kind], rtol=0, atol=0)


# Weights and claims ---------------------------------------------------------------------------------------------------


def test_shares_by_hand() -> None:
    assert shares({0: 1, 1: 3}, 1.0) == {0: 0.25, 1: 0.75}
    assert shares({0: 10, 1: 20, 2: 970}, 0.4) == pytest.approx({0: 0.2, 1: 0.4, 2: 0.4})
    assert shares({0: 10, 1: 30, 2: 960}, 0.5) == pytest.approx({0: 0.125, 1: 0.375, 2: 0.5})
    assert shares({0: 1, 1: 10**12}, 0.1) == pytest.approx({0: 0.5, 1: 0.5})  # below 1/n: all alike


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=9), st.floats(0.01, 1))
def test_no_share_is_above_its_bound_and_order_stays(sizes: list[int], most: float) -> None:
    p = shares(dict(enumerate(sizes)), most)
    assert sum(p.values()) == pytest.approx(1)
    assert max(p.values()) <= max(most, 1 / len(sizes)) * (1 + 1e-6)
    for i, a in enumerate(sizes):
        for j, b in enumerate(sizes):
            assert a > b or p[i] <= p[j] * (1 + 1e-6)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=9), st.integers(10**7, 2**39))
def test_a_claim_stretches_the_believed_sizes_no_further_than_the_bound(honest: list[int], claim: int) -> None:
    """With at most half of all samples, a liar is believed to have as many as all others together."""
    counted = believed(dict(enumerate([*honest, claim])), 0.5)
    assert counted[len(honest)] <= sum(honest)
    assert all(counted[k] <= n for k, n in enumerate(honest))
    assert believed({0: 3, 1: 2**39}, 1.0) == {0: 3, 1: 2**39}


def test_absurd_claims_by_hand() -> None:
    claims = {0: [30, 40], 1: [20, 30000], 2: [25, 2**39]}
    assert absurd(claims, 1000.0) == {
        2: f"client 2 claims {2**39} samples of task 2, and the median client 30000: "
        "more than mean.max_claim = 1000 times as many"
    }
    assert absurd(claims, 2.0**40) == {}
    assert absurd({0: [1], 1: [2**39]}, 1000.0) == {}  # of two nobody knows which is absurd
    assert absurd({0: [0], 1: [0], 2: [900]}, 1000.0) == {}


def test_outliers_by_hand() -> None:
    answers = dict(enumerate(rows([1.0], [-2.0], [21.0], [3.0])))
    assert outliers(answers, 10.0, {}) == {2: "refused: its v is 10.5 times as long as the median one"}
    assert outliers(answers, 11.0, {}) == {}
    assert outliers(answers, 0.0, {}) == {}
    assert outliers(dict(enumerate(rows([1.0], [1e30]))), 10.0, {}) == {}
    assert outliers(dict(enumerate(rows([0.0], [0.0], [5.0]))), 10.0, {}) == {}  # nothing to compare with
    pairs: dict[int, Answer] = {k: {"m": f * torch.ones(2), "factor": f} for k, f in enumerate((1.0, 2.0, 100.0, 0.0))}
    assert outliers(pairs, 10.0, {"m": "factor"}) == {}
    assert list(outliers(pairs, 10.0, {})) == [2]
    numbers: dict[int, Answer] = {k: {"smoothness": 10.0 ** (20 * k)} for k in range(3)}
    assert outliers(numbers, 10.0, {}) == {}


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=12))
def test_the_lower_median_is_not_above_the_median(values: list[float]) -> None:
    assert base.median(values) in values
    assert base.median(values) <= true_median(values)


# In runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ROBUST)
def test_any_number_of_workers_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {**QUICK, "method": "cflag-sgd", "zeta": 0.5, "mean": {"kind": kind, "max_share": 0.4}}
    for workers in (1, 2):
        run("digits", out=tmp_path / str(workers), workers=workers, **own)
    same(tmp_path / "1", tmp_path / "2")


def test_batch_norm_statistics_are_each_clients_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the learner's own memory, which the next client overwrites."""
    seen: list[list[Tensor]] = []
    combine = registry.get("mean", "median").combine

    def watch(self: RobustMean, rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        seen.append([row.clone() for row in rows])
        made: Tensor = combine(self, rows, weights)
        return made

    monkeypatch.setattr(registry.get("mean", "median"), "combine", watch)
    config = load_config("digits", method="finetune", model="cnn", norm="batch", mean={"kind": "median"}, **QUICK)
    session = Experiment(config).session()
    session.play(0)
    assert len(seen) == 2  # delta and buffers
    assert not torch.equal(seen[1][0], seen[1][1])


def test_all_methods_but_those_with_sums_run_with_a_robust_mean(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"mean.kind = 'median' gives no sums over clients; .*iCaRL's class means"):
        load_config("digits", method="icarl", mean={"kind": "median"})
    auto = {"smoothness": "auto", "smoothness_over": "max"}
    with pytest.raises(UserError, match=r"smoothness_over = 'max' \(use 'mean'\)"):
        load_config("digits", cflag=auto, mean={"kind": "krum"})
    load_config("digits", cflag={**auto, "smoothness_over": "mean"}, mean={"kind": "krum"})
    load_config("digits", method="icarl", mean={"outlier": 100})
    for method in ("cflag-shared", "cflag-balanced", "cflag-tracked", "cflag-server", "fedtrack", "nccl"):
        run("digits", method=method, out=tmp_path / method, workers=1, mean={"kind": "median"}, **QUICK)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"kind": "medium"}, "unknown mean 'medium'; did you mean 'median'"),
        ({"liars": -1}, r"mean.liars = -1 must not be negative"),
        ({"trim": 0.5}, r"mean.trim = 0.5 must be at least 0 and below 0.5"),
        ({"clip": 0}, r"mean.clip = 0.0 must be positive"),
        ({"outlier": 0.5}, r"mean.outlier = 0.5 must be above 1, or 0"),
        ({"max_share": 0}, r"mean.max_share = 0.0 must be above 0"),
        ({"max_claim": 1}, r"mean.max_claim = 1.0 must be above 1"),
        ({"kind": "krum", "liars": 2}, "needs at least 7 clients in a round, not 5"),
        ({"kind": "median", "liars": 3}, "needs at least 7 clients in a round, not 5"),
    ],
)
def test_means_that_cannot_work_are_told_in_one_line(table: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        load_config("digits", mean=table)


@pytest.mark.parametrize("table", [{"kind": "median"}, {"kind": "clipped"}, {"outlier": 10}, {"max_share": 0.5}])
def test_secure_aggregation_hides_what_they_need(table: dict[str, Any]) -> None:
    secure: dict[str, Any] = {"engine": "flower-sim", "secure": True}
    with pytest.raises(UserError, match="needs single answers, which secure = true hides"):
        load_config("digits", **secure, mean=table)
    load_config("digits", **secure, mean={"liars": 2})
