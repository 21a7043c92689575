"""Without boundaries: prequential accuracy, memories that fill as samples pass by, drift that clients notice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cflag import Experiment, registry, run
from cflag.checkpoint import restore_checkpoint
from cflag.config import resolve
from cflag.data.benchmark import Benchmark
from cflag.data.load import load_source
from cflag.data.options import BenchmarkOptions, ScheduleOptions
from cflag.data.samples import Samples
from cflag.data.source import Source, Split
from cflag.errors import DataError, UserError
from cflag.launch import resume
from cflag.learning.drift import Watch
from cflag.memory.base import MemoryOptions
from cflag.memory.reservoir import Reservoir
from cflag.rng import stream
from tests.support.crashes import Crash, stop_in
from tests.support.grid import Fleet, local, numbers
from tests.support.quick import QUICK, same, without_times

pytestmark = pytest.mark.usefixtures("no_figures")

FREE: dict[str, Any] = {
    **QUICK, "clients": 2, "scenario": "class", "steps": 6, "workers": 1, "samples_per_class": 30, "rounds": 3,
    "memory": {"kind": "reservoir", "per_task": 20, "sample": 10},
}  # fmt: skip


def untold(**settings: Any) -> dict[str, Any]:
    return {"source": "digits", **FREE, "schedule": {"boundaries": "none"}, **settings}


# The domain scenario ------------------------------------------------------------------------------------------------


def in_three_domains() -> Source:
    """Sample k has x = k, label k % 2 and task k % 3."""
    k = torch.arange(24)
    half = (k[:, None].float(), k % 2)
    return Source.from_tensors(half, half, tasks=(k % 3, k % 3))


def test_a_domain_task_has_the_samples_that_say_so() -> None:
    options = BenchmarkOptions(scenario="domain", tasks=3, clients=2, partition="iid")
    benchmark = Benchmark(in_three_domains(), options)
    for task in range(3):
        for cut in (benchmark.train, benchmark.test):
            x = torch.cat([cut(client, task).x.flatten() for client in range(2)]).sort().values
            assert x.tolist() == list(range(task, 24, 3))
    assert benchmark.spec.tasks == ((0, 1),) * 3
    assert not benchmark.spec.by_task


def test_a_subset_keeps_as_many_of_each_class_and_domain() -> None:
    options = BenchmarkOptions(scenario="domain", tasks=3, clients=1, partition="iid", samples_per_class=3)
    benchmark = Benchmark(in_three_domains(), options)
    for task in range(3):
        assert benchmark.train(0, task).y.bincount().tolist() == [3, 3]
        assert (benchmark.train(0, task).x.flatten() % 3 == task).all()


def test_fewer_tasks_than_domains_leave_the_others_out() -> None:
    benchmark = Benchmark(in_three_domains(), BenchmarkOptions(scenario="domain", tasks=2, clients=1, partition="iid"))
    assert sum(benchmark.size(0, task) for task in range(2)) == 16


def test_what_domain_refuses() -> None:
    plain = in_three_domains()
    half = Split(plain.train.x, plain.train.y)
    with pytest.raises(UserError, match="such as 'sea'; custom does not"):
        Benchmark(replace(plain, train=half), BenchmarkOptions(scenario="domain", tasks=3, clients=1))
    with pytest.raises(UserError, match="tasks = 4 is more than the 3 that custom has"):
        Benchmark(plain, BenchmarkOptions(scenario="domain", tasks=4, clients=1))
    with pytest.raises(DataError, match="a number from 0 per sample"):
        replace(plain, test=replace(plain.test, task=torch.arange(3)))


# Streams from river -------------------------------------------------------------------------------------------------


def test_stagger_has_its_three_concepts() -> None:
    """Bits 0-2 are the size (small, medium, large), 3-5 the colour (red, blue, green), 6-8 the shape (circle, ...)."""
    source = load_source("stagger")
    for half in (source.train, source.test):
        assert half.task is not None
        small, medium, large, red, _, green, circle, *_ = half.x.bool().T
        concepts = [small & red, green | circle, medium | large]
        for task, concept in enumerate(concepts):
            chosen = half.task == task
            assert (half.y[chosen].bool() == concept[chosen]).all()
    assert (source.train.x.sum(1) == 3).all()
    assert source.train.task is not None
    assert source.train.task.bincount().tolist() == [2000] * 3


def test_sea_has_its_four_thresholds_and_a_tenth_of_noise() -> None:
    source = load_source("sea")
    assert source.train.task is not None
    for task, threshold in enumerate((8, 9, 7, 9.5)):
        chosen = source.train.task == task
        concept = source.train.x[chosen, :2].sum(1) > threshold
        wrong = (concept != source.train.y[chosen].bool()).float().mean().item()
        assert wrong == pytest.approx(0.1, abs=0.012)  # four standard deviations of 10,000 draws


def test_led_moves_more_lamps_with_every_concept() -> None:
    """A lamp that tells digits apart is one whose frequency depends on the digit."""
    source = load_source("led")
    assert source.train.task is not None
    moved = []
    first: set[int] = set()
    for task in range(5):
        chosen = source.train.task == task
        x, y = source.train.x[chosen], source.train.y[chosen]
        spread = torch.stack([x[y == digit].mean(0) for digit in range(10)]).std(0)
        telling = set(torch.nonzero(spread > 0.15).flatten().tolist())
        assert len(telling) == 7
        first = first or telling
        moved.append(len(first - telling))
    assert moved == [0, 1, 3, 5, 7]


def test_a_missing_river_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "river.datasets", None)
    with pytest.raises(UserError, match=r"made by river, which is missing: pip install 'cflag\[streams\]'"):
        load_source("sea")
    monkeypatch.setattr("cflag.checks.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"needs river: pip install 'cflag\[streams\]'"):
        resolve({**FREE, "method": "replay", "schedule": {"boundaries": "detected"}})


# Prequential accuracy, by hand --------------------------------------------------------------------------------------


class Sign(nn.Module):
    """Answers 1 where x > θ: its scores are (θ, x). At first θ = 0."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.theta.expand(len(x), 1), x], 1)


def of_six(**settings: Any) -> Experiment:
    """One client, one task; its six samples come in two rounds of three."""
    x, y = torch.tensor([[2.0], [-1.0], [3.0], [-2.0], [1.0], [-3.0]]), torch.tensor([1, 1, 1, 0, 0, 0])
    raw = {"clients": 1, "tasks": 1, "rounds": 2, "method": "finetune", "source": "custom", "model": "custom",
           "scenario": "domain", "partition": "iid", "batch": 3, "steps": 1, "workers": 1,
           "schedule": {"kind": "online", "least": 1}, **settings}  # fmt: skip
    ids = torch.zeros(6, dtype=torch.long)
    return Experiment(resolve(raw), Source.from_tensors((x, y), (x, y), tasks=(ids, ids)), Sign())


def test_prequential_accuracy_of_a_known_model_on_six_samples(tmp_path: Path) -> None:
    """θ = 0 answers 2, −1, 3 with 1, 0, 1, two of which are right: all three are 1.

    By θ the loss of x has the slope p₀ = 1 / (1 + e^(x − θ)), less one for a 0. Over these it is the mean of 0.1192,
    0.7311 and 0.0474: 0.2992. With lr = 5 θ becomes −1.496, and answers −2, 1, −3 with 0, 1, 0; all three are 0.
    """
    experiment = of_six(finetune={"lr": 5.0})
    assert experiment.benchmark.train(0, 0).x.flatten().tolist() == [2, -1, 3, -2, 1, -3]
    experiment.run(tmp_path / "run")
    assert [line["prequential"] for line in without_times(tmp_path / "run")] == [2 / 3, 2 / 3]


@pytest.mark.parametrize(("lr", "second"), [(5.0, 2 / 3), (10.0, 1 / 3), (30.0, 0.0)])
def test_the_second_round_is_tested_with_what_the_first_taught(lr: float, second: float, tmp_path: Path) -> None:
    """θ = −0.2992 lr: −2.992 lies between −2 and −3, so one is right; beyond −3, none."""
    of_six(finetune={"lr": lr}).run(tmp_path / "run")
    lines = without_times(tmp_path / "run")
    assert [line["prequential"] for line in lines] == [2 / 3, second]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [figure["name"] for figure in result["figures"]] == ["stream"]
    assert result["measures"]["all"]["prequential"] == pytest.approx((2 / 3 + second) / 2)


def test_prequential_is_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it everything else is the same, costs included."""
    with_, without = tmp_path / "with", tmp_path / "without"
    settings = {**FREE, "method": "cflag", "schedule": {"boundaries": "none"}}
    run("digits", out=with_, **settings)
    monkeypatch.setattr("cflag.session.Session.preview", lambda _: [])
    run("digits", out=without, **settings)
    lines = without_times(with_)
    assert all(0 <= line.pop("prequential") <= 1 for line in lines)
    assert lines == without_times(without)


def test_runs_that_are_told_have_none(tmp_path: Path) -> None:
    run("digits", out=tmp_path / "run", **{**FREE, "method": "replay"})
    assert all("prequential" not in line for line in without_times(tmp_path / "run"))
    assert not json.loads((tmp_path / "run" / "result.json").read_text())["figures"]


def test_private_runs_have_none(tmp_path: Path) -> None:
    private = {"privacy": {"unit": "client", "clip": 1.0, "noise": 1.0}, "schedule": {"boundaries": "none"}}
    run("digits", out=tmp_path / "run", **{**FREE, "method": "replay", **private})
    assert all("prequential" not in line for line in without_times(tmp_path / "run"))


def test_a_client_that_lies_counts_as_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(client: Any, predict: Any) -> None:
        client.log(right=10**9 if client.number else "all", tested=10**9, noticed=1)

    monkeypatch.setattr("cflag.client.Client.preview", lie)
    run("digits", out=tmp_path / "run", **{**FREE, "method": "replay", "schedule": {"boundaries": "none"}})
    for line in without_times(tmp_path / "run"):
        assert 0 < line["prequential"] < 1  # client 1's samples all right, client 0's none
        assert "noticed" not in line  # nobody asked


# Memories -----------------------------------------------------------------------------------------------------------


def test_a_reservoir_that_samples_pass_by_is_one_pass_over_the_stream(tmp_path: Path) -> None:
    """One client: three rounds' samples, each taken in with that round's own random stream."""
    settings = {**FREE, "method": "replay", "clients": 1, "tasks": 1,
                "schedule": {"kind": "online", "boundaries": "none", "least": 1}}  # fmt: skip
    experiment = Experiment(resolve({"source": "digits", **settings}))
    session = experiment.session()
    whole, sizes = experiment.benchmark.train(0, 0), []
    slow: list[int] = []
    seen = 0
    for done in range(3):
        session.play(done)
        part = experiment.benchmark.schedule.portion(len(whole), done)
        sizes.append(len(part))
        rng = stream(experiment.config.seed, "remember", 0, 0, done)
        for k in part:
            seen += 1
            if len(slow) < 20:
                slow.append(k)
            elif (slot := int(rng.integers(seen))) < 20:
                slow[slot] = k
    client = session.engine.lanes[0].host.clients[0]  # type: ignore[attr-defined]
    assert sum(sizes) == len(whole)
    assert torch.equal(client.memory.samples.x, whole.x[slow])
    assert client.memory.seen == len(whole)


def test_a_reservoir_does_not_care_how_a_stream_is_cut() -> None:
    samples = Samples(torch.arange(50.0)[:, None], torch.zeros(50, dtype=torch.long), torch.zeros(50, dtype=torch.long))
    kept = []
    for cut in (50, 7):
        memory, rng = Reservoir(MemoryOptions(per_task=8, sample=4)), np.random.default_rng(3)
        for part in samples.split(cut):
            memory.add(part, rng)
        assert memory.samples is not None
        kept.append(memory.samples.x)
    assert torch.equal(*kept)


def test_a_past_begins_with_the_first_samples_in_memory() -> None:
    """Round 1 has no past; from round 2 on m is there although nobody ended a task."""
    session = Experiment(resolve(untold(method="cflag"))).session()
    asked: list[str] = []
    for name in ("begin_task", "end_task"):
        original = getattr(session.method, name)

        def noting(server: Any, name: str = name, original: Any = original) -> Any:
            asked.append(f"{name} {server.done}")
            return original(server)

        setattr(session.method, name, noting)
    moments = []
    for done in range(6):
        session.play(done)
        moments.append((session.server.moment.seen, session.server.moment.left))
    assert asked == ["begin_task 0"]
    assert moments == [((0,), ())] + 2 * [((0,), (0,))] + [((0, 1), (0,))] + 2 * [((0, 1), (0, 1))]


def test_current_classes_are_those_of_the_samples() -> None:
    """Where nobody tells the task, ER-ACE's own outputs are the labels at hand, not the task's."""
    session = Experiment(resolve(untold(method="er-ace"))).session()
    session.play(0)
    client = session.engine.lanes[0].host.clients[0]  # type: ignore[attr-defined]
    label = int(client.data.y[0])
    client.data = client.data[client.data.y == label]
    outputs = torch.randn(len(client.data), 10)
    assert client.own_loss(outputs, client.data).item() == 0.0  # one class only: its probability is one
    client.own = None
    assert client.own_loss(outputs, client.data).item() > 0


# Drift --------------------------------------------------------------------------------------------------------------


def river_says(kind: str, losses: list[float]) -> list[int]:
    """Return the places at which river's own detector, fed once, sees a change."""
    from river import drift

    detector = {"adwin": drift.ADWIN(), "kswin": drift.KSWIN(seed=0), "page-hinkley": drift.PageHinkley(mode="up")}
    places = []
    for place, loss in enumerate(losses):
        detector[kind].update(loss)
        if detector[kind].drift_detected:
            places.append(place)
    return places


@pytest.mark.parametrize("kind", ["adwin", "kswin", "page-hinkley"])
def test_a_step_is_noticed_at_the_sample_at_which_river_does(kind: str) -> None:
    """Fed in rounds of 40, from saved losses alone."""
    rng = np.random.default_rng(5)
    losses = np.concatenate([rng.normal(0.3, 0.05, 200), rng.normal(1.7, 0.05, 120)]).astype(np.float32)
    watch = Watch(ScheduleOptions(boundaries="detected", detector=kind))  # type: ignore[arg-type]
    kept, noticed = None, []
    for start in range(0, 320, 40):
        kept, place = watch.look(kept, torch.from_numpy(losses[start : start + 40]))
        noticed += [] if place is None else [start + place]
    assert noticed[:1] == river_says(kind, losses.tolist())[:1]
    assert 200 <= noticed[0] < 280


def test_a_loss_that_falls_is_no_drift() -> None:
    losses = torch.cat([torch.full((200,), 2.0), torch.full((200,), 0.1)]) + 0.01 * (torch.arange(400) % 3)
    assert river_says("adwin", losses.tolist())
    assert Watch(ScheduleOptions(boundaries="detected")).look(None, losses)[1] is None


def test_a_client_keeps_no_more_losses_than_its_window() -> None:
    watch = Watch(ScheduleOptions(boundaries="detected", detector_window=100))
    kept, _ = watch.look(None, torch.rand(90))
    assert len(kept) == 90
    kept, _ = watch.look(kept, last := torch.rand(90))
    assert torch.equal(kept[-90:], last)
    assert len(kept) == 100


def detected(**settings: Any) -> dict[str, Any]:
    return {**FREE, "samples_per_class": 60, "steps": 15, "schedule": {"boundaries": "detected"}, **settings}


@pytest.mark.parametrize("detector", ["adwin", "kswin"])
def test_clients_notice_new_classes_and_the_method_hears_of_it(detector: str) -> None:
    """EWC has a Fisher after the first round of the second task, and none before."""
    schedule = {"boundaries": "detected", "detector": detector}
    experiment = Experiment(resolve({"source": "digits", **detected(method="ewc", clients=1, schedule=schedule)}))
    session = experiment.session()
    noticed = []
    for done in range(6):
        session.play(done)
        noticed.append(session.engine.settle().noticed)
        assert ("fisher" in session.server.state) == (done >= 3)
    assert noticed == [[], [], [], [0], [], []]


def test_boundaries_are_for_those_who_noticed() -> None:
    """Two of three clients notice: end_task and begin_task go to them, with their share of the samples."""
    experiment = Experiment(resolve({"source": "digits", **detected(method="ewc", clients=3)}))
    session = experiment.session()
    session.play(0)
    heard: list[tuple[list[int], float]] = []
    session.preview = lambda: [0, 2]  # type: ignore[method-assign]
    converse = session.engine.converse_around

    def noting(conversation: Any, server: Any, cohort: Any = None) -> None:
        heard.append((cohort, server.part))
        converse(conversation, server, cohort)

    session.engine.converse_around = noting  # type: ignore[method-assign]
    session.play(1)
    sizes = session.server.sizes
    part = (sizes[0] + sizes[2]) / sum(sizes.values())
    assert heard[-2:] == [([0, 2], part)] * 2  # before them, samples pass by everyone


def test_a_killed_run_with_detection_goes_on_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = detected(method="lwf", zeta=1.0)
    run("digits", out=tmp_path / "whole", **settings)
    assert any("noticed" in line for line in without_times(tmp_path / "whole"))
    for place in (4, 5):
        out = tmp_path / f"killed-{place}"
        stop_in(place, monkeypatch)
        with pytest.raises(Crash):
            run("digits", out=out, **settings)
        monkeypatch.undo()
        monkeypatch.setattr("cflag.results.folder.draw", lambda *_: None)
        resume(out)
        same(out, tmp_path / "whole")


def test_a_killed_run_knows_who_was_drawn_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-FLAG asks those for m by whom samples have passed, and two of five clients take part in a round."""
    settings = {**untold(method="cflag"), "clients": 5, "clients_per_round": 2}
    run("digits", out=tmp_path / "whole", **settings)
    stop_in(3, monkeypatch)
    with pytest.raises(Crash):
        run("digits", out=tmp_path / "cut", **settings)
    monkeypatch.undo()
    monkeypatch.setattr("cflag.results.folder.draw", lambda *_: None)
    resume(tmp_path / "cut")
    same(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.slow
def test_on_led_drift_is_noticed_where_and_when_it_comes() -> None:
    """One of seven lamps changes its place, for client 0 in the fourth round, for client 1 in the fifth."""
    raw = {"source": "led", "scenario": "domain", "tasks": 2, "clients": 2, "rounds": 3, "method": "replay",
           "model": "linear", "partition": "iid", "batch": 20, "epochs": 4, "samples_per_class": 100, "workers": 1,
           "test_per_class": 10, "memory": {"kind": "reservoir"}, "replay": {"lr": 0.5},
           "schedule": {"kind": "staggered", "boundaries": "detected", "detector_threshold": 0.2}}  # fmt: skip
    session = Experiment(resolve(raw)).session()
    noticed = []
    for done in range(session.plan.total):
        session.play(done)
        noticed.append(session.engine.settle().noticed)
    assert noticed == [[], [], [], [0], [1], [], []]


def test_workers_change_nothing(tmp_path: Path) -> None:
    for workers in (1, 2):
        run("digits", out=tmp_path / str(workers), **{**detected(method="cflag", clients=3), "workers": workers})
    same(tmp_path / "1", tmp_path / "2")


def test_a_fleet_gives_the_same_numbers(tmp_path: Path) -> None:
    """Also where a process lives for one message: a detector is what a client's state says."""
    settings = {key: value for key, value in detected(method="replay", rounds=2).items() if key != "workers"}
    fleet = Fleet(tmp_path, keeps=False, **settings)
    for node in fleet.nodes:
        node.spoil = lambda asked, reply, node=node: (node.restart(), reply)[1]  # type: ignore[misc]
    fleet.run()
    local(tmp_path, **settings)
    assert numbers(fleet.path) == numbers(tmp_path / "local")
    assert any("noticed" in line for line in fleet.records())


def test_losses_kept_for_the_detector_are_saved(tmp_path: Path) -> None:
    """A session brought back from its checkpoint has the clients' losses; fresh detectors would notice elsewhere."""
    experiment = Experiment(resolve({"source": "digits", **detected(method="finetune", clients=1)}))
    experiment.run(tmp_path / "run")
    from cflag.results.folder import RunFolder

    session = experiment.session()
    history = restore_checkpoint(RunFolder.open(tmp_path / "run"), experiment._numbers(), session, print)
    assert history is not None
    host = session.engine.lanes[0].host  # type: ignore[attr-defined]
    client = host.client(0, 1, session.engine.files.get(0))  # type: ignore[attr-defined]
    assert client.watched is not None
    assert len(client.watched) > 0


# All methods --------------------------------------------------------------------------------------------------------

REFUSED = {"none": ("ewc", "icarl", "lwf", "target"), "detected": ("icarl",)}


@pytest.mark.parametrize("boundaries", ["none", "detected"])
@pytest.mark.parametrize("method", registry.names("method"))
def test_every_method_runs_or_says_why_not(method: str, boundaries: str, tmp_path: Path) -> None:
    settings = {**FREE, "method": method, "schedule": {"boundaries": boundaries}, "rounds": 2, "steps": 3}
    if method == "target":
        settings |= {"target": {"samples": 8, "batch": 8, "generator_steps": 2, "student_steps": 2}, "model": "cnn"}
    if method in REFUSED[boundaries]:
        with pytest.raises(UserError) as refused:
            run("digits", out=tmp_path / "run", **settings)
        assert "\n" not in str(refused.value)
        assert method in str(refused.value)
        return
    result = run("digits", out=tmp_path / "run", **settings)
    assert len(result.metrics) == 4
    assert all(0 <= line["prequential"] <= 1 for line in result.metrics)


@pytest.mark.parametrize("kind", ["staggered", "own-order", "joining", "online", "blurry"])
def test_no_boundaries_under_every_schedule(kind: str) -> None:
    """Rounds are played, and a task's end is never said."""
    raw = {"source": "digits", **FREE, "method": "cflag", "schedule": {"kind": kind, "boundaries": "none"}}
    session = Experiment(resolve(raw)).session()
    session.method.end_task = None  # type: ignore[assignment, method-assign]
    for done in range(session.plan.total):
        session.play(done)
    assert torch.isfinite(session.server.params).all()


def test_a_cohort_may_have_memories_that_are_still_empty() -> None:
    """A client that was never drawn has nothing to remember; a round with such clients alone is a plain one."""
    raw = {"source": "digits", **FREE, "method": "cflag", "clients": 6, "clients_per_round": 1,
           "schedule": {"boundaries": "none"}}  # fmt: skip
    session = Experiment(resolve(raw)).session()
    for done in range(6):
        session.play(done)
    assert torch.isfinite(session.server.params).all()


DETECTED = {"schedule": {"boundaries": "detected"}}
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"memory": {"kind": "ring"}}, "with boundaries = 'none' samples pass by; set memory.kind = 'reservoir'"),
    ({"scenario": "task"}, "scenario 'task' tells the task of every sample, which schedule.boundaries = 'none' does"),
    ({"average_tail": 0.5}, "average_tail"),
    ({**DETECTED, "privacy": {"unit": "client", "clip": 1.0, "noise": 1.0}}, "[privacy] forbids"),
    ({**DETECTED, "secure": True, "engine": "flower-sim", "clients": 3}, "secure = true forbids"),
    ({"schedule": {"boundaries": "detected", "detector_threshold": 1.5}}, "must be at least 0 and below 1"),
    ({"schedule": {"boundaries": "detected", "detector_window": 10}}, "must be at least 100"),
    ({"schedule": {"boundaries": "guessed"}}, "must be 'told' or 'none' or 'detected'"),
]


@pytest.mark.parametrize(("settings", "line"), REFUSALS)
def test_what_is_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as refused:
        Experiment(resolve(untold(**{"method": "replay", **settings})))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
