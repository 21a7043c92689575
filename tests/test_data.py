"""Partitions, scenarios, benchmarks and random streams."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cflag import registry
from cflag.data.benchmark import Benchmark
from cflag.data.options import BenchmarkOptions
from cflag.data.partitions import dirichlet
from cflag.data.samples import Samples
from cflag.data.scenarios.base import Task, TaskSequence
from cflag.data.source import Source, Split
from cflag.errors import UserError
from cflag.rng import stream, torch_seed


def numbered_split(per_class: Sequence[int], first: int = 0, people: int = 0) -> Split:
    """Return samples whose one feature is their own number; classes (and people) come in turn, as files have them."""
    y = np.random.default_rng(len(per_class)).permutation(np.repeat(np.arange(len(per_class)), per_class))
    x = torch.arange(first, first + len(y), dtype=torch.float32).unsqueeze(1)
    return Split(x, torch.from_numpy(y), torch.arange(len(y)) % people if people else None)


def numbered(train: Sequence[int], test: Sequence[int] | None = None, people: int = 0) -> Source:
    """Return a source of so many samples of each class, test samples numbered from 100,000."""
    test = train if test is None else test
    return Source(
        "numbered", numbered_split(train, people=people), numbered_split(test, 100_000, people), classes=len(train)
    )


def images(x: Tensor, classes: int = 2) -> Source:
    split = Split(x, torch.arange(len(x)) % classes)
    return Source("images", split, split, classes)


def benchmark(source: Source, **options: Any) -> Benchmark:
    return Benchmark(source, BenchmarkOptions(**{"tasks": 1, "class_order": "natural", **options}))


def make_tasks(source: Source, scenario: str, tasks: int, class_order: Any, seed: int) -> tuple[Task, ...]:
    options = BenchmarkOptions(scenario=scenario, tasks=tasks, class_order=class_order, seed=seed)
    sequence: TaskSequence = registry.get("scenario", scenario)(source, options)
    return sequence.tasks


def numbers(samples: Samples) -> list[int]:
    return [int(n) for n in samples.x.flatten()]


def halves(dealt: Benchmark, task: int = 0) -> list[list[Samples]]:
    """Return what every client has of a task: for training, and for tests."""
    clients = range(dealt.clients)
    return [[dealt.train(c, task) for c in clients], [dealt.test(c, task) for c in clients]]


def class_counts(samples: Samples, classes: int) -> list[int]:
    return torch.bincount(samples.y, minlength=classes).tolist()


# Partitions -----------------------------------------------------------------------------------------------------------

sizes = st.lists(st.integers(10, 30), min_size=2, max_size=5)
clients = st.integers(1, 5)
seeds = st.integers(0, 10**6)


@given(sizes, sizes, clients, st.sampled_from(["iid", "dirichlet", "subject"]), st.integers(1, 2), seeds)
@settings(deadline=None, max_examples=40)
def test_every_sample_of_a_task_goes_to_exactly_one_client(
    train: list[int], test: list[int], clients: int, partition: str, tasks: int, seed: int
) -> None:
    length = min(len(train), len(test))
    source = numbered(train[:length], test[:length], people=5)
    try:
        dealt = benchmark(source, partition=partition, clients=clients, zeta=10.0, tasks=tasks, seed=seed)
    except UserError:  # a draw without luck, or a person who has nothing of a class
        assume(False)
    for half, split in enumerate((source.train, source.test)):
        everyone = [n for task in range(tasks) for part in halves(dealt, task)[half] for n in numbers(part)]
        assert sorted(everyone) == [int(n) for n in split.x.flatten()]


@given(sizes, clients, st.sampled_from(["iid", "dirichlet"]), seeds)
@settings(deadline=None, max_examples=30)
def test_dealt_samples_keep_their_own_label_and_get_their_task(
    train: list[int], clients: int, partition: str, seed: int
) -> None:
    source = numbered(train)
    dealt = benchmark(source, partition=partition, clients=clients, tasks=2, seed=seed)
    for task in range(2):
        for part in halves(dealt, task)[0]:
            assert torch.equal(part.y, source.train.y[part.x.flatten().long()])
            assert set(part.task.tolist()) <= {task}
            assert set(part.y.tolist()) <= set(dealt.tasks[task].classes)


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.integers(1, 7),
    st.integers(1, 4),
    st.sampled_from(["iid", "dirichlet"]),
    seeds,
)
@settings(deadline=None, max_examples=60)
def test_every_client_gets_its_minimum_or_the_user_is_told(
    train: list[int], clients: int, minimum: int, partition: str, seed: int
) -> None:
    assume(sum(train) > 0)
    options = {"partition": partition, "clients": clients, "min_samples": minimum, "zeta": 1.0, "seed": seed}
    told = ""
    try:
        dealt = benchmark(numbered(train), **options)
    except UserError as error:
        told = str(error)
    if told:
        assert f"min_samples = {minimum}" in told
        assert partition == "dirichlet" or sum(train) < clients * minimum
    else:
        least = 0 if partition == "iid" and minimum == 1 else minimum  # who has none sits out
        assert all(dealt.size(c, 0) == len(dealt.train(c, 0)) >= least for c in range(clients))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 7), seeds)
@settings(deadline=None, max_examples=40)
def test_iid_shares_are_within_one_sample_per_class_and_in_all(train: list[int], clients: int, seed: int) -> None:
    assume(sum(train) >= clients)
    dealt = benchmark(numbered(train, train[::-1]), partition="iid", clients=clients, seed=seed)
    for half, counts in zip(halves(dealt), (train, train[::-1]), strict=True):
        table = np.array([class_counts(part, len(train)) for part in half])
        assert table.sum(0).tolist() == counts
        assert (np.ptp(table, axis=0) <= 1).all()
        assert np.ptp(table.sum(1)) <= 1


def test_iid_clients_of_classes_with_one_sample_each_all_get_one() -> None:
    dealt = benchmark(numbered([1] * 5), partition="iid", clients=5)
    assert [dealt.size(c, 0) for c in range(5)] == [1] * 5


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_which_samples_a_client_gets_depends_on_the_seed_alone(partition: str) -> None:
    source = numbered([40, 40])

    def first(seed: int) -> list[list[int]]:
        dealt = benchmark(source, partition=partition, clients=3, seed=seed)
        return [numbers(part[0]) for part in halves(dealt)]

    assert first(1) == first(1)
    assert first(1)[0] != first(2)[0]
    assert first(1)[1] != first(2)[1]


@given(st.floats(0.2, 100), clients, seeds)
@settings(deadline=None, max_examples=30)
def test_dirichlet_gives_a_client_the_same_share_of_train_and_test(zeta: float, clients: int, seed: int) -> None:
    train, test = [200, 300, 250], [100, 150, 50]
    dealt = benchmark(numbered(train, test), zeta=zeta, clients=clients, seed=seed)
    for mine, held_out in zip(*halves(dealt), strict=True):
        for label in range(3):
            share = class_counts(mine, 3)[label] / train[label]
            # Of each class a client has its share, rounded down or up, in both halves.
            assert class_counts(held_out, 3)[label] / test[label] == pytest.approx(
                share, abs=1 / train[label] + 1 / test[label] + 1e-9
            )


def test_train_and_test_shares_agree_also_where_a_half_lacks_a_class() -> None:
    train, test = [200, 200, 200], [200, 0, 200]
    for source in (numbered(train, test), numbered(test, train)):
        dealt = benchmark(source, zeta=0.5, clients=4, seed=3)
        for mine, held_out in zip(*halves(dealt), strict=True):
            for label in (0, 2):
                assert abs(class_counts(held_out, 3)[label] - class_counts(mine, 3)[label]) <= 1


def test_task_without_test_samples_is_refused() -> None:
    with pytest.raises(UserError, match="task 2 has no test samples"):
        benchmark(numbered([10, 10], [10, 0]), tasks=2, clients=2, class_order="natural")


def test_dirichlet_shares_are_uneven_for_small_zeta_and_even_for_large() -> None:
    def spread(zeta: float) -> float:
        """Return the mean standard deviation of the clients' shares of a class."""
        shares = []
        for seed in range(10):
            dealt = benchmark(numbered([500] * 4), zeta=zeta, clients=5, seed=seed)
            shares += [[c / 500 for c in class_counts(part, 4)] for part in halves(dealt)[0]]
        return float(np.std(np.array(shares)))

    # A Dirichlet share has variance (1/N)(1 - 1/N) / (Nζ + 1).
    for zeta in (0.1, 1.0, 1e5):
        assert spread(zeta) == pytest.approx(math.sqrt(0.2 * 0.8 / (5 * zeta + 1)), rel=0.25, abs=1e-3)


def test_each_class_of_each_task_has_its_own_dirichlet_draw() -> None:
    dealt = benchmark(numbered([300] * 4), zeta=0.5, clients=3, tasks=2, seed=5)
    columns = [
        tuple(class_counts(part, 4)[label] for part in halves(dealt, task)[0])
        for task in range(2)
        for label in dealt.tasks[task].classes
    ]
    assert len(set(columns)) == 4


@pytest.mark.parametrize("zeta", [0.01, 1e-9, 1e-300, 5e-324])
def test_hopeless_dirichlet_draw_ends_in_an_error_that_names_what_to_change(zeta: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError, match=f"zeta = {zeta:g}.*10 clients.*min_samples = 5.*task 1"):
            benchmark(numbered([100, 100]), zeta=zeta, clients=10, min_samples=5)


def test_tiny_zeta_gives_whole_classes_to_single_clients() -> None:
    dealt = benchmark(numbered([20] * 6), zeta=1e-9, clients=2)
    table = np.array([class_counts(part, 6) for part in halves(dealt)[0]])
    assert set(table.flatten().tolist()) == {0, 20}


def test_dirichlet_draw_of_nan_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Underflow:
        def dirichlet(self, alpha: Sequence[float], size: int) -> Any:
            return np.full((size, len(alpha)), np.nan)

    def draw(seed: int, purpose: str, *where: int) -> np.random.Generator:
        last = where[-1] == 3  # the fourth attempt
        return stream(seed, purpose, *where) if last else cast(np.random.Generator, Underflow())

    monkeypatch.setattr(dirichlet, "stream", draw)
    shares = dirichlet.draw_shares([50, 50], BenchmarkOptions(clients=3, zeta=1e3, min_samples=0, seed=1), 0)
    assert np.array_equal(shares, stream(1, "dirichlet", 0, 3).dirichlet([1e3] * 3, size=2))


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_minimum_larger_than_the_task_allows_is_refused(partition: str) -> None:
    with pytest.raises(UserError, match="min_samples = 11"):
        benchmark(numbered([25, 25]), partition=partition, clients=5, min_samples=11)
    dealt = benchmark(numbered([25, 25]), partition=partition, clients=5, min_samples=10)
    assert [dealt.size(c, 0) for c in range(5)] == [10] * 5


@given(clients, st.integers(5, 9), seeds)
@settings(deadline=None, max_examples=30)
def test_nobody_is_shared_between_clients_in_a_partition_by_subject(clients: int, people: int, seed: int) -> None:
    # In a random tenth of the test samples some people are missing; the others must not move for that.
    few = np.sort(np.random.default_rng(seed).permutation(90)[:9])
    source = numbered([60, 60], [45, 45], people)
    test = source.test
    assert test.subject is not None
    source = replace(source, test=Split(test.x[few], test.y[few], test.subject[few]))
    assert source.train.subject is not None
    assert source.test.subject is not None
    dealt = benchmark(source, partition="subject", clients=clients)
    where_in_test = {int(n): k for k, n in enumerate(source.test.x.flatten())}
    of: list[set[int]] = []
    for mine, held_out in zip(*halves(dealt), strict=True):
        people_here = set(source.train.subject[numbers(mine)].tolist())
        people_here |= {int(source.test.subject[where_in_test[n]]) for n in numbers(held_out)}
        of.append(people_here)
    assert all(one.isdisjoint(other) for one, other in combinations(of, 2))
    assert set().union(*of) == set(range(people))
    assert max(map(len, of)) - min(map(len, of)) <= 1


def test_more_clients_than_subjects_are_refused() -> None:
    source = numbered([60, 60], people=4)
    assert benchmark(source, partition="subject", clients=4).clients == 4
    with pytest.raises(UserError, match="clients = 5 is more than the 4 subjects"):
        benchmark(source, partition="subject", clients=5)


def test_partition_by_subject_refuses_sources_without_subjects_and_clients_without_samples() -> None:
    with pytest.raises(UserError, match="subject"):
        benchmark(numbered([60, 60]), partition="subject", clients=2)
    with pytest.raises(UserError, match="client 0 has 30 samples of task 1, fewer than min_samples = 31"):
        benchmark(numbered([60, 60], people=4), partition="subject", clients=4, min_samples=31)


# Scenarios ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from(["task", "class"]), seeds)
@example(5, 5, "task", 1)
@example(5, 6, "task", 1)
@settings(deadline=None, max_examples=30)
def test_tasks_share_out_all_classes_as_evenly_as_possible(classes: int, tasks: int, scenario: str, seed: int) -> None:
    source = numbered([1] * classes)
    if tasks > classes:
        with pytest.raises(UserError, match=f"tasks = {tasks} is more than the {classes} classes of numbered"):
            make_tasks(source, scenario, tasks, "seeded", seed)
        return
    made = make_tasks(source, scenario, tasks, "seeded", seed)
    assert sorted(c for task in made for c in task.classes) == list(range(classes))
    lengths = [len(task.classes) for task in made]
    assert len(lengths) == tasks
    assert max(lengths) - min(lengths) <= 1


def test_class_order_is_natural_or_depends_on_the_seed_alone() -> None:
    source = numbered([1] * 10)

    def classes(order: str, seed: int, scenario: str = "task") -> list[tuple[int, ...]]:
        return [task.classes for task in make_tasks(source, scenario, 5, order, seed)]

    assert classes("natural", 1) == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert classes("seeded", 1) == classes("seeded", 1) == classes("seeded", 1, "class")
    assert len({tuple(classes("seeded", seed)) for seed in range(5)}) == 5


def test_task_and_class_scenarios_leave_the_inputs_alone() -> None:
    source = images(torch.arange(8, dtype=torch.uint8).view(2, 1, 2, 2))
    for scenario in ("task", "class"):
        for task in make_tasks(source, scenario, 2, "seeded", 1):
            assert torch.equal(task.transform(source.train.x), source.train.x)


@pytest.mark.parametrize("scenario", ["permuted", "rotated"])
def test_changed_images_keep_all_classes_in_every_task(scenario: str) -> None:
    source = images(torch.zeros(6, 1, 2, 2), classes=3)
    assert [t.classes for t in make_tasks(source, scenario, 4, "seeded", 1)] == [(0, 1, 2)] * 4


@given(st.sampled_from([(6,), (2, 5), (1, 3, 3), (3, 2, 2)]), seeds)
@settings(deadline=None, max_examples=20)
def test_permuted_tasks_shuffle_the_inputs_each_in_its_own_fixed_way(shape: tuple[int, ...], seed: int) -> None:
    size = math.prod(shape)
    x = torch.arange(2 * size, dtype=torch.float32).view(2, *shape)
    tasks = make_tasks(images(x), "permuted", 4, "seeded", seed)
    assert torch.equal(tasks[0].transform(x), x)
    for task in tasks[1:]:
        one, two = task.transform(x)
        assert sorted(one.flatten().tolist()) == list(range(size))
        assert torch.equal(two, one + size)  # every sample in the same way
        assert torch.equal(task.transform(x[1:]), two.unsqueeze(0))  # also when seen apart


def test_permutations_differ_by_task_and_seed_and_come_again() -> None:
    x = torch.arange(64).view(1, 1, 8, 8)

    def shuffled(seed: int) -> list[Tensor]:
        return [task.transform(x) for task in make_tasks(images(x, 1), "permuted", 3, "seeded", seed)]

    assert all(torch.equal(one, again) for one, again in zip(shuffled(1), shuffled(1), strict=True))
    distinct = [x, *shuffled(1)[1:], *shuffled(2)[1:]]
    assert not any(torch.equal(one, other) for one, other in combinations(distinct, 2))


@pytest.mark.parametrize("scenario", ["permuted", "rotated"])
def test_train_and_test_are_changed_alike(scenario: str) -> None:
    x = torch.randint(0, 256, (8, 1, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    dealt = benchmark(images(x), scenario=scenario, tasks=3, clients=1)
    for task in range(3):
        assert torch.equal(dealt.train(0, task).x, dealt.test(0, task).x)
        assert torch.equal(dealt.train(0, task).x, x) == (task == 0)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 5)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_last_rotation_is_a_half_turn_and_the_first_none(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(0, 256, (4, *shape), generator=torch.Generator().manual_seed(0)).to(dtype)
    tasks = make_tasks(images(x), "rotated", 3, "seeded", 1)
    turned = [task.transform(x) for task in tasks]
    assert [t.dtype for t in turned] == [dtype] * 3
    assert torch.equal(turned[0], x)
    # The middle one is a quarter turn, one way or the other.
    assert min(_distance(turned[1], x.rot90(way, (2, 3))) for way in (1, -1)) < 1e-3
    assert _distance(turned[2], x.flip(2, 3)) < (1e-3 if dtype.is_floating_point else 1e-9)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def test_rotation_by_an_eighth_turn_interpolates_between_pixels() -> None:
    x = torch.randint(0, 256, (1, 1, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    turned = make_tasks(images(x, 1), "rotated", 5, "seeded", 1)[1].transform(x)
    assert min(_distance(turned[0, 0], _turned_slowly(x[0, 0], way * math.pi / 4)) for way in (1, -1)) <= 0.501


def _turned_slowly(image: Tensor, angle: float) -> Tensor:
    """Turn a square image about its centre: each pixel is mixed from the four around the place it came from."""
    size, middle = len(image), (len(image) - 1) / 2
    result = torch.zeros(size, size)
    for i in range(size):
        for j in range(size):
            y, x = i - middle, j - middle
            row = middle + math.cos(angle) * y + math.sin(angle) * x
            column = middle - math.sin(angle) * y + math.cos(angle) * x
            for r in range(size):
                for c in range(size):
                    result[i, j] += max(0, 1 - abs(r - row)) * max(0, 1 - abs(c - column)) * float(image[r, c])
    return result


def test_only_images_can_be_rotated() -> None:
    with pytest.raises(UserError, match="numbered has samples of shape"):
        make_tasks(numbered([2, 2]), "rotated", 2, "seeded", 1)


# Benchmark ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["iid", "dirichlet"]), seeds)
@settings(deadline=None, max_examples=20)
def test_subsets_have_exactly_so_many_samples_of_each_class(train: int, test: int, partition: str, seed: int) -> None:
    source = numbered([9, 12, 30], [15, 9, 10])
    dealt = benchmark(source, partition=partition, clients=1, samples_per_class=train, test_per_class=test, seed=seed)
    (mine,), (held_out,) = halves(dealt)
    assert class_counts(mine, 3) == [train] * 3
    assert class_counts(held_out, 3) == [test] * 3
    assert torch.equal(mine.y, source.train.y[mine.x.flatten().long()])
    assert torch.equal(held_out.y, source.test.y[held_out.x.flatten().long() - 100_000])


def test_subset_larger_than_a_class_is_all_of_it_and_subjects_stay_with_their_samples() -> None:
    source = numbered([4, 40], people=3)
    reduced = benchmark(source, clients=1, samples_per_class=20).source
    assert torch.bincount(reduced.train.y).tolist() == [4, 20]
    assert len(reduced.test) == 44
    assert source.train.subject is not None
    assert reduced.train.subject is not None
    assert torch.equal(reduced.train.subject, source.train.subject[reduced.train.x.flatten().long()])


def test_subset_depends_on_the_seed_alone() -> None:
    def chosen(seed: int, clients: int = 1) -> list[int]:
        dealt = benchmark(numbered([50, 50]), clients=clients, samples_per_class=10, seed=seed)
        return sorted(n for part in halves(dealt)[0] for n in numbers(part))

    assert chosen(1) == chosen(1, clients=4)
    assert chosen(1) != chosen(2)


IMAGE = [[1, 3, 10, 20], [5, 7, 30, 41], [0, 0, 255, 255], [1, 0, 255, 254]]
"""Its 2x2 blocks have the means 4, 25.25, 0.25 and 254.75."""


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.uint8, [[4, 25], [0, 255]]), (torch.float32, [[4, 25.25], [0.25, 254.75]])],
)
def test_image_size_averages_blocks_of_pixels(dtype: torch.dtype, expected: list[list[float]]) -> None:
    x = torch.tensor([[IMAGE], [IMAGE]], dtype=dtype)
    small = benchmark(images(x), clients=1, image_size=2).source
    for half in (small.train, small.test):
        assert half.x.dtype == dtype
        assert torch.equal(half.x, torch.tensor([[expected]] * 2, dtype=dtype))
    assert small.shape == (1, 2, 2)


def test_image_size_wants_images() -> None:
    with pytest.raises(UserError, match="image_size wants images"):
        benchmark(numbered([2, 2]), clients=1, image_size=2)


def test_bytes_become_fractions_and_are_normalised_per_channel() -> None:
    x = torch.tensor([[[[0, 255]], [[51, 102]]]] * 2, dtype=torch.uint8)
    plain = benchmark(images(x), clients=1)
    torch.testing.assert_close(plain.normalise(x)[0], torch.tensor([[[0.0, 1.0]], [[0.2, 0.4]]]))
    scaled = benchmark(replace(images(x), mean=(0.5, 0.2), std=(0.5, 0.1)), clients=1)
    torch.testing.assert_close(scaled.normalise(x)[0], torch.tensor([[[-1.0, 1.0]], [[0.0, 2.0]]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_are_normalised_per_channel_and_not_divided(dtype: torch.dtype) -> None:
    x = torch.tensor([[[0.0, 2.0, 4.0], [10.0, 20.0, 30.0]]] * 2, dtype=dtype)
    expected = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0]], dtype=dtype)
    series = benchmark(replace(images(x), mean=(2.0, 20.0), std=(2.0, 5.0)), clients=1)
    torch.testing.assert_close(series.normalise(x)[1], expected)
    assert benchmark(images(x), clients=1).normalise(x) is x


def test_heads_belong_to_the_tasks_classes() -> None:
    source = numbered([4] * 4)
    own = benchmark(source, scenario="task", tasks=2, clients=1).heads
    assert own.open(1, (0, 1)).tolist() == [False, False, True, True]
    appended = benchmark(source, scenario="class", tasks=2, clients=1).heads
    assert [appended.open(0, seen).tolist() for seen in ((0,), (0, 1))] == [[True, True, False, False], [True] * 4]


# Streams --------------------------------------------------------------------------------------------------------------


def test_streams_of_equal_names_are_equal_and_of_different_names_differ() -> None:
    names: list[tuple[Any, ...]] = [
        (1, "a"), (2, "a"), (11, "a"), (1, "b"), (1, "a", 0), (1, "a", 1), (1, "a", 11), (1, "a", 1, 1),
        (1, "a", 0, 1), (1, "a", 1, 0),
    ]  # fmt: skip

    def numbers(name: tuple[Any, ...]) -> tuple[float, ...]:
        return tuple(stream(*name).random(4).tolist())

    assert [numbers(name) for name in names] == [numbers(name) for name in names]
    assert len({numbers(name) for name in names}) == len(names)
    assert len({torch_seed(*name) for name in names}) == len(names)
    assert all(0 <= torch_seed(*name) < 2**63 for name in names)


def test_streams_do_not_depend_on_the_order_in_which_they_are_made_or_used() -> None:
    first, second = stream(1, "a", 1), stream(1, "a", 2)
    woven = [(float(first.random()), float(second.random())) for _ in range(5)]
    second = stream(1, "a", 2)
    late = [float(second.random()) for _ in range(5)]
    first = stream(1, "a", 1)
    early = [float(first.random()) for _ in range(5)]
    assert woven == list(zip(early, late, strict=True))
