"""The benchmarks do what they say: the same gradients on both sides, and a file that others can read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.alone import samples_a_client
from benchmarks.bare import Loop
from benchmarks.faults import same_state
from benchmarks.ours import open_experiment, source, to_the_timed_task
from benchmarks.run import markdown
from benchmarks.workloads import BATCH, WORKLOADS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["J3", "J3-cflag", "S-1000-10"])
def test_both_sides_evaluate_the_same_number_of_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS[name]
    experiment = open_experiment(workload, source(workload))
    session = experiment.session()
    to_the_timed_task(session, workload)
    session.round()
    cost = session.engine.settle().cost

    loop, seen = Loop(workload, channels_last=False), 0

    def count(batch: Any) -> None:
        nonlocal seen
        seen += len(batch)

    monkeypatch.setattr(loop, "gradient", count)
    for client in range(workload.asked):
        loop.client(client, [t.clone() for t in loop.tensors])
    # C-FLAG's last component may be smaller than a mini-batch, and either side chooses for itself when to visit it.
    slack = workload.asked * BATCH if workload.method == "cflag" else 0
    assert abs(cost.current + cost.memory - seen) <= slack
    assert samples_a_client(workload) * workload.asked == cost.current + cost.memory
    assert seen > 0


def test_states_differ_by_one_element_of_a_large_tensor() -> None:
    """A printed tensor of more than 1,000 elements leaves most of them out."""
    whole = {"task": 1, "x": torch.zeros(5000)}
    changed = torch.zeros(5000)
    changed[2500] = 1.0
    assert same_state(whole, {"task": 1, "x": torch.zeros(5000)})
    assert not same_state(whole, {"task": 1, "x": changed})
    assert not same_state(whole, {"task": 2, "x": torch.zeros(5000)})
    assert not same_state(whole, {"task": 1})


@pytest.mark.slow
def test_a_workload_can_be_timed_and_read_back(tmp_path: Path) -> None:
    out = tmp_path / "latest.json"
    command = [sys.executable, "-m", "benchmarks.run", "J3", "--repeats", "2", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(out.read_text())
    assert result["workload"] == "J3"
    assert result["ratio"] == pytest.approx(result["bare_s"] / result["ours_s"])
    assert result["peak_mb"] > 0
    assert "| **J3** | ours |" in markdown([result])


def test_an_unknown_workload_is_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.run", "J9", "--out", str(tmp_path / "x.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "there is no workload J9; there are J, J2" in done.stderr
