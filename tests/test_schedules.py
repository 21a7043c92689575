"""Every client has its own clock: what schedules plan, who has which samples when, and what methods make of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cflag import Source, registry, run
from cflag.config import Config, load_config, load_raw, merge, resolve
from cflag.data.benchmark import Benchmark
from cflag.data.options import BenchmarkOptions
from cflag.data.samples import Samples
from cflag.data.schedules.base import NEVER, Plan, make_schedule
from cflag.data.schedules.table import read_lines
from cflag.data.source import Split
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.learning.learner import Learner
from cflag.presets import protocol_names
from cflag.results.measures import plan_from_dict, plan_to_dict
from tests.support.quadratic import Linear, half_square

pytestmark = pytest.mark.usefixtures("no_figures")

KINDS: dict[str, dict[str, Any]] = {
    "together": {},
    "staggered": {"groups": 2, "every": 1},
    "own-order": {"jitter": 0.4},
    "own-classes": {"overlap": 0.5},
    "joining": {"join": 1, "leave": 1, "lacking": 0.3},
    "online": {"least": 4},
    "blurry": {"share": 0.3},
    "table": {"lines": ["0,1,2,1", "0,3,5,2", "1,1,3,2", "1,4,6,1", "2,1,2,1", "3,2,6,2"]},
}
APART = [kind for kind in KINDS if kind != "together"]
SMALL: dict[str, Any] = {"tasks": 2, "clients": 4, "rounds": 2, "workers": 1, "samples_per_class": 20, "width": 8,
                         "test_per_class": 8, "steps": 2, "eval_every": 2, "memory.per_task": 10,
                         "memory.sample": 5}  # fmt: skip


def configured(kind: str, method: str = "finetune", **changes: Any) -> Config:
    memory = {"memory.kind": "reservoir"} if kind == "online" else {}
    table = {f"schedule.{key}": value for key, value in KINDS[kind].items()}
    given = {"schedule.kind": kind, **table, **memory, "method": method, **SMALL, **changes}
    return resolve(merge(load_raw("digits"), given.items()))


def planned(kind: str, clients: int, tasks: int, rounds: int, **table: Any) -> Plan:
    raw = {"clients": clients, "tasks": tasks, "rounds": rounds, "schedule": {"kind": kind, **table}}
    return make_schedule(resolve(raw)).plan


# Plans ----------------------------------------------------------------------------------------------------------------


def test_together_is_task_after_task() -> None:
    plan = planned("together", clients=2, tasks=3, rounds=4)
    assert plan.first.tolist() == [[0, 4, 8]] * 2
    assert plan.last.tolist() == [[3, 7, 11]] * 2
    assert plan.total == 12
    assert plan.ends == {3, 7, 11}


def test_staggered_groups_begin_and_end_together_and_switch_one_after_the_other() -> None:
    plan = planned("staggered", clients=4, tasks=2, rounds=5, groups=2, every=3)
    assert plan.first.tolist() == [[0, 5], [0, 5], [0, 8], [0, 8]]
    assert plan.last.tolist() == [[4, 12], [4, 12], [7, 12], [7, 12]]
    assert plan.now(6).tolist() == [1, 1, 0, 0]


def test_joining_clients_come_last_and_leave_first() -> None:
    plan = planned("joining", clients=4, tasks=3, rounds=2, join=1, leave=1)
    assert plan.first.tolist() == [[0, NEVER, NEVER], [0, 2, NEVER], [NEVER, 2, 4], [NEVER, NEVER, 4]]
    assert plan.latest(0).tolist() == [0, 0, NEVER, NEVER]
    assert plan.latest(3).tolist() == [NEVER, 1, 1, NEVER]  # client 0 is gone, not only absent
    assert plan.latest(4).tolist() == [NEVER, NEVER, 2, 2]


def test_a_share_of_the_old_clients_sits_every_new_task_out() -> None:
    plan = planned("joining", clients=20, tasks=4, rounds=1, lacking=0.25)
    assert (plan.first == NEVER).sum(0).tolist() == [0, 5, 5, 5]
    without = [frozenset(np.flatnonzero(plan.first[:, task] == NEVER).tolist()) for task in (1, 2, 3)]
    assert len(set(without)) > 1  # drawn anew
    absent = int(min(without[0]))
    assert plan.latest(1)[absent] == 0  # it is still there, in no task
    assert plan.now(1)[absent] == NEVER


def test_own_orders_are_permutations_and_jitter_moves_only_the_switches() -> None:
    plain, moved = (planned("own-order", 6, 4, 10, jitter=jitter) for jitter in (0.0, 0.5))
    assert all(sorted(row) == [0, 10, 20, 30] for row in plain.first.tolist())
    assert len({tuple(row) for row in plain.first.tolist()}) > 1
    assert (np.argsort(moved.first) == np.argsort(plain.first)).all()
    assert np.abs(moved.first - plain.first).max() > 0
    assert np.abs(moved.first - plain.first).max() <= 5
    assert moved.last.max(1).tolist() == [39] * 6


def test_a_table_counts_clients_from_0_and_rounds_and_tasks_from_1(tmp_path: Path) -> None:
    (tmp_path / "wards.csv").write_text("client, first, last, task\n0,1,4,1\n0,6,9,2\n1,3,9,2\n")
    (tmp_path / "mine.toml").write_text(
        'clients = 2\ntasks = 2\nrounds = 3\n[schedule]\nkind = "table"\nfile = "wards.csv"\n'
    )
    config = load_config(str(tmp_path / "mine.toml"))
    assert config.to_dict()["schedule"]["lines"] == ["0,1,4,1", "0,6,9,2", "1,3,9,2"]
    assert config.to_dict()["schedule"]["file"] == ""  # the run folder needs no other file
    plan = make_schedule(config).plan
    assert plan.first.tolist() == [[0, 5], [NEVER, 2]]
    assert plan.last.tolist() == [[3, 8], [NEVER, 8]]
    assert plan.now(4).tolist() == [NEVER, 1]
    assert plan.total == 9


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["0,1,4,1", "0,4,9,2", "1,1,2,1"], "client 0 is in tasks 1 and 2 at once, in round 4"),
        (["0,1,4,1", "1,1,4,1"], "nobody gets task 2"),
        (["0,1,4,1", "0,4,6,1", "1,1,2,2"], "line '0,4,6,1': client 0 is in task 1 then already"),
        (["0,1,4,1", "0,5,6,2", "0,7,7,1", "1,1,2,2"], "client 0 comes back to task 1 after task 2"),
        (["0,1,4,1", "0,5,6,2"], "client 1 has no line"),
        (["0,1,4,1", "1,5,4,2"], "line 2, '1,5,4,2': the last round is before the first"),
        (["0,1,4,1", "2,5,6,2"], "line '2,5,6,2': there are 2 clients"),
        (["0,1,4,1", "1,0,6,2"], "line 2, '1,0,6,2': clients are numbered from 0"),
        (["0,1,4,1", "1,1,1000000001,2"], "a round must be at most 1,000,000,000"),
        (["0,1,4,1", "1,x,6,2"], "line 2, '1,x,6,2': four whole numbers wanted"),
    ],
)
def test_a_table_that_cannot_be_is_refused_by_its_line(lines: list[str], what: str) -> None:
    with pytest.raises(UserError, match=what.replace("(", r"\(")):
        planned("table", clients=2, tasks=2, rounds=3, lines=lines)


def test_a_break_within_a_task_is_an_absence_and_no_end() -> None:
    """Client 0 has task 1 in rounds 1, 2 and 5: it leaves it once, after round 5, and sits rounds 3 and 4 out."""
    lines = ["0,1,2,1", "0,5,5,1", "0,6,7,2", "1,1,3,1", "1,4,7,2"]
    rows = [(c, t, 1.0) for c in range(2) for t in range(2)]
    session = quadratic(rows, 2, method="replay", replay={"lr": 0.1},
                        schedule={"kind": "table", "lines": lines}).session()  # fmt: skip
    plan = session.plan
    assert plan.last.tolist() == [[4, 6], [2, 6]]
    assert [plan.now(done)[0] for done in range(7)] == [0, 0, NEVER, NEVER, 0, 1, 1]
    assert plan.latest(3).tolist() == [0, 1]
    held, asked = [], []
    for done in range(7):
        session.play(done)
        asked.append(sorted(session.server.sizes))
        held.append(len(session.engine.lanes[0].host.clients[0].memory))  # type: ignore[attr-defined]
    assert asked == [[0, 1], [0, 1], [1], [1], [0, 1], [0, 1], [0, 1]]
    assert held == [0, 0, 0, 0, 1, 1, 2]
    assert plan_from_dict(json.loads(json.dumps(plan_to_dict(plan)))).breaks == plan.breaks == ((0, 2, 3),)


WARDS = "client,first,last,task\n0,1,2,1\n0,3,4,2\n1,2,4,1\n"


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + WARDS,
        WARDS.replace("\n", "\r\n"),
        WARDS.replace(",", ";"),
        WARDS.replace(",", "\t"),
        WARDS.replace("client,first,last,task", "# wards\n\n Client , First,LAST,Task"),
        WARDS.replace("0,3", "# the second ward\n ,,,\n0,3"),
        'note,task,"last","first",client\n"a, b\nc",1,2,1,0\n,2,4,3,0\n,1,4,2,1,more\n',
    ],
    ids=["bom", "crlf", "semicolons", "tabs", "case", "comments", "columns"],
)
def test_a_table_is_read_as_spreadsheets_write_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "wards.csv").write_bytes(text.encode())
    assert read_lines(tmp_path / "wards.csv") == ["0,1,2,1", "0,3,4,2", "1,2,4,1"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("0,1,2,1\n", "no lines below a header"),
        ("client,first,last,task\n", "no lines below a header"),
        ("client,first,last,task,task\n0,1,2,1,2\n", "no lines below a header"),
        (WARDS + "# two\n1,5,x,2\n", r"wards.csv, line 6, '1,5,x,2': four whole numbers"),
        (WARDS + "1,5,6\n", r"wards.csv, line 5, '1,5,6,': four whole numbers"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_its_line(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "wards.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=what):
        read_lines(tmp_path / "wards.csv")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"schedule": "stagered"}, "did you mean 'staggered'"),
        ({"schedule": {"kind": "staggered", "evry": 3}}, "did you mean 'schedule.every'"),
        ({"schedule": {"kind": "staggered", "groups": 9}}, "more than the 5 clients"),
        ({"schedule": {"kind": "joining", "join": 3}}, "leave no client"),
        ({"schedule": {"kind": "blurry", "share": 1.0}}, "below 1"),
        ({"schedule": "table"}, "wants schedule.file"),
        ({"schedule": "staggered", "average_tail": 0.5}, "average_tail is for clients that change together"),
        ({"schedule": "online", "method": "replay"}, "set memory.kind = 'reservoir'"),
        ({"schedule": "online", "method": "icarl", "memory": {"kind": "reservoir"}}, "samples .*pass by"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_in_one_line(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=what) as error:
        resolve(settings)
    assert "\n" not in str(error.value)


def test_another_kind_on_top_of_a_preset_forgets_the_settings_of_the_first() -> None:
    raw = merge({"schedule": {"kind": "staggered", "every": 3}}, [("schedule", "online"), ("schedule.least", 7)])
    assert raw == {"schedule": {"kind": "online", "least": 7}}
    raw = merge({"schedule": {"kind": "staggered", "every": 3}}, [("schedule.kind", "online")])
    assert raw == {"schedule": {"kind": "online"}}


@given(
    st.sampled_from([kind for kind in KINDS if kind != "table"]),
    st.integers(4, 9),
    st.integers(2, 4),
    st.integers(1, 6),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_everybody_is_in_one_task_at_a_time_and_no_task_is_forgotten(
    kind: str, clients: int, tasks: int, rounds: int, seed: int
) -> None:
    table = {"join": 1} if kind == "joining" else KINDS[kind]
    memory = {"kind": "reservoir"} if kind == "online" else {}
    raw = {"clients": clients, "tasks": tasks, "rounds": rounds, "seed": seed, "memory": memory}
    plan = make_schedule(resolve({**raw, "schedule": {"kind": kind, **table}})).plan
    for done in range(plan.total):
        inside = (plan.first >= 0) & (plan.first <= done) & (plan.last >= done)
        assert inside.sum(1).max() <= 1
        now, latest = plan.now(done), plan.latest(done)
        assert np.array_equal(now >= 0, inside.any(1))
        assert (latest[now >= 0] == now[now >= 0]).all()
        assert [plan.task(client, done) for client in range(clients)] == latest.tolist()
    assert (plan.first >= 0).any(0).all()
    assert plan.total - 1 in plan.ends


# Who has which samples ------------------------------------------------------------------------------------------------


def numbered(per_class: int, classes: int) -> Source:
    """Samples whose only feature is their own number."""
    y = torch.arange(classes).repeat_interleave(per_class)
    split = Split(torch.arange(len(y), dtype=torch.float32)[:, None], y)
    return Source("numbers", split, split, classes)


def dealt(options: dict[str, Any], per_class: int = 12, classes: int = 6) -> Benchmark:
    raw = {"source": "custom", "class_order": "natural", "min_samples": 0, **options}
    return Benchmark(numbered(per_class, classes), resolve(raw))


def held(benchmark: Benchmark, client: int, task: int) -> list[int]:
    return [int(x) for x in benchmark.train(client, task).x.flatten()]


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_own_classes_are_as_many_from_the_task_as_overlap_says_and_no_sample_is_dealt_twice(overlap: float) -> None:
    table = {"kind": "own-classes", "overlap": overlap, "classes": 2}
    benchmark = dealt({"schedule": table, "clients": 4, "tasks": 3, "scenario": "class"})
    everything: list[int] = []
    for client in range(4):
        for task in range(3):
            mine = held(benchmark, client, task)
            labels = {number // 12 for number in mine}
            assert len(labels) == 2
            assert len(labels & {2 * task, 2 * task + 1}) == round(2 * overlap)
            assert labels <= set(benchmark.spec.tasks[task])
            everything += mine
    assert len(everything) == len(set(everything))


def test_blurry_tasks_give_a_share_to_their_neighbours_and_lose_nothing() -> None:
    table = {"kind": "blurry", "share": 0.5}
    benchmark = dealt({"schedule": table, "clients": 2, "tasks": 3, "scenario": "class", "partition": "iid"})
    of = [[len([x for x in held(benchmark, 0, task) if x // 24 == pool]) for pool in range(3)] for task in range(3)]
    assert of == [[6, 3, 0], [6, 6, 6], [0, 3, 6]]  # 12 samples a task and client, half of which move
    everything = sorted(x for client in range(2) for task in range(3) for x in held(benchmark, client, task))
    assert everything == list(range(72))
    assert [sorted(classes) for classes in benchmark.spec.tasks] == [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [2, 3, 4, 5]]
    assert {int(y) for y in benchmark.test(0, 0).y} == {0, 1}  # tests are of a task's own classes


def test_a_task_is_dealt_among_those_who_get_it() -> None:
    lines = ["0,1,2,1", "0,3,4,2", "1,1,2,1", "2,3,4,2"]
    table = {"kind": "table", "lines": lines}
    for partition in ("iid", "dirichlet", "classes"):
        options = {"schedule": table, "clients": 3, "tasks": 2, "scenario": "class", "classes_per_client": 3}
        benchmark = dealt({**options, "partition": partition})
        assert [benchmark.size(client, 0) for client in range(3)] == [18, 18, 0]
        assert [benchmark.size(client, 1) for client in range(3)] == [18, 0, 18]


def test_clients_have_few_classes_and_share_them_evenly() -> None:
    options = {"partition": "classes", "classes_per_client": 2, "clients": 5, "tasks": 2, "scenario": "class"}
    benchmark = dealt(options)
    for task in range(2):
        labels = [{x // 12 for x in held(benchmark, client, task)} for client in range(5)]
        assert all(len(mine) == 2 for mine in labels)
        for label in set().union(*labels):
            shares = [sum(x // 12 == label for x in held(benchmark, client, task)) for client in range(5)]
            had = [share for share in shares if share]
            assert sum(had) == 12
            assert max(had) - min(had) <= 1


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 20))
def test_a_stream_passes_by_once(size: int, rounds: int, least: int) -> None:
    raw = {"rounds": rounds, "memory": {"kind": "reservoir"}, "schedule": {"kind": "online", "least": least}}
    schedule = make_schedule(resolve(raw))
    portions = [schedule.portion(size, number) for number in range(rounds)]
    assert [x for portion in portions for x in portion] == list(range(size))
    lengths = [len(portion) for portion in portions if len(portion)]
    assert max(lengths) - min(lengths) <= 1
    assert len(lengths) == 1 or min(lengths) >= least
    assert all(len(portion) for portion in portions[: len(lengths)])  # no gap: who has few has the first rounds


@pytest.mark.parametrize("steps", [0, 3])
def test_online_every_sample_is_in_one_local_step_and_in_order(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {"source": "custom", "class_order": "natural", "tasks": 2, "clients": 2, "rounds": 3, "steps": steps,
           "workers": 1, "stack": 1, "scenario": "class", "partition": "iid", "method": "finetune", "model": "linear",
           "schedule": {"kind": "online", "least": 4}}  # fmt: skip
    experiment = Experiment(resolve(raw), numbered(per_class=20, classes=4))
    seen: list[list[int]] = []
    learn = Learner.value_and_grad

    def watched(learner: Learner, samples: Samples, *loss: Any) -> tuple[float, Tensor]:
        seen.append([int(x) for x in samples.x.flatten()])
        return learn(learner, samples, *loss)

    monkeypatch.setattr(Learner, "value_and_grad", watched)
    session = experiment.session()
    for done in range(session.plan.total):
        session.play(done)
    assert len(seen) == max(steps, 1) * 2 * 3 * 2  # steps, clients, rounds, tasks
    assert sorted(x for batch in seen for x in batch) == list(range(80))
    mine = experiment.benchmark.train(0, 0).x.flatten().tolist()
    assert [x for batch in seen for x in batch if x in mine] == mine


def test_who_has_no_samples_of_a_task_sits_it_out() -> None:
    """Client 1 has nothing of task 1, client 2 nothing of task 2."""
    rows = [(0, 0), (0, 1), (1, 1), (2, 0)]  # client, task
    experiment = quadratic([(c, t, 1.0) for c, t in rows], clients=3, method="finetune", finetune={"lr": 0.1})
    session = experiment.session()
    session.play(0)
    assert session.server.sizes == {0: 1, 2: 1}
    assert sorted(session.engine.account.logs) == [0, 2]
    session.play(1)
    session.engine.settle()
    session.play(2)
    assert session.server.sizes == {0: 1, 1: 1}
    assert sorted(session.engine.account.logs) == [0, 1]
    assert session.engine.account.missing == {}


# What methods make of it ----------------------------------------------------------------------------------------------


def quadratic(rows: Sequence[tuple[int, int, float]], clients: int, rounds: int = 2, **settings: Any) -> Experiment:
    """Samples (client, task, b) with the loss ½ (x − b)², one component a client, from x = 0."""
    split = Split(
        torch.tensor([[1.0, b] for _, _, b in rows], dtype=torch.float64),
        torch.tensor([task for _, task, _ in rows]),
        torch.tensor([client for client, _, _ in rows]),
    )
    raw: dict[str, Any] = {"clients": clients, "tasks": 2, "scenario": "class", "class_order": "natural",
           "rounds": rounds, "partition": "subject", "batch": 100, "steps": 1, "workers": 1, "source": "custom",
           "model": "custom",
           "memory": {"per_task": 100, "sample": 100}, **settings}  # fmt: skip
    return Experiment(resolve(raw), Source("quadratic", split, split, 2), Linear([0.0]), half_square)


SIZES = ((1, 2), (2, 1), (1, 3))
"""How many samples clients 0, 1 and 2 have of tasks 1 and 2."""
TARGETS = ((1.0, 3.0), (2.0, -1.0), (4.0, 0.0))
ROWS = [(c, t, TARGETS[c][t]) for c in range(3) for t in range(2) for _ in range(SIZES[c][t])]
STAGGERED = {"kind": "staggered", "groups": 3, "every": 1}


def test_cflag_with_staggered_clients_by_hand() -> None:
    """With E = 1 and one component: x' = x − β g − α P m, where m is the mean over those who have a past, who are P.

    Client 0 switches after round 2, client 1 after round 3, client 2 after round 4. α = 0.1, β = 0.2.
    """
    cflag = {"alpha": 0.1, "beta": 0.2, "adapt": "off"}
    session = quadratic(ROWS, 3, method="cflag", cflag=cflag, schedule=STAGGERED).session()
    found, sizes, mixed = [], [], []
    for done in range(session.plan.total):
        session.play(done)
        found.append(session.server.params.item())
        sizes.append(tuple(session.server.sizes.values()))
        mixed.append(session.server.moment.mixed)
    assert sizes == [(1, 2, 1), (1, 2, 1), (2, 2, 1), (2, 1, 1), (2, 1, 3), (2, 1, 3)]
    assert mixed == [False, False, True, True, False, False]
    expected = [
        0.45,  # the mean of b is (1 + 4 + 4) / 4 = 2.25: x = 0.2 · 2.25
        0.81,  # 0.45 + 0.2 · (2.25 − 0.45)
        # b: (2·3 + 2·2 + 4) / 5 = 2.8, so g = −1.99; m = m_0 = 0.81 − 1 = −0.19 with P = 2/5
        0.81 + 0.2 * 1.99 + 0.1 * 0.4 * 0.19,  # = 1.2156
        # b: (2·3 − 1 + 4) / 4 = 2.25, so g = −1.0344; m = (2 · 0.2156 − 0.7844) / 3 with P = 3/4
        1.2156 + 0.2 * 1.0344 + 0.1 * 0.75 * 0.3532 / 3,  # = 1.43131
        # b: (2·3 − 1 + 0) / 6 = 5/6; m = x − (2·1 + 2 + 3·4) / 6 = x − 8/3, over all
        1.43131 - 0.2 * (1.43131 - 5 / 6) - 0.1 * (1.43131 - 8 / 3),
    ]
    expected.append(expected[4] - 0.2 * (expected[4] - 5 / 6) - 0.1 * (expected[4] - 8 / 3))
    assert found == pytest.approx(expected, abs=1e-12)


UNTOLD = [
    0.5,  # clients 0 and 2, with b = 1 and 4: g = −2.5, nobody has a past
    1.1,  # the same two: g = m = 0.5 − 2.5
    # task 2, clients 0 and 1 with b = 3 and −1: g = 0.1; m = m_0 = 1.1 − 1 with P = ½, as client 1 was never drawn
    1.1 - 0.2 * 0.1 - 0.1 * 0.5 * 0.1,  # = 1.075
    # clients 1 and 2 with b = −1 and 0: g = 1.575; what passed by them had b = −1 and 4: m = 1.075 − 1.5
    1.075 - 0.2 * 1.575 + 0.1 * 0.425,
]
ONLINE = [
    0.5,
    0.9,  # no task is left: 0.5 + 0.2 · 2
    0.9 + 0.2 * 0.1 + 0.1 * 0.5 * 0.1,  # = 0.925: g = m_0 = −0.1, P = ½
    0.925 - 0.2 * 1.425 + 0.1 * 0.575,
]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [({"boundaries": "none"}, UNTOLD), ({"kind": "online", "least": 1}, ONLINE)],
    ids=["untold", "online"],
)
def test_who_was_never_drawn_has_no_past_where_samples_pass_by(
    schedule: dict[str, Any], expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three clients take part in a round. With E = 1: x' = x − β g − α P m, as above, and p = ½ for each."""
    monkeypatch.setattr("cflag.session.Session.preview", lambda _: [])  # a test of residuals would say nothing
    cflag = {"alpha": 0.1, "beta": 0.2, "adapt": "off"}
    rows = [(c, t, TARGETS[c][t]) for c in range(3) for t in range(2) for _ in range(2)]
    session = quadratic(rows, 3, method="cflag", cflag=cflag, schedule=schedule, clients_per_round=2, seed=0,
                        memory={"kind": "reservoir", "per_task": 100, "sample": 100}).session()  # fmt: skip
    found, cohorts, mixed = [], [], []
    for done in range(4):
        session.play(done)
        cohorts.append(session.cohort())
        found.append(session.server.params.item())
        mixed.append(session.server.moment.mixed)
    assert cohorts == [[0, 2], [0, 2], [0, 1], [1, 2]]
    assert found == pytest.approx(expected, abs=1e-12)
    assert mixed == [False, False, True, False]


def test_memories_fill_when_their_own_client_leaves() -> None:
    experiment = quadratic(ROWS, 3, method="replay", replay={"lr": 0.1}, schedule=STAGGERED)
    session = experiment.session()
    held = []
    for done in range(session.plan.total):
        session.play(done)
        clients = session.engine.lanes[0].host.clients  # type: ignore[attr-defined]
        held.append([len(clients[number].memory) for number in range(3)])
    assert held == [[0, 0, 0], [1, 0, 0], [1, 2, 0], [1, 2, 1], [1, 2, 1], [3, 3, 4]]


def test_fishers_of_those_who_leave_add_up_to_one_task() -> None:
    """Every gradient of ½ (x − b)² is x − b; each group's Fisher counts by its part of the present samples."""
    ewc = {"lr": 0.1, "strength": 1e-9}
    session = quadratic(ROWS, 3, method="ewc", ewc=ewc, schedule=STAGGERED).session()
    fisher = 0.0
    leaving = {1: [(0, 1, 4)], 2: [(1, 2, 5)], 3: [(2, 1, 4)]}  # round: client, its samples, all samples
    for done in range(4):
        session.play(done)
        for client, size, total in leaving.get(done, []):
            fisher += size / total * (session.server.params.item() - TARGETS[client][0]) ** 2
        found = session.server.state.get("fisher", torch.zeros(1))
        assert found.item() == pytest.approx(fisher, rel=1e-6)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("method", ["ncm", "ridge"])
def test_sums_are_over_all_who_ever_began_whatever_the_clocks(kind: str, method: str) -> None:
    """Counts of classes add up to the samples of all clients in all tasks that they got."""
    experiment = Experiment(configured(kind, method))
    session = experiment.session()
    for done in range(session.plan.total):
        session.play(done)
    began = session.plan.first >= 0
    sizes = [experiment.benchmark.size(c, t) for c, t in np.argwhere(began).tolist()]
    assert session.server.state["counts"].sum().item() == pytest.approx(sum(sizes), rel=1e-5)


@pytest.mark.parametrize("heads", ["anyone", "own"])
def test_outputs_of_classes_that_nobody_has_seen_stay_as_they_are(heads: str) -> None:
    """One client has classes 0 and 1, the other 2 and 3, at the same time; 4 to 9 are nobody's yet."""
    lines = ["0,1,2,1", "1,1,2,2"]
    table = {"kind": "table", "lines": lines, "heads": heads}
    raw = {"tasks": 2, "clients": 2, "rounds": 2, "scenario": "class", "class_order": "natural", "workers": 1,
           "method": "finetune", "model": "linear", "schedule": table, "samples_per_class": 20}  # fmt: skip
    experiment = Experiment(resolve({"source": "digits", **raw}))
    session = experiment.session()
    session.enter(0)
    host = session.engine.lanes[0].host  # type: ignore[attr-defined]
    moved: list[Tensor] = []
    for number in range(2):
        session.engine.converse(experiment.method.round(session.server), session.server, [number])
        host.learner.load(session.server.params, session.server.buffers)
        moved.append(host.learner.model[-1].bias.detach().clone() != 0)
    first, second = set(range(5)), set(range(5, 10))
    own = [{k for k in range(10) if mask[k]} for mask in moved]
    assert own[0] == (first if heads == "own" else first | second)
    assert own[1] == first | second


@pytest.mark.parametrize("kind", APART)
@pytest.mark.parametrize("method", registry.names("method"))
def test_every_method_runs_under_every_schedule_or_says_why_not(kind: str, method: str) -> None:
    scenario = ("task", "class")[(list(KINDS).index(kind) + len(method)) % 2]  # each half of them: enough for a crash
    target = {"target.samples": 8, "target.generator_steps": 2, "target.student_steps": 2}
    if (kind, method) == ("online", "icarl"):
        with pytest.raises(UserError, match="pass by"):
            configured(kind, method)
        return
    session = Experiment(configured(kind, method, scenario=scenario, **target)).session()
    for done in range(session.plan.total):
        session.play(done)
        if session.is_milestone:
            right, _, total = session.evaluate(range(2)).sum((0, 1)).tolist()
            assert 0 <= right <= total > 0
    assert torch.isfinite(session.server.params).all()


@pytest.mark.parametrize("kind", APART)
def test_every_schedule_runs(kind: str, tmp_path: Path) -> None:
    changes = {f"schedule.{key}": value for key, value in KINDS[kind].items()}
    memory = {"memory.kind": "reservoir"} if kind == "online" else {}
    result = run("digits", out=tmp_path / "run", **{"schedule.kind": kind, **changes, **memory, **SMALL})
    assert result.config["schedule"]["kind"] == kind
    assert len(result.metrics) == make_schedule(resolve(result.config)).plan.total


# Protocols ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", protocol_names())
def test_protocols_resolve_and_their_plans_hold(name: str) -> None:
    config = load_config(name)
    assert make_schedule(config).plan.total >= config.tasks * config.rounds


def test_the_protocols_are_what_their_papers_say() -> None:
    glfc = make_schedule(load_config("protocol:glfc-paper")).plan
    present = [(glfc.latest(10 * task) >= 0).sum() for task in range(10)]
    assert present == [30, 40, 50, 60, 70, 80, 90, 100, 110, 120]
    lacking = [int((glfc.now(10 * task) < 0).sum() - (120 - present[task])) for task in range(10)]
    assert lacking == [0, 3, 4, 5, 6, 7, 8, 9, 10, 11]  # a tenth of those who were there before
    powder = make_schedule(load_config("protocol:powder")).plan
    switches = powder.first[:, 1]
    assert np.diff(np.unique(switches)).tolist() == [3, 3, 3, 3]
    assert np.bincount(switches).max() == 2


def test_options_of_a_benchmark_alone_are_enough_for_a_schedule() -> None:
    assert make_schedule(BenchmarkOptions(clients=3, tasks=2, rounds=4)).plan.total == 8
