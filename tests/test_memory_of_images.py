"""Memories of pictures instead of features: other bytes, and the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cflag import run
from cflag.backbones.base import Backbone
from cflag.backbones.features import BATCH, Extractor
from cflag.build import build_benchmark
from cflag.cli import main
from cflag.config import load_config
from cflag.engines.host import host_of
from cflag.errors import UserError
from cflag.launch import resume
from tests.support.crashes import Crash, stop_after
from tests.support.grid import Fleet, numbers
from tests.support.quick import without_times
from tests.support.states import newest_states
from tests.support.tiny_backbones import chain, passed, register_tiny

pytestmark = pytest.mark.usefixtures("no_figures")

PICTURE, FEATURES, REST = 8 * 8, 4 * 6 * 3 * 3, 8 + 8
"""Bytes of a digit, of what comes out below layer2, and of a label and a task."""
RUN: dict[str, Any] = {"backbone": "chain", "trainable": ["layer2", "head"], "model": "linear", "samples_per_class": 20,
                       "test_per_class": 10, "tasks": 3, "rounds": 2, "clients": 2, "method": "replay"}  # fmt: skip


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path / "data"))
    register_tiny()


def memory(of: str, **own: Any) -> dict[str, Any]:
    return {"memory": {"per_task": 12, "sample": 6, "of": of, **own}}


def both(folder: Path, **settings: Any) -> tuple[Path, Path]:
    """Run with features and with images in memories."""
    for of in ("features", "images"):
        run("digits", out=folder / of, **{"workers": 1, **RUN, **memory(of), **settings})
    return folder / "features", folder / "images"


def states(path: Path) -> list[dict[str, Any]]:
    """The newest state of each client."""
    return list(newest_states(path).values())


def held(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["memory", "list", str(path), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"trainable": "head", "half_features": True},
        {"method": "icarl"},
        {"method": "joint"},
        {"method": "derpp"},
        {"method": "cflag", "scenario": "permuted", "trainable": "head"},
    ],
    ids=lambda own: "-".join(map(str, own.values())) or "plain",
)
def test_numbers_do_not_depend_on_what_is_kept_also_after_a_kill(own: dict[str, Any], tmp_path: Path) -> None:
    features, images = both(tmp_path, **own)
    assert numbers(features) == numbers(images)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            run("digits", out=tmp_path / "killed", workers=1, **{**RUN, **memory("images"), **own})
    resume(tmp_path / "killed")
    assert numbers(features) == numbers(tmp_path / "killed")
    assert len(states(images)) == 2
    for state in states(images):
        assert state["memory.x"].dtype == torch.uint8
        assert tuple(state["memory.x"].shape[1:]) == (1, 8, 8)
        assert "memory.picture" not in state


def test_a_reservoir_too_and_clients_that_move_between_workers(tmp_path: Path) -> None:
    moving: dict[str, Any] = {"clients": 4, "clients_per_round": 2, "rounds": 3}
    for of, workers in (("features", 1), ("images", 2)):
        run("digits", out=tmp_path / of, workers=workers, **{**RUN, **moving, **memory(of, kind="reservoir")})
    assert numbers(tmp_path / "features") == numbers(tmp_path / "images")


def test_a_fleet_agrees(tmp_path: Path) -> None:
    own = {**RUN, "tasks": 2, **memory("images")}
    fleet = Fleet(tmp_path, min_clients=2, **own)
    fleet.run()
    run("digits", out=tmp_path / "local", workers=1, **{"width": 8, "epochs": 1, **own, **memory("features")})
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_bytes_are_those_of_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features, images = both(tmp_path)
    count = 2 * 3 * 12
    assert sum(len(state["memory.y"]) for state in states(images)) == count
    for path, each in ((features, FEATURES + REST), (images, PICTURE + REST)):
        assert f'"bytes": {count * each}' in json.dumps(held(path, capsys))


def test_limits_count_pictures(tmp_path: Path) -> None:
    room = 10 * (PICTURE + REST)
    run("digits", out=tmp_path / "run", workers=1, **{**RUN, **memory("images", limit_bytes=room)})
    assert [len(state["memory.y"]) for state in states(tmp_path / "run")] == [10, 10]
    with pytest.raises(UserError, match=r"memory\.sample = 6 is larger than the memory's limit of 3 samples"):
        run("digits", workers=1, out=tmp_path / "less", **{**RUN, **memory("features", limit_bytes=room)})
    assert room // (FEATURES + REST) == 3


def test_a_picture_is_encoded_once_in_a_process(tmp_path: Path) -> None:
    x = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    extractor = Extractor(Backbone("chain", chain(), 8), tmp_path)
    passed.clear()
    first = extractor.encode(x[:5])
    assert torch.equal(extractor.encode(x[[4, 2, 2]]), first[[4, 2, 2]])
    assert passed == [BATCH]
    assert torch.equal(extractor.encode(x[3:7]), extractor.features(x[3:7]))


def test_a_forgotten_picture_is_neither_kept_nor_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the bytes of the picture itself, which whoever asks has, unlike features."""
    out, own = tmp_path / "run", {**RUN, **memory("images")}
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            run("digits", out=out, workers=1, **own)
    kept = newest_states(out)[0]["memory.x"][0]
    np.save(tmp_path / "x.npy", kept.numpy())
    assert main(["memory", "forget", str(out), "--sample-file", str(tmp_path / "x.npy")]) == 0
    capsys.readouterr()
    resume(out)
    assert not any(torch.equal(kept, x) for state in states(out) for x in state["memory.x"])
    host = host_of(load_config("digits", **own))
    host.keeper.watch(out)
    dealt = host.benchmark.train(0, 0)
    assert dealt.picture is not None
    assert any(torch.equal(kept, picture) for picture in dealt.picture)
    allowed = host.client(0, 0).data
    assert allowed.picture is not None
    assert len(allowed) == len(dealt) - 1
    assert not any(torch.equal(kept, picture) for picture in allowed.picture)


@pytest.mark.parametrize("own", [{"backbone": ""}, {"trainable": "all"}, {"backbone": "block"}])
def test_where_samples_are_pictures_both_are_the_same(own: dict[str, Any], tmp_path: Path) -> None:
    plain = {**RUN, **own} if own.get("backbone", "chain") else {**RUN, **own, "trainable": "all"}
    assert not build_benchmark(load_config("digits", **plain, **memory("images"))).has_pictures
    features, images = both(tmp_path, **plain)
    assert without_times(features) == without_times(images)
