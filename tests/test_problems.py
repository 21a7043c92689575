"""Problems by hand: losses, sums and scores, the signs of forgetting, and what labels may be."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, r2_score
from torch import Tensor, nn
from torch.nn import functional as F

from cflag import Samples, Source, Split
from cflag.data.heads import Heads
from cflag.data.schedules.base import Plan
from cflag.engines.flower.messages import GarbageError
from cflag.engines.flower.server.answers import checked_counts
from cflag.errors import DataError
from cflag.learning.learner import Learner
from cflag.memory.base import MemoryOptions
from cflag.memory.ring import Ring
from cflag.problems.base import Problem, find, scoring, takes
from cflag.problems.classes import Classes
from cflag.problems.multilabel import MultiLabel
from cflag.problems.regression import MAE, Regression
from cflag.problems.score import ACCURACY, Score, common
from cflag.problems.sequence import PADDING, SequenceLabels
from cflag.results.measures import Outcomes, measure, worst_tenth
from cflag.results.result import Result

INF = torch.inf


def counts_of(problem: Problem, outputs: Tensor, y: Tensor, parts: list[int]) -> Tensor:
    """What clients with so many samples each would send, both readings the same: (clients, 2 width + 1)."""
    sums = problem.sums(outputs, y)
    rows = [[*part.sum(0).tolist()] * 2 + [len(part)] for part in sums.split(parts)]
    return torch.tensor(rows, dtype=torch.long if problem.whole else torch.float64)


def pooled(name: str, score: str, outputs: Tensor, y: Tensor, parts: list[int]) -> float:
    read = scoring(name, score)
    return float(read.table(counts_of(read.problem, outputs, y, parts).sum(0), by_task=True))


# Scores ---------------------------------------------------------------------------------------------------------------

UNEVEN = st.lists(st.integers(1, 30), min_size=2, max_size=6).filter(lambda parts: sum(parts) > 2)


@settings(max_examples=30, deadline=None)
@given(UNEVEN, st.integers(1, 3), st.integers(0, 10**6), st.floats(-50, 50))
def test_r2_and_mae_over_uneven_clients_are_those_of_all_samples(
    parts: list[int], k: int, seed: int, offset: float
) -> None:
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(sum(parts), k)) + offset
    answers = y + rng.normal(size=y.shape)
    got = [pooled("regression", s, torch.tensor(answers), torch.tensor(y), parts) for s in ("r2", "mae")]
    assert got == pytest.approx([r2_score(y, answers), mean_absolute_error(y, answers)], rel=1e-7, abs=1e-7)


@settings(max_examples=30, deadline=None)
@given(UNEVEN, st.integers(2, 5), st.integers(0, 10**6))  # one label alone is another F1 to sklearn
def test_f1_and_exact_matches_over_uneven_clients_are_those_of_all_samples(parts: list[int], k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, answers = rng.integers(0, 2, (sum(parts), k)), rng.normal(size=(sum(parts), k))
    y[0, 0], answers[0, 0] = 1, 1.0  # something to find, or F1 is not defined
    told = [pooled("multilabel", s, torch.tensor(answers), torch.tensor(y), parts) for s in ("f1", "exact")]
    exact = accuracy_score(y, answers > 0)
    assert told == pytest.approx([f1_score(y, answers > 0, average="micro"), exact])


def test_the_mean_of_clients_own_scores_would_be_another() -> None:
    """One client with one sample, one with three: R² of all is none of what they have, nor its mean."""
    y, answers = torch.tensor([0.0, 1.0, 2.0, 7.0]), torch.tensor([[0.0], [1.0], [2.0], [5.0]])
    read = scoring("regression")
    rows = counts_of(read.problem, answers, y, [2, 2])
    own = read.table(rows, by_task=True)
    assert own == pytest.approx([1.0, 1 - 4 / 12.5])  # mean 4.5: 2.5² + 2.5²
    # all: mean 2.5, Σ(y − 2.5)² = 6.25 + 2.25 + 0.25 + 20.25 = 29, Σe² = 4
    assert float(read.table(rows.sum(0), by_task=True)) == pytest.approx(1 - 4 / 29)


def test_steps_of_padding_count_for_nothing() -> None:
    y = torch.tensor([[0, 1, PADDING], [1, PADDING, PADDING], [PADDING] * 3])
    answers = F.one_hot(torch.tensor([[0, 0, 1], [1, 0, 0], [0, 0, 0]]), 2).double()
    assert pooled("sequence", "", answers, y, [1, 2]) == pytest.approx(2 / 3)
    losses = SequenceLabels().losses(answers, y)
    right, wrong = (
        -float(F.log_softmax(torch.tensor([1.0, 0.0]), 0)[0]),
        -float(F.log_softmax(torch.tensor([1.0, 0.0]), 0)[1]),
    )
    assert losses.tolist() == pytest.approx([(right + wrong) / 2, right, 0.0])  # each the mean over its own steps


def test_there_is_no_score_where_there_is_nothing_to_score() -> None:
    same = torch.tensor([3.1, 3.1, 3.1])
    read = scoring("regression")
    assert read.values(counts_of(read.problem, same[:, None] + 1, same, [1, 2]), True) == [None, None]
    assert scoring("regression", "mae").values(counts_of(read.problem, same[:, None] + 1, same, [3]), True) == [
        pytest.approx(1.0)
    ]
    none = scoring("multilabel")
    assert none.values(counts_of(none.problem, -torch.ones(2, 2), torch.zeros(2, 2), [2]), True) == [None]
    assert read.values(torch.zeros(2, 3), True) == [None, None]  # nobody tested, so nobody said how many sums


def test_answers_that_are_no_numbers_are_far_off_but_no_crash() -> None:
    answers, y = torch.tensor([[torch.nan], [INF], [1.0]]), torch.tensor([1.0, 2.0, 3.0])
    assert pooled("regression", "mae", answers, y, [3]) == pytest.approx(2e15 / 3)


def test_a_class_score_is_a_share_shown_in_percent() -> None:
    assert (ACCURACY.shown(0.5), ACCURACY.said(0.5), ACCURACY.shown(None)) == ("50.0", "50.0 %", "–")
    assert (MAE.said(0.25), MAE.sign, MAE.named("average_accuracy")) == ("0.250", -1.0, "average_mae")
    assert common([MAE, MAE]) == MAE
    assert common([MAE, ACCURACY]).label == "score"
    assert (MAE.goodness(1.0, (1.0, 3.0)), MAE.goodness(3.0, (1.0, 3.0))) == (1.0, 0.0)


# Forgetting where lower is better -------------------------------------------------------------------------------------


def result(score: Score) -> Result:
    a = [[0.5, 0.9, 1.0], [0.7, 0.4, 0.9], [0.9, 0.6, 0.3]]
    return Result("m", 1, {"task": a, "class": a}, [1.0, 1.0, 1.0], [], {}, {}, {}, score=score)


def test_positive_forgetting_is_worse_whatever_the_score() -> None:
    """By hand: task 1 was at 0.5 and ends at 0.9, task 2 at 0.4 and ends at 0.6. As an error that is forgetting."""
    error, share = result(MAE).summary(), result(ACCURACY).summary()
    assert error["forgetting"] == pytest.approx((0.4 + 0.2) / 2)
    assert share["forgetting"] == pytest.approx(-(0.4 + 0.2) / 2)
    assert error["backward_transfer"] == pytest.approx(-0.3)
    # best before the last: task 1 at 0.5 (error) or 0.7 (share), task 2 at 0.4 either way
    assert error["forgetting_max"] == pytest.approx((0.4 + 0.2) / 2)
    assert share["forgetting_max"] == pytest.approx((-0.2 - 0.2) / 2)
    # just before they were learned tasks 2 and 3 were at 0.9, and at 1.0 to begin with
    assert error["forward_transfer"] == pytest.approx(0.1)
    assert error["average_accuracy"] == pytest.approx(0.6)  # levels keep their sign
    assert error["learning_accuracy"] == pytest.approx(0.4)
    assert result(MAE).average_score == result(MAE).average_accuracy


def test_measures_of_clients_have_the_same_signs() -> None:
    """One client, two tasks; errors of one sample each: |e| = 1, then 3 on task 1; 5 at the start, 2 at the end."""

    def test(first: float, second: float) -> Tensor:
        row = [[e * e, e, 0.0, 4.0] * 2 + [1.0] for e in (first, second)]
        return torch.tensor([row], dtype=torch.float64)

    plan = Plan(np.array([[0, 1]]), np.array([[0, 1]]))
    tests = [test(4.0, 6.0), test(1.0, 5.0), test(3.0, 2.0)]
    read = scoring("regression", "mae")
    found = measure(Outcomes.of(tests, plan, np.ones((1, 2), np.bool_), True, read), [])["all"]
    assert found["forgetting"] == pytest.approx(2.0)
    assert found["forgetting_max"] == pytest.approx(2.0)
    assert found["backward_transfer"] == pytest.approx(-2.0)
    assert found["forward_transfer"] == pytest.approx(1.0)  # task 2 from 6 to 5 before it began; task 1 has no before
    assert found["accuracy_seen"] == pytest.approx(2.5)
    assert worst_tenth([1.0, 3.0, 2.0], sign=-1.0) == 3.0


def test_what_has_no_score_is_left_out_of_means() -> None:
    a: Any = [[0.5, None], [None, 0.25]]
    summary = Result("m", 1, {"task": a, "class": a}, cast(Any, [0.1, None]), [], {}, {}, {}, score=MAE).summary()
    assert (summary["forgetting"], summary["forward_transfer"]) == (0.0, 0.0)
    assert summary["learning_accuracy"] == pytest.approx(0.375)


# Losses and heads -----------------------------------------------------------------------------------------------------


def test_closed_labels_are_neither_learned_nor_counted() -> None:
    outputs = torch.tensor([[2.0, -1.0, 3.0]], requires_grad=True)
    y = torch.tensor([[1, 1, 0]], dtype=torch.uint8)
    closed = outputs + torch.tensor([[0.0, 0.0, -INF]])
    loss = MultiLabel().loss(closed, y)
    assert loss.item() == pytest.approx((np.log1p(np.exp(-2)) + np.log1p(np.exp(1))) / 2)
    (slope,) = torch.autograd.grad(loss, outputs)
    expected = [(1 / (1 + np.exp(-2)) - 1) / 2, (1 / (1 + np.exp(1)) - 1) / 2, 0.0]
    assert slope[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert MultiLabel().sums(closed, y).tolist() == [[1, 0, 1, 0]]  # the third would be a wrong yes
    assert MultiLabel().sums(outputs, y).tolist() == [[1, 1, 1, 0]]


@pytest.mark.parametrize("name", ["regression", "multilabel"])
def test_the_gradient_by_hand_is_autograds(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    own = torch.tensor([[True, True, False], [False, True, True]]) if name == "multilabel" else torch.ones(2, 3) > 0
    y = torch.randn(9, 3) if name == "regression" else torch.randint(0, 2, (9, 3))
    samples = Samples(torch.randn(9, 4), y, torch.arange(9) % 2)
    learner = Learner(model, Heads(own, by_task=True), problem=find(name))
    value, flat = learner.value_and_grad(samples)
    masked = model(samples.x).masked_fill(~own[samples.task], -INF)
    loss = find(name).loss(masked, y)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    assert value == pytest.approx(loss.item())
    assert torch.allclose(flat, torch.cat([g.reshape(-1) for g in grads]), atol=1e-7)


# Labels ---------------------------------------------------------------------------------------------------------------


def source(y: Tensor, problem: str = "classes") -> Source:
    return Source.from_tensors((torch.zeros(len(y), 2), y), (torch.zeros(len(y), 2), y), problem=problem)


@pytest.mark.parametrize(
    ("problem", "y", "why"),
    [
        ("classes", torch.tensor([0.5, 1.0]), "not a whole number.*problem = 'regression'"),
        ("classes", torch.zeros(2, 2), r"shape \(2, 2\), expected one number per sample"),
        ("regression", torch.tensor([1.0, torch.nan]), "not finite"),
        ("regression", torch.zeros(2, 2, 2), r"expected \(n,\) or \(n, k\)"),
        ("multilabel", torch.tensor([0, 1]), r"expected \(n, k\) zeros and ones"),
        ("multilabel", torch.tensor([[0, 2]]), "other values than 0 and 1"),
        ("sequence", torch.tensor([0, 1]), r"expected \(n, T\)"),
        ("sequence", torch.tensor([[0, -1]]), "hold -1, expected 0..0, or -100 for padding"),
    ],
)
def test_labels_that_cannot_be_are_refused(problem: str, y: Tensor, why: str) -> None:
    with pytest.raises(DataError, match=why):
        source(y, problem)


def test_labels_take_the_type_of_their_loss_and_say_how_many_outputs() -> None:
    assert source(torch.tensor([0.0, 1.0])).train.y.dtype == torch.long  # whole, whatever their type
    assert source(torch.tensor([0.0, 1.0, 2.0])).classes == 3
    assert source(torch.tensor([1, 2]), "regression").train.y.dtype == torch.float32
    assert source(torch.zeros(4, 5), "regression").classes == 5
    assert source(torch.ones(4, 5), "multilabel").train.y.dtype == torch.uint8
    assert source(torch.tensor([[0, 3], [PADDING, 1]]), "sequence").classes == 4
    direct = Source(
        "own", Split(torch.zeros(2, 1), torch.tensor([0, 1]).int()), Split(torch.zeros(1, 1), torch.ones(1)), 2
    )
    assert (direct.train.y.dtype, direct.test.y.dtype) == (torch.long, torch.long)


def test_partitions_deal_by_tenths_by_the_first_label_and_by_the_most_frequent_step() -> None:
    y = torch.arange(100.0)
    assert np.bincount(Regression().groups(y, y)).tolist() == [10] * 10
    assert Regression().groups(torch.tensor([-5.0, 1000.0]), y).tolist() == [
        0,
        9,
    ]  # the train half's edges
    assert MultiLabel().groups(torch.tensor([[0, 1, 1], [1, 0, 0], [0, 0, 0]]), y).tolist() == [1, 0, 3]
    steps = torch.tensor([[2, 2, 0], [1, PADDING, PADDING], [0, 1, PADDING]])
    assert SequenceLabels().groups(steps, steps).tolist() == [2, 1, 0]


def test_a_ring_without_classes_keeps_as_many_of_each_task() -> None:
    ring, rng = Ring(MemoryOptions(per_task=6, sample=1, limit_samples=8)), np.random.default_rng(0)
    for task in range(2):
        y = torch.rand(20, 3) + task
        ring.add(Samples(torch.zeros(20, 1), y, torch.full((20,), task)), rng)
    assert ring.samples is not None
    assert ring.samples.of_task == {0: 4, 1: 4}


def test_a_problem_of_ones_own_takes_the_labels_of_what_it_derives_from() -> None:
    class Robust(Regression):
        pass

    assert takes(Robust(), ["regression"])
    assert not takes(Robust(), ["classes", "multilabel"])
    assert takes(Classes(), ["regression", "classes"])


# What other machines send ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("classes", [3, 0, 2]),
        ("regression", [1.0, 3.0, 0.0, 1.0] * 2 + [2]),  # Σ|e| = 3 with Σe² = 1 cannot be
        ("regression", [-1.0, 0.0, 0.0, 1.0] * 2 + [2]),
        ("regression", [1.0, 1.0, float("nan"), 1.0] * 2 + [2]),
        ("regression", [1.0, 1.0, 9.0, 1.0] * 2 + [2]),
        ("multilabel", [1, -1, 0, 0] * 2 + [2]),
        ("multilabel", [1, 1, 0, 3] * 2 + [2]),
        ("sequence", [3, 2] * 2 + [2]),
        ("sequence", [1, 0, 2]),
    ],
)
def test_impossible_sums_are_refused(name: str, row: list[float]) -> None:
    with pytest.raises(GarbageError):
        checked_counts([row], [2], find(name), 1)


def test_possible_sums_pass() -> None:
    assert checked_counts([[4.0, 2.0, 1.0, 3.0] * 2 + [1]], [1], find("regression"), 1).shape == (1, 9)
    assert checked_counts([[2, 1, 2]], [2], find("classes"), 5).tolist() == [[2, 1, 2]]
