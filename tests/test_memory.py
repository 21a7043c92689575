"""Replay memories: what is kept, how much of it, and that it survives a restart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cflag import registry
from cflag.data.samples import Samples
from cflag.errors import UserError
from cflag.files import load_state, save_state
from cflag.memory.base import Memory, MemoryOptions, NoMemory
from cflag.memory.reservoir import Reservoir
from cflag.memory.ring import Ring

SAMPLE_BYTES = 4 + 8 + 8
"""Of one sample below: a float32 and two int64."""

supplies = st.lists(st.integers(1, 12), min_size=1, max_size=4)
"""How many samples of each class a task brings."""
task_lists = st.lists(supplies, min_size=1, max_size=4)
seeds = st.integers(0, 2**32)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def finished_task(supply: list[int], task: int = 0, first_class: int = 0) -> Samples:
    """Return a task whose samples' x says which task, class and sample each one is."""
    names = [(task, first_class + c, k) for c, count in enumerate(supply) for k in range(count)]
    x = torch.tensor([[10_000.0 * t + 100 * c + k] for t, c, k in names])
    return Samples(x, torch.tensor([c for _, c, _ in names]), torch.full((len(names),), task))


def finished_tasks(supplies: list[list[int]], shared: bool = False) -> list[Samples]:
    """Return several tasks, each with classes of its own, or all with the same (as in permuted images)."""
    starts = np.cumsum([0, *map(len, supplies)])
    return [finished_task(s, t, 0 if shared else int(starts[t])) for t, s in enumerate(supplies)]


def names(memory: Memory) -> list[float]:
    return [] if memory.samples is None else memory.samples.x.flatten().tolist()


def ring_sizes(samples: Samples | None) -> Counter[tuple[int, int]]:
    if samples is None:
        return Counter()
    return Counter(zip(samples.task.tolist(), samples.y.tolist(), strict=True))


def assert_fair(kept: Counter[tuple[int, int]], offered: Counter[tuple[int, int]], budget: int) -> None:
    """Nobody could have one more without another, who already has no more than them, having one less."""
    assert sum(kept.values()) == min(budget, sum(offered.values()))
    most = max((kept[ring] for ring in offered), default=0)
    for ring, supply in offered.items():
        assert kept[ring] <= supply
        if kept[ring] < supply:  # this ring still has samples to give
            assert kept[ring] >= most - 1


@given(supplies, st.integers(1, 30), seeds)
@settings(deadline=None, max_examples=30)
def test_ring_gives_classes_shares_that_differ_by_one_and_small_classes_give_all(
    supply: list[int], per_task: int, seed: int
) -> None:
    memory = Ring(MemoryOptions(per_task=per_task))
    task = finished_task(supply)
    memory.add(task, rng(seed))
    assert_fair(ring_sizes(memory.samples), ring_sizes(task), per_task)


def test_ring_shares_by_hand() -> None:
    memory = Ring(MemoryOptions(per_task=10))
    memory.add(finished_task([2, 9, 9]), rng(0))
    assert ring_sizes(memory.samples) == {(0, 0): 2, (0, 1): 4, (0, 2): 4}


@given(task_lists, st.integers(1, 12), seeds, st.booleans())
@settings(deadline=None, max_examples=30)
def test_ring_keeps_per_task_of_every_task(supplies: list[list[int]], per_task: int, seed: int, shared: bool) -> None:
    memory, random = Ring(MemoryOptions(per_task=per_task)), rng(seed)
    for task in finished_tasks(supplies, shared):
        memory.add(task, random)
    assert memory.samples is not None
    for number, supply in enumerate(supplies):
        assert int((memory.samples.task == number).sum()) == min(per_task, sum(supply))


@given(task_lists, st.integers(1, 12), st.integers(1, 25), st.booleans(), seeds, st.booleans())
@settings(deadline=None, max_examples=40)
def test_ring_under_a_limit_shrinks_all_rings_alike_and_never_exceeds_it(
    supplies: list[list[int]], per_task: int, limit: int, in_bytes: bool, seed: int, shared: bool
) -> None:
    limits = (0, limit * SAMPLE_BYTES + SAMPLE_BYTES - 1) if in_bytes else (limit, 0)
    memory, random = Ring(MemoryOptions("ring", per_task, 1, *limits)), rng(seed)
    offered: Counter[tuple[int, int]] = Counter()
    for task in finished_tasks(supplies, shared):
        # What this task may bring at most, and what the earlier ones still have, now share the limit.
        fresh = Ring(MemoryOptions(per_task=per_task))
        fresh.add(task, rng(0))
        offered = ring_sizes(memory.samples) + ring_sizes(fresh.samples)
        memory.add(task, random)
        assert_fair(ring_sizes(memory.samples), offered, limit)


def test_the_smaller_of_both_limits_counts() -> None:
    task = finished_task([20])
    for limits, expected in (((5, 9 * SAMPLE_BYTES), 5), ((9, 5 * SAMPLE_BYTES), 5)):
        memory = Ring(MemoryOptions("ring", 20, 1, *limits))
        memory.add(task, rng(0))
        assert len(memory) == expected


@given(task_lists, st.integers(1, 20), seeds)
@settings(deadline=None, max_examples=30)
def test_ring_under_a_limit_loses_the_oldest_of_each_ring_first(
    supplies: list[list[int]], limit: int, seed: int
) -> None:
    bounded, free = Ring(MemoryOptions(limit_samples=limit)), Ring(MemoryOptions())
    for position, task in enumerate(finished_tasks(supplies)):
        bounded.add(task, rng(seed + position))
        free.add(task, rng(seed + position))
    assert bounded.samples is not None
    assert free.samples is not None
    for number, label in ring_sizes(free.samples):
        all_of_it = free.samples.x[(free.samples.task == number) & (free.samples.y == label)].flatten().tolist()
        kept = bounded.samples.x[(bounded.samples.task == number) & (bounded.samples.y == label)].flatten().tolist()
        assert kept == all_of_it[len(all_of_it) - len(kept) :]


def test_a_limit_below_one_sample_is_refused() -> None:
    for kind in ("ring", "reservoir"):
        memory: Memory = registry.get("memory", kind)(MemoryOptions(kind, 10, 1, 0, SAMPLE_BYTES - 1))
        with pytest.raises(UserError, match=r"limit_bytes = \d+ is less than one sample"):
            memory.add(finished_task([3, 3]), rng(0))


@given(st.sampled_from(["ring", "reservoir"]), task_lists, st.integers(1, 12), st.integers(0, 20), seeds)
@settings(deadline=None, max_examples=30)
def test_kept_samples_are_distinct_ones_that_were_added_with_their_label_and_task(
    kind: str, supplies: list[list[int]], per_task: int, limit: int, seed: int
) -> None:
    memory: Memory = registry.get("memory", kind)(MemoryOptions(kind, per_task, 1, limit))
    tasks, random = finished_tasks(supplies), rng(seed)
    for task in tasks:
        memory.add(task, random)
    everything = Samples.cat(tasks)
    known = {
        x: (y, task)
        for x, y, task in zip(
            everything.x.flatten().tolist(), everything.y.tolist(), everything.task.tolist(), strict=True
        )
    }
    assert memory.samples is not None
    assert len(set(names(memory))) == len(memory)
    for x, y, of in zip(names(memory), memory.samples.y.tolist(), memory.samples.task.tolist(), strict=True):
        assert known[x] == (y, of)


@pytest.mark.parametrize("kind", ["ring", "reservoir"])
def test_equal_streams_keep_and_draw_equal_samples_and_others_do_not(kind: str) -> None:
    def kept_and_drawn(seed: int) -> tuple[list[float], list[float]]:
        memory: Memory = registry.get("memory", kind)(MemoryOptions(kind, per_task=10, sample=5))
        for position, task in enumerate(finished_tasks([[20, 20], [20, 20]])):
            memory.add(task, rng(seed + position))
        drawn = memory.draw(rng(seed))
        assert drawn is not None
        return names(memory), drawn.x.flatten().tolist()

    assert kept_and_drawn(1) == kept_and_drawn(1)
    first, other = kept_and_drawn(1), kept_and_drawn(5)
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_ring_picks_every_sample_of_a_class_equally_often() -> None:
    runs, per_class, supply = 2000, 3, 12
    counts: Counter[float] = Counter()
    for seed in range(runs):
        memory = Ring(MemoryOptions(per_task=2 * per_class))
        memory.add(finished_task([supply, supply]), rng(seed))
        counts.update(names(memory))
    p = per_class / supply
    five_sigma = 5 * (runs * p * (1 - p)) ** 0.5
    assert len(counts) == 2 * supply
    assert all(abs(count - runs * p) < five_sigma for count in counts.values())


@given(task_lists, st.integers(1, 30), st.integers(0, 30), seeds)
@settings(deadline=None, max_examples=30)
def test_reservoir_keeps_everything_up_to_its_capacity_and_never_more(
    supplies: list[list[int]], per_task: int, limit: int, seed: int
) -> None:
    memory, random = Reservoir(MemoryOptions("reservoir", per_task, 1, limit)), rng(seed)
    capacity, offered = limit or per_task, 0
    for task in finished_tasks(supplies):
        memory.add(task, random)
        offered += len(task)
        assert memory.seen == offered
        assert len(memory) == min(offered, capacity)
    if offered <= capacity:
        assert names(memory) == Samples.cat(finished_tasks(supplies)).x.flatten().tolist()


@pytest.mark.parametrize(("capacity", "supplies"), [(6, [[5, 5], [4], [7, 3]]), (2, [[1, 1], [1]])])
def test_reservoir_is_a_uniform_sample_of_all_tasks(capacity: int, supplies: list[list[int]]) -> None:
    runs, tasks, total = 2000, finished_tasks(supplies), sum(map(sum, supplies))
    counts: Counter[float] = Counter()
    for seed in range(runs):
        memory, random = Reservoir(MemoryOptions("reservoir", capacity)), rng(seed)
        for task in tasks:
            memory.add(task, random)
        counts.update(names(memory))
    p = capacity / total
    five_sigma = 5 * (runs * p * (1 - p)) ** 0.5
    assert len(counts) == total
    assert all(abs(count - runs * p) < five_sigma for count in counts.values())


@pytest.mark.parametrize("kind", ["ring", "reservoir"])
@pytest.mark.parametrize("stop", [0, 1, 2])
def test_a_memory_restored_from_a_file_goes_on_as_if_it_had_never_stopped(kind: str, stop: int, tmp_path: Path) -> None:
    options = MemoryOptions(kind, per_task=8, sample=5, limit_samples=13)
    tasks = finished_tasks([[9, 9], [9, 9], [9, 9]])
    straight: Memory = registry.get("memory", kind)(options)
    for position, task in enumerate(tasks):
        straight.add(task, rng(position))

    stopped: Memory = registry.get("memory", kind)(options)
    for position, task in enumerate(tasks[:stop]):
        stopped.add(task, rng(position))
    save_state(tmp_path / "memory.safetensors", stopped.state())
    again: Memory = registry.get("memory", kind)(options)
    again.restore(load_state(tmp_path / "memory.safetensors"))
    assert names(again) == names(stopped)
    for position, task in enumerate(tasks[stop:], start=stop):
        again.add(task, rng(position))

    assert names(again) == names(straight)
    assert again.samples is not None
    assert straight.samples is not None
    assert torch.equal(again.samples.y, straight.samples.y)
    assert torch.equal(again.samples.task, straight.samples.task)
    one, other = again.draw(rng(7)), straight.draw(rng(7))
    assert one is not None
    assert other is not None
    assert torch.equal(one.x, other.x)


def test_state_keeps_the_samples_dtype(tmp_path: Path) -> None:
    memory = Ring(MemoryOptions())
    memory.add(
        Samples(torch.arange(8, dtype=torch.uint8).view(2, 1, 2, 2), torch.tensor([0, 1]), torch.zeros(2).long()),
        rng(0),
    )
    save_state(tmp_path / "memory.safetensors", memory.state())
    again = Ring(MemoryOptions())
    again.restore(load_state(tmp_path / "memory.safetensors"))
    assert memory.samples is not None
    assert again.samples is not None
    assert again.samples.x.dtype == torch.uint8
    assert torch.equal(again.samples.x, memory.samples.x)


def test_reservoir_that_saw_nothing_survives_a_restart(tmp_path: Path) -> None:
    save_state(tmp_path / "memory.safetensors", Reservoir(MemoryOptions("reservoir")).state())
    again = Reservoir(MemoryOptions("reservoir"))
    again.restore(load_state(tmp_path / "memory.safetensors"))
    assert again.seen == 0
    assert again.samples is None


def test_no_memory_never_holds_anything() -> None:
    memory: Memory = registry.get("memory", "none")(MemoryOptions("none", per_task=5))
    assert isinstance(memory, NoMemory)
    assert not memory.enabled
    memory.add(finished_task([5, 5]), rng(0))
    assert len(memory) == 0
    assert memory.draw(rng(0)) is None
    assert memory.state() == {}


@pytest.mark.parametrize("kind", registry.names("memory"))
def test_draw_from_an_empty_memory_is_none(kind: str) -> None:
    memory: Memory = registry.get("memory", kind)(MemoryOptions(kind))
    assert len(memory) == 0
    assert memory.draw(rng(0)) is None


@given(st.integers(1, 30), st.integers(1, 40), seeds)
@settings(deadline=None, max_examples=30)
def test_draw_takes_each_sample_once_as_many_as_asked_for_or_all(supply: int, sample: int, seed: int) -> None:
    memory = Ring(MemoryOptions(per_task=30, sample=sample))
    memory.add(finished_task([supply], task=3), rng(seed))
    drawn = memory.draw(rng(seed))
    assert drawn is not None
    x = drawn.x.flatten().tolist()
    assert len(x) == len(set(x)) == min(sample, supply)
    assert set(x) <= set(names(memory))
    assert drawn.task.tolist() == [3] * len(x)
    assert len(memory) == supply  # drawing takes nothing away


def test_draw_is_uniform() -> None:
    runs, sample, supply = 2000, 3, 10
    memory = Ring(MemoryOptions(per_task=supply, sample=sample))
    memory.add(finished_task([supply]), rng(0))
    counts: Counter[float] = Counter()
    for seed in range(runs):
        drawn = memory.draw(rng(seed))
        assert drawn is not None
        counts.update(drawn.x.flatten().tolist())
    p = sample / supply
    five_sigma = 5 * (runs * p * (1 - p)) ** 0.5
    assert all(abs(counts[x] - runs * p) < five_sigma for x in names(memory))
