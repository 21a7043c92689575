"""The table of component gradients: bounded, allocated once, exact or within a stated tolerance."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from cflag import Experiment
from cflag.config import flatten, load_raw, merge, resolve
from cflag.engines.local import LocalEngine
from cflag.errors import UserError
from cflag.learning.dense import aligned_rows
from cflag.learning.gradient_table import GradientTable, Workspace

HALF = 2.0**-12
rows = st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4).map(torch.tensor)


def half_table(count: int, width: int) -> GradientTable:
    return Workspace(count * width * 2).table(count, torch.zeros(width))


@example([torch.tensor([0.0, 0.0, 1000000.0, 693115.25])], 119.0)
@given(st.lists(rows, min_size=1, max_size=5), st.floats(1e-20, 1e20))
def test_half_precision_is_off_by_a_4096th_of_the_rows_largest(given_rows: list[Tensor], unit: float) -> None:
    table = half_table(len(given_rows), 4)
    assert table.half
    for j, row in enumerate(given_rows):
        table[j] = unit * row
    for held, row in zip(table, given_rows, strict=True):
        largest = (unit * row).abs().max()
        assert ((held - unit * row).abs() <= (HALF + 2.0**-22) * largest + 1e-37).all()  # and float32's own rounding


@given(st.lists(rows, min_size=2, max_size=2), st.lists(rows, min_size=1, max_size=30))
def test_changes_add_up_to_the_table_so_errors_do_not_pile_up(first: list[Tensor], later: list[Tensor]) -> None:
    table = half_table(2, 4)
    table[0], table[1] = first
    total = table[0].double()
    for row in later:
        total += table.replace(0, row)
    scale = max(row.abs().max() for row in [first[0], *later])
    torch.testing.assert_close(total, table[0].double(), rtol=0, atol=1e-6 * len(later) * float(scale) + 1e-37)
    assert torch.equal(table[1], next(islice(iter(table), 1, 2)))


@given(st.integers(1, 200), st.integers(2, 5))
def test_a_row_is_the_gradient_itself_but_never_a_part_of_a_stack(width: int, count: int) -> None:
    """A plain net's gradient has up to 16 numbers of padding behind it; a stack's has the others' gradients."""
    table = Workspace().table(2, torch.zeros(width))
    alone, stacked = (aligned_rows(nets, width, torch.float32).normal_()[0] for nets in (1, count))
    table[0], table[1] = alone, stacked
    if width > 16:
        assert table[0].data_ptr() == alone.data_ptr()
    assert table[1].untyped_storage().nbytes() == 4 * width
    assert torch.equal(table[1], stacked)


def lab(table_bytes: int, clients: int = 3, **own: Any) -> tuple[Experiment, LocalEngine]:
    settings = {"tasks": 1, "clients": clients, "partition": "iid", "batch": 32, "width": 8, "workers": 1, "epochs": 2,
                "table_bytes": table_bytes, "stack": 1, "cflag": {"estimator": "iag", "drift": 1.0}}  # fmt: skip
    experiment = Experiment(resolve(merge(load_raw("digits"), flatten({**settings, **own}))))
    return experiment, LocalEngine(experiment.host(), 1)


def end(experiment: Experiment, engine: LocalEngine) -> Tensor:
    server = experiment.server()
    server.sizes = experiment.benchmark.sizes(0)
    for server.round in range(3):
        engine.converse(experiment.method.round(server), server)
    return server.params


def table_size(experiment: Experiment) -> int:
    return -(-experiment.benchmark.size(0, 0) // 32) * experiment.learner.params.nbytes


@pytest.mark.parametrize("tables", [1.0, 2.5, 3.5])
def test_within_the_bound_tables_are_made_again_with_the_same_result(tables: float) -> None:
    free = lab(2**31)
    one = table_size(free[0])
    bounded = lab(int(tables * one))
    host = bounded[1].lanes[0].host  # type: ignore[attr-defined]
    most, made = 0, 0
    make = host.workspace.table

    def watched(count: int, like: Tensor) -> GradientTable:
        nonlocal most, made
        table = make(count, like)
        most = max(most, host.workspace.used)
        made += 1
        return table  # type: ignore[no-any-return]

    host.workspace.table = watched
    assert torch.equal(end(*bounded), end(*free))
    assert one <= most <= tables * one
    assert made == 3 * {1.0: 6, 2.5: 4, 3.5: 3}[tables]  # a lost one is made again
    assert host.workspace.used <= sum(t.nbytes for t in (bounded[0].learner.params,)) * 3 + one * 3


@pytest.mark.parametrize("tables", [1.0, 2.5, 3.5])
def test_clients_that_answer_side_by_side_keep_within_the_bound_too(tables: float) -> None:
    free = lab(2**31, clients=7)
    limit = int(tables * table_size(free[0]))
    experiment, engine = lab(limit, clients=7, stack=4)
    host = engine.lanes[0].host  # type: ignore[attr-defined]
    make, most = host.workspace.table, 0

    def watched(count: int, like: Tensor) -> GradientTable:
        nonlocal most
        table = make(count, like)
        most = max(most, host.workspace.used)
        return table  # type: ignore[no-any-return]

    host.workspace.table = watched
    assert torch.equal(end(experiment, engine), end(*free))
    assert 0 < most <= limit


def test_a_larger_table_is_held_in_half_precision() -> None:
    """v is then off by at most 2⁻¹² Σ_j w_j max|∇g_j|, at any step; three rounds of 24 steps by a hundredth at most."""
    free, half = lab(2**31), lab(int(0.6 * table_size(lab(2**31)[0])))
    full_end, half_end = end(*free), end(*half)
    assert not torch.equal(full_end, half_end)
    way = (full_end - free[0].server().params).norm()
    assert float((half_end - full_end).norm() / way) < 0.01

    tracks = []
    for experiment, engine in (free, half):
        client = engine.lanes[0].host.client(0, 0)  # type: ignore[attr-defined]
        experiment.learner.load(full_end, experiment.learner.buffers)
        estimator = experiment.method.estimator(client)  # type: ignore[attr-defined]
        components = estimator.components
        components.visits = lambda parts=components.parts: iter(range(len(parts)))
        estimator.recall()
        bound = sum(w * float(row.abs().max()) for w, row in zip(components.weights, estimator.start, strict=True))
        tracks.append(
            ([v.clone() for v in estimator.path()], bound)
        )  # the parameters do not move, so v stays what it was
    (exact, bound), (rounded, _) = tracks
    for one, other in zip(exact, rounded, strict=True):
        assert float((one - other).abs().max()) <= HALF * bound * 1.01


def test_a_table_that_cannot_fit_is_refused_in_one_line() -> None:
    experiment, engine = lab(int(0.4 * table_size(lab(2**31)[0])))
    with pytest.raises(UserError, match=r"component gradients need .* even in half precision, more than table_bytes"):
        end(experiment, engine)


def test_the_gradient_of_every_client_is_not_kept_beyond_the_bound() -> None:
    """With mini-batches and drift 1 a client keeps g_i: a vector as large as the model, for as many as fit."""
    own = {"cflag": {"estimator": "minibatch", "drift": 1.0}}
    free = lab(2**31, clients=8, **own)
    vector = free[0].learner.params.nbytes
    bounded = lab(3 * vector, clients=8, **own)
    assert torch.equal(end(*bounded), end(*free))
    assert bounded[1].lanes[0].host.workspace.used <= 3 * vector  # type: ignore[attr-defined]
