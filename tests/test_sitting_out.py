"""A client without samples of a task sits it out, and is shut out of no other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cflag.config import resolve
from cflag.data.benchmark import Benchmark
from cflag.data.source import Source, Split
from cflag.engines.flower.messages import unpack
from cflag.errors import UserError
from tests.support.grid import Fleet, local, numbers
from tests.support.quadratic import Lab, Row

pytestmark = pytest.mark.usefixtures("no_figures")

# Three clients, two parameters, x = 0, one local step. Client 1 sat out task 1. In task 2 they have 2, 3 and 1 samples:
# p = (1/3, 1/2, 1/6) of all, and (2/3, 1/3) among clients 0 and 2, who have a past.
#   m_0 = (3, 0)   m_2 = (0, 3)                     m = 2/3 m_0 + 1/3 m_2 = (2, 1), ‖m‖² = 5
#   g_0 = (-1/2, -1)   g_1 = (-1, 1)   g_2 = (1, 0)  g = Σ p_i g_i = (-1/2, 1/6)
# With one step a_i = g_i and g − g_i + a_i = g. α = β = 1/10, L = 5.
#   client 0: Λ = ⟨m, g_0⟩ = -2, interference:   α_0 = 1/10 + 1/10 · 2/5 = 7/50,  Δ_0 = 7/50 m + 1/10 g
#   client 2: Λ = 2, transference, N p_2 = 1/2:  β_2 = (1/2) 2 / (5 · 1/2 · 1) = 2/5,  Δ_2 = 1/10 m + 2/5 g
#   client 1 takes a plain round:                Δ_1 = 1/10 g
# Σ p_i Δ_i = (7/150 + 1/60) m + (1/30 + 1/20 + 1/15) g = 19/300 m + 3/20 g = (31/600, 53/600)
PAST: list[list[Row]] = [[(1, 0, -3)], [], [(0, 1, -3)]]
CURRENT: list[list[Row]] = [[(1, 0, 1), (0, 1, 2)], [(1, 0, 3), (0, 1, -3), (1, 0, 0)], [(1, 0, -1)]]


def test_who_sat_out_takes_a_plain_round_and_m_is_the_others() -> None:
    own = {"alpha": 0.1, "beta": 0.1, "order": "cyclic", "alpha_cap": "none"}
    lab = Lab(PAST, CURRENT, (0, 0), steps=1, method="cflag", cflag=own)
    x = lab.round()
    torch.testing.assert_close(x, torch.tensor([-31 / 600, -53 / 600], dtype=torch.float64))
    assert lab.log("case") == ["interference", "none", "transference"]
    assert lab.log("beta") == pytest.approx([0.1, 0.1, 0.4])


LACKING: Mapping[int, tuple[int, ...]] = {0: (0, 1), 1: (0, 1, 2, 3), 2: (2, 3), 3: (0, 1, 2, 3)}
"""The classes that each client has; tasks have classes 0 and 1, then 2 and 3."""
UNTESTED = 3
"""A client without test samples of the first task."""
SETTINGS: dict[str, Any] = {"source": "folder", "class_order": "natural", "clients": 4, "tasks": 2, "patience": 20}


def write(folder: Path, halves: Mapping[str, Mapping[str, Any]]) -> None:
    folder.mkdir()
    (folder / "source.toml").write_text('name = "mine"\nclasses = 4\nmean = [0.1]\nstd = [1.2]\n')
    for name, arrays in halves.items():
        np.savez(folder / f"{name}.npz", **arrays)


def share_out(folder: Path, fleet: Fleet) -> Path:
    """Give each node a folder of its own; return one with the same samples, which says whose they are."""
    rng, whole = np.random.default_rng(0), {"train": [], "test": []}  # type: ignore[var-annotated]
    for node in fleet.nodes:
        mine = {}
        for name, count in (("train", 24 + 6 * node.number), ("test", 12)):
            labels = LACKING[node.number] if (name, node.number) != ("test", UNTESTED) else (2, 3)
            y = np.array(labels)[np.arange(count) % len(labels)]
            x = (rng.normal(size=(count, 6)) + 4 * np.eye(6)[y]).astype(np.float32)
            mine[name] = {"x": x, "y": y}
            whole[name].append((x, y, np.full(count, node.number)))
        write(folder / f"data-{node.number}", mine)
        node.context.node_config["data-dir"] = str(folder / f"data-{node.number}")
    columns = {name: [np.concatenate(c) for c in zip(*parts, strict=True)] for name, parts in whole.items()}
    write(folder / "together", {n: dict(zip(("x", "y", "subject"), c, strict=True)) for n, c in columns.items()})
    return folder / "together"


@pytest.mark.parametrize("method", ["cflag", "icarl", "ewc", "replay"])
def test_a_fleet_with_data_of_its_own_has_the_numbers_of_one_machine(method: str, tmp_path: Path) -> None:
    """Client 0 has nothing of task 2, client 2 nothing of task 1, client 3 no test samples of it."""
    fleet = Fleet(tmp_path, **SETTINGS, method=method, partition="own")
    whole = share_out(tmp_path, fleet)
    result = fleet.run()
    own = {k: v for k, v in SETTINGS.items() if k != "patience"}
    local(tmp_path, **own, method=method, partition="subject", data_dir=str(whole))
    assert numbers(fleet.path) == numbers(tmp_path / "local")
    assert fleet.said == []
    assert not any("missing" in record for record in fleet.records())
    heads = [[unpack(m.content)[0] for m in node.received] for node in fleet.nodes]
    rounds = [{h["position"][0] for h in its if h.get("question") in ("local_steps", "remember")} for its in heads]
    assert rounds == [{0, 1}, {0, 1, 2, 3}, {2, 3}, {0, 1, 2, 3}]
    assert result.client_matrices[UNTESTED][1][0] is None
    assert result.client_matrices[0][1][1] is None


def test_iCaRL_asks_who_sits_out_for_its_exemplars(tmp_path: Path) -> None:  # noqa: N802 (its name)
    """Nobody else may have samples of those classes."""
    fleet = Fleet(tmp_path, **SETTINGS, method="icarl", partition="own")
    share_out(tmp_path, fleet)
    fleet.run()
    heads = [unpack(message.content)[0] for message in fleet.nodes[0].received]
    assert {h["position"][0] for h in heads if h.get("question") == "class_sums"} == {0, 1, 2, 3}


def test_a_smaller_client_than_allowed_is_still_refused() -> None:
    split = Split(torch.zeros(8, 3), torch.tensor([0, 1] * 3 + [0, 0]), torch.tensor([0] * 6 + [1] * 2))
    raw = {"clients": 2, "tasks": 2, "class_order": "natural", "partition": "subject", "source": "custom"}
    source = Source("small", split, split, 2)
    benchmark = Benchmark(source, resolve(raw))
    assert benchmark.has.tolist() == [[True, True], [True, False]]
    with pytest.raises(UserError, match="client 1 has 2 samples of task 1, fewer than min_samples = 3"):
        Benchmark(source, resolve({**raw, "min_samples": 3}))
    nobody = Split(split.x, torch.zeros(8, dtype=torch.long), split.subject)
    with pytest.raises(UserError, match="nobody has training samples of task 2"):
        Benchmark(Source("none", nobody, split, 2), resolve(raw))
