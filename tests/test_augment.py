"""Samples are varied while they are learned from: the same everywhere, and never where they are kept or tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cflag import Result, register, registry, resume, run
from cflag.augmentations.base import USUAL, Augment, AugmentOptions
from cflag.augmentations.ours import crop, erase, flip, jitter, noise
from cflag.config import load_config
from cflag.data.load import load_source
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.learning.learner import Learner
from tests.support import quick
from tests.support.crashes import Crash, stop_after
from tests.support.grid import Fleet, local, numbers
from tests.support.quick import same
from tests.support.states import newest_states
from tests.support.tiny_backbones import register_tiny

pytestmark = pytest.mark.usefixtures("no_figures")

QUICK: dict[str, Any] = {**quick.QUICK, "workers": 1}
MUCH: dict[str, Any] = {"crop": 2, "flip": 0.5, "jitter": 0.3, "erase": 2, "noise": 0.1}


class Scripted:
    """Draws what it is told, to see by hand what becomes of a picture."""

    def __init__(self, *drawn: Any) -> None:
        self.drawn = list(drawn)

    def __getattr__(self, _: str) -> Any:
        return lambda *args, **kwargs: np.array(self.drawn.pop(0))


def test_a_flip_by_hand() -> None:
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]], [[[5.0, 6.0], [7.0, 8.0]]]])
    mirrored = flip(x, Scripted([0.4, 0.6]), 0.5)  # type: ignore[arg-type]
    assert mirrored.tolist() == [[[[2.0, 1.0], [4.0, 3.0]]], [[[5.0, 6.0], [7.0, 8.0]]]]


def test_a_crop_by_hand() -> None:
    """With a margin of 1 the window begins at row 0 (so black comes in above) and column 2 (black on the right)."""
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    moved = crop(x, Scripted([0], [2]), 1)  # type: ignore[arg-type]
    assert moved.tolist() == [[[[0.0, 0.0], [2.0, 0.0]]]]
    assert torch.equal(crop(x, Scripted([1], [1]), 1), x)  # type: ignore[arg-type]


def test_a_square_is_erased_by_hand() -> None:
    x = torch.ones(1, 1, 3, 4)
    left = erase(x, Scripted([0], [2]), 2)  # type: ignore[arg-type]  # rows -1 and 0, columns 1 and 2
    assert left[0, 0].tolist() == [[1, 0, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_jitter_and_noise_by_hand() -> None:
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])  # one signal of two channels
    assert jitter(x, Scripted([[2.0, 0.5]]), 1.0).tolist() == [[[2.0, 4.0], [1.5, 2.0]]]  # type: ignore[arg-type]
    drawn = np.array([[[1.0, 0.0], [-1.0, 2.0]]], np.float32)
    assert noise(x, Scripted(drawn), 0.5).tolist() == [[[1.5, 2.0], [2.5, 5.0]]]  # type: ignore[arg-type]


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([(1, 5, 7), (3, 4, 4)]))
def test_a_crop_is_a_move_of_the_picture(seed: int, most: int, shape: tuple[int, int, int]) -> None:
    """Found by trying all moves with a slow loop."""
    x = torch.rand(3, *shape) + 0.1
    height, width = shape[1:]
    for before, after in zip(x, crop(x, np.random.default_rng(seed), most), strict=True):
        moves = []
        for down in range(-most, most + 1):
            for right in range(-most, most + 1):
                moved = torch.zeros_like(before)
                for i in range(height):
                    for j in range(width):
                        if 0 <= i + down < height and 0 <= j + right < width:
                            moved[:, i, j] = before[:, i + down, j + right]
                moves.append(moved)
        assert any(torch.equal(after, moved) for moved in moves)


@pytest.mark.parametrize("name", ["crop", "flip", "jitter", "erase", "noise"])
def test_a_sample_does_not_depend_on_the_others(name: str) -> None:
    """What sample-level privacy needs: another sample in the batch changes none but its own row."""
    part = registry.get("augmentation", name)
    x = torch.rand(4, 3, 6, 6)
    other = x.clone()
    other[2] = torch.rand(3, 6, 6)
    one, two = (part(batch, np.random.default_rng(5)) for batch in (x, other))
    assert torch.equal(one[[0, 1, 3]], two[[0, 1, 3]])
    assert not torch.equal(part(x, np.random.default_rng(6)), one)


def test_bytes_become_numbers_from_0_to_1_just_as_without() -> None:
    """An augmentation that does nothing changes no bit of what the model is given."""
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert torch.equal(Augment(AugmentOptions(flip=1e-300))(x, np.random.default_rng(0)), x.float() / 255)


def seen_by_the_model(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return a list that takes all that gradients are computed on."""
    taken: list[Tensor] = []
    plain = Learner.value_and_grad

    def watched(self: Learner, samples: Any, loss: Any = None) -> Any:
        taken.append(samples.x.clone())
        return plain(self, samples, loss)

    monkeypatch.setattr(Learner, "value_and_grad", watched)
    return taken


ONE: dict[str, Any] = {"tasks": 1, "rounds": 2, "clients": 1, "batch": 400, "epochs": 2.0, "width": 8, "workers": 1,
                       "augment": {"crop": 1}}  # fmt: skip


def test_a_component_is_one_function_within_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full gradients at x_t, then a table that steps update: of each component always the same varied samples."""
    taken = seen_by_the_model(monkeypatch)
    run("digits", method="cflag", cflag={"estimator": "iag"}, out=tmp_path / "run", **ONE)
    rounds = np.array_split(np.array([hash(x.numpy().tobytes()) for x in taken]), 2)
    parts = -(-1440 // 400)
    assert len(rounds[0]) > parts  # they are visited again
    assert [len(set(hashes.tolist())) for hashes in rounds] == [parts, parts]
    assert not set(rounds[0].tolist()) & set(rounds[1].tolist())  # and another one in the next round


def test_a_step_of_others_sees_samples_varied_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = seen_by_the_model(monkeypatch)
    for name, amount in (("off", 0), ("on", 1)):
        own = {**ONE, "batch": 2000, "rounds": 1, "augment": {"crop": amount}}
        run("digits", method="finetune", out=tmp_path / name, **own)
    first, second, *varied = taken  # two passes over all samples at once, in one order
    assert torch.equal(first, second)
    assert not torch.equal(varied[0], varied[1])


def test_replayed_samples_are_varied_and_memories_hold_them_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = seen_by_the_model(monkeypatch)
    settings: dict[str, Any] = {**QUICK, "clients": 2, "memory": {"per_task": 40, "sample": 20}}
    run("digits", method="replay", augment={"crop": 2}, out=tmp_path / "run", **settings)
    known = {row.numpy().tobytes() for row in load_source("digits").train.x}
    held = [row for state in newest_states(tmp_path / "run").values() for row in state["memory.x"]]
    assert len(held) >= 80
    assert all(row.dtype == torch.uint8 and row.numpy().tobytes() in known for row in held)
    joined = [x for x in taken if len(x) > settings["batch"]]  # a mini-batch and as many of the memory
    assert joined
    old = torch.cat([x[settings["batch"] :] for x in joined])
    assert float(old.max()) <= 1.0
    unmoved = sum((255 * row).round().to(torch.uint8).numpy().tobytes() in known for row in old)
    assert unmoved < 0.3 * len(old)  # 1 of 25 moves is none; black margins hide some others


METHODS: list[dict[str, Any]] = [
    {"method": "cflag", "cflag": {"estimator": "iag"}},
    {"method": "cflag-shared"},
    {"method": "icarl", "scenario": "class"},
    {"method": "derpp"},
]


@pytest.mark.parametrize("settings", METHODS, ids=lambda settings: settings["method"])
def test_the_same_numbers_with_any_number_of_workers_and_after_a_kill(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: dict[str, Any] = {**QUICK, **settings, "augment": MUCH}
    run("digits", out=tmp_path / "one", **own)
    run("digits", out=tmp_path / "two", **{**own, "workers": 2})
    same(tmp_path / "one", tmp_path / "two")
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            run("digits", out=tmp_path / "killed", **own)
    resume(tmp_path / "killed")
    same(tmp_path / "one", tmp_path / "killed")
    run("digits", out=tmp_path / "plain", **{**own, "augment": {}})
    first, plain = (Result.load(tmp_path / name).metrics[0]["loss"] for name in ("one", "plain"))
    assert first != plain


def test_a_table_that_is_made_again_is_the_same(tmp_path: Path) -> None:
    """With room for one table only, clients lose what they computed for the first question of a round."""
    for name, room in (("much", 2**31), ("little", 30_000)):
        run("digits", out=tmp_path / name, table_bytes=room, cflag={"estimator": "iag"}, augment=MUCH, **QUICK)
    much, little = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("much", "little"))
    assert much == little


def test_a_fleet_has_the_numbers_of_one_machine(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, method="cflag", augment=MUCH)
    fleet.run()
    local(tmp_path, method="cflag", augment=MUCH)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_tests_see_samples_as_they_are(tmp_path: Path) -> None:
    result = run("digits", scenario="class", method="replay", augment=MUCH, out=tmp_path / "run", **QUICK)
    model, test = result.model(), load_source("digits").test
    for task, classes in enumerate(model.tasks):
        chosen = torch.isin(test.y, torch.tensor(classes))
        right = (model.predict(test.x[chosen]) == test.y[chosen]).double().mean()
        assert float(right) == result.accuracy_matrix[-1][task]


def test_a_function_of_ones_own(tmp_path: Path) -> None:
    @register("augmentation", "negative")
    def negative(x: Tensor, generator: np.random.Generator) -> Tensor:
        """Black for white."""
        return 1 - x

    @register("augmentation", "halved")
    def halved(x: Tensor, generator: np.random.Generator) -> Tensor:
        return x[::2]

    @register("augmentation", "broken")
    def broken(x: Tensor, generator: np.random.Generator) -> Tensor:
        raise ZeroDivisionError("oh")

    augment = Augment(AugmentOptions(own=("negative",)))
    assert augment(torch.tensor([51], dtype=torch.uint8), np.random.default_rng(0)).tolist() == pytest.approx([0.8])
    run("digits", augment={"own": ["negative"]}, out=tmp_path / "run", **QUICK)
    for name, why in (("halved", "returned .* for .*: keep both"), ("broken", "ZeroDivisionError: oh")):
        with pytest.raises(UserError, match=why):
            run("digits", augment={"own": [name]}, out=tmp_path / "other", **QUICK)


def test_what_is_usual_depends_on_the_source() -> None:
    assert set(USUAL) <= set(registry.names("source"))
    usual = AugmentOptions(usual=True)
    assert usual.for_source("cifar10").names == ("crop", "flip")
    assert usual.for_source("mnist").names == ("crop",)
    assert AugmentOptions(usual=True, crop=1).for_source("cifar10").crop == 1
    assert not load_config("digits").augment.on


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"augment": {"own": ["crup"]}}, r"unknown augmentation 'crup'; did you mean 'crop'"),
    ({"augment": {"usual": True}, "source": "sea"}, r"nobody knows what is usual for source 'sea'"),
    ({"augment": {"crop": 1}, "source": "stagger", "scenario": "domain", "tasks": 3}, r"augment.crop wants pictures"),
    ({"augment": {"flip": 0.5}, "scenario": "permuted"}, r"augment.flip is for pictures, which scenario 'permuted'"),
    ({"augment": {"flip": 1.5}}, r"augment.flip = 1.5 must be at most 1"),
    ({"augment": {"crop": -1}}, r"augment.crop = -1 must be at least 0"),
    ({"augment": {"noise": 0.1}, "backbone": "chain", "model": "linear"}, r"went through backbone 'chain' already"),
    ({"augment": {"noise": 0.1}, "backbone": "chain", "model": "linear", "trainable": ["layer2.*", "head"]},
     r"went through backbone 'chain' already"),
    ({"augment": {"own": ["noise"]}, "privacy": {"unit": "sample", "epsilon": 8.0}, "method": "finetune"},
     r"it may mix samples"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "why"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(
    settings: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path))
    register_tiny()
    with pytest.raises(UserError, match=why):
        Experiment(load_config("digits", **settings))


def test_pictures_of_a_backbone_that_trains_as_a_whole_are_varied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path / "data"))
    register_tiny()
    taken = seen_by_the_model(monkeypatch)
    whole: dict[str, Any] = {"backbone": "chain", "model": "linear", "trainable": "all", "method": "finetune"}
    run("digits", out=tmp_path / "run", **{**ONE, **whole, "augment": {"crop": 2}, "rounds": 1})
    assert taken[0].dtype == torch.float32
