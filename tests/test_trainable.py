"""A part of a model trains: the same parameters as in a network of one piece, and nothing else travels or changes."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from cflag import Client, FedAvg, Samples, Source, register, run
from cflag.backbones import features as extraction
from cflag.backbones.base import Backbone
from cflag.build import build_benchmark, build_learner
from cflag.config import CUSTOM, Config, load_config, resolve
from cflag.data.heads import Heads
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.launch import resume
from cflag.learning.learner import Learner
from cflag.models.lora import Lora, add_adapters, merged
from cflag.models.options import LoraOptions, ModelOptions
from cflag.models.small import cnn, cosine
from cflag.models.trainable import Joined, choose
from tests.support.crashes import Crash, stop_after
from tests.support.grid import Fleet, local, numbers
from tests.support.quick import same
from tests.support.tiny_backbones import chain, passed, register_tiny

pytestmark = pytest.mark.usefixtures("no_figures")

TRAIN, TEST, CLASSES, LR, STEPS = 24, 12, 3, 0.5, 8


@pytest.fixture(autouse=True)
def _backbones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path / "data"))
    register_tiny()


def pictures() -> Source:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(TRAIN + TEST) % CLASSES
    noise = torch.randint(0, 100, (TRAIN + TEST, 3, 8, 8), generator=generator)
    x = (noise + 70 * y[:, None, None, None]).to(torch.uint8)
    return Source.from_tensors((x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:]), "own")


ONE: dict[str, Any] = {"model": "linear", "method": "finetune", "clients": 1, "tasks": 1, "rounds": 1, "workers": 1,
                       "batch": 100, "steps": STEPS, "scenario": "class", "class_order": "natural",
                       "finetune": {"lr": LR}}  # fmt: skip
"""One client's full-batch gradient descent."""


def descent(trained: tuple[str, ...]) -> dict[str, Tensor]:
    """The same by hand: a network of one piece, flags on its parameters, and torch's own optimizer."""
    head = nn.Linear(4, CLASSES)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    network = nn.Sequential(OrderedDict([*chain().named_children(), ("head", nn.Sequential(nn.Flatten(), head))]))
    network.eval()
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in trained)
    source = pictures()
    x, y = source.train.x.float() / 255 / 0.5, source.train.y
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], LR)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
    return dict(network.state_dict())


HEAD = ("head.1.weight", "head.1.bias")
LAYER2 = ("layer2.0.weight", "layer2.1.weight", "layer2.1.bias")
NORM = tuple(f"{part}.1.{what}" for part in ("stem", "layer1", "layer2") for what in ("weight", "bias"))
ALL = (*HEAD, *LAYER2, *NORM, "stem.0.weight", "stem.0.bias", "layer1.0.weight", "layer1.0.bias")


@pytest.mark.parametrize("backbone", ["chain", "block"])
@pytest.mark.parametrize(
    ("trainable", "trained"),
    [
        (["layer2.*", "head"], (*LAYER2, *HEAD)),
        (["layer2", "head"], (*LAYER2, *HEAD)),
        (["layer2.1.weight", "head"], ("layer2.1.weight", *HEAD)),
        (["layer1.0.bias", "head.1.weight"], ("layer1.0.bias", "head.1.weight")),
        (["norm", "head"], (*NORM, *HEAD)),
        ("all", ALL),
    ],
)
def test_a_cut_network_learns_what_one_of_one_piece_does(
    backbone: str, trainable: Any, trained: tuple[str, ...], tmp_path: Path
) -> None:
    """Frozen parameters and all statistics of batch norms are to the bit as they were."""
    run(source=pictures(), backbone=backbone, trainable=trainable, out=tmp_path / "run", **ONE)
    found, expected, first = load_file(tmp_path / "run" / "model.safetensors"), descent(trained), chain().state_dict()
    own = {name.removeprefix("backbone."): value for name, value in found.items()}
    assert set(trained) <= set(own)
    for name, value in own.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)
        if name in first and name not in trained:
            assert torch.equal(value, first[name]), name
    assert max((expected[name] - first[name]).abs().max() for name in trained if name in first) > 2e-3
    if backbone == "chain" and "layer2.0.weight" in trained and trainable != "all":
        assert not any(name.startswith(("stem", "layer1")) for name in own)


def test_without_a_backbone_parts_train_too(tmp_path: Path) -> None:
    head = nn.Linear(4, CLASSES)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    own = nn.Sequential(OrderedDict([*chain().named_children(), ("head", head)]))
    half, settings = replace(pictures(), std=(0.5,)), {key: value for key, value in ONE.items() if key != "model"}
    run(source=half, model=own, trainable=["layer2.0.*", "head"], out=tmp_path / "run", **settings)
    found, expected = load_file(tmp_path / "run" / "model.safetensors"), descent(("layer2.0.weight", *HEAD))
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name.replace("head.", "head.1.")], rtol=1e-4, atol=1e-6)


def config_of(**settings: Any) -> Config:
    return resolve({"source": CUSTOM, **ONE, **settings})


def learner_of(**settings: Any) -> Learner:
    config = config_of(**settings)
    return build_learner(config, build_benchmark(config, pictures()).spec)


def test_bytes_are_those_of_what_trains(tmp_path: Path) -> None:
    """Four rounds, three clients: each gets the model and sends as many numbers back."""
    many = {**ONE, "clients": 3, "rounds": 4, "partition": "iid", "min_samples": 1, "backbone": "chain"}
    for trainable, count in ((("head",), 4 * 3 + 3), (("layer2.*", "head"), 6 * 4 + 2 * 4 + 4 * 3 + 3)):
        result = run(source=pictures(), trainable=trainable, out=tmp_path / str(count), **many)
        assert result.costs["bytes_up"] == 4 * count * 3 * 4
        assert result.costs["bytes_down"] == 4 * count * 3 * 4 + 8 * 3 * 4  # and the number of steps


def test_what_is_below_the_cut_is_computed_once(tmp_path: Path) -> None:
    own = {**ONE, "backbone": "chain", "trainable": ["layer1.0.*", "head"]}
    passed.clear()
    run(source=pictures(), out=tmp_path / "one", **own)
    assert passed.count(extraction.BATCH) == 2 + 1 + 2  # 24 and 12 pictures in batches of 16, and each half's first
    passed.clear()
    run(source=pictures(), out=tmp_path / "two", **{**own, "trainable": ["layer1.1.weight"]})  # other features: deeper
    assert passed.count(extraction.BATCH) == 5
    passed.clear()
    run(source=pictures(), out=tmp_path / "three", **{**own, "method": "replay", "trainable": ["layer1", "head"]})
    assert set(passed) == {1}  # nothing but the one blank that tells how many features there are


def test_features_below_a_cut_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "MOST_BYTES", 4 * TRAIN * 5 * 3 * 3 - 1)
    with pytest.raises(
        UserError, match=r"below the first trained layer, \(5, 3, 3\) for each of 24 pictures, takes 0.0 GB"
    ):
        learner_of(backbone="chain", trainable="layer1")
    monkeypatch.setattr(extraction, "MOST_BYTES", 4 * TRAIN * 5 * 3 * 3)
    learner_of(backbone="chain", trainable="layer1")


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"trainable": "layer9.*"}, r"trainable: 'layer9.\*' names no parameter .*did you mean 'layer[12]'"),
        (
            {"trainable": "xyz"},
            r"'xyz' names no parameter of the network; there are stem, stem.0, stem.0.weight, .* more",
        ),
        ({"trainable": ["layer2", "head.7"]}, r"trainable: 'head.7' names no parameter"),
        ({"trainable": ["layer2", "hed"]}, r"'hed' names no parameter"),
        ({"trainable": "head.7"}, r"trainable: 'head.7' names no parameter .*did you mean 'head"),
        ({"trainable": []}, r"trainable: the list is empty"),
        ({"trainable": ["head", ""]}, r"or a pattern in it is"),
        ({"trainable": 3}, r"trainable = 3 must be a string or a list of strings"),
        ({"lora": {"rank": -1}}, r"lora.rank = -1 must not be negative"),
        ({"lora": {"rank": 1.5}}, r"lora.rank = 1.5 must be a whole number"),
        ({"lora": {"rank": 2, "alpha": -1.0}}, r"lora.alpha = -1.0 must not be negative"),
        ({"lora": {"rank": 2, "layers": []}}, r"lora.layers = \[\] names no layer"),
        ({"lora": {"merge": True}}, r"lora.merge is set, but there are no adapters: set lora.rank"),
        ({"lora": {"rank": 5}}, r"lora.rank = 5 is more than the 4 that 'layer2.0' can have"),
        (
            {"lora": {"rank": 2, "layers": ["stem.*"]}},
            r"lora.layers: 'stem.\*' names no frozen dense layer or 1x1 conv",
        ),
        ({"lora": {"rank": 2, "layers": ["layer1*", "layer3"]}}, r"lora.layers: 'layer3' names no .*'layer[12].0'"),
        ({"lora": {"rank": 2}, "trainable": "all"}, r"lora.layers: '\*' names no frozen .*; there is none"),
    ],
)
def test_what_cannot_be_is_one_line(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why) as error:
        learner_of(backbone="chain", **settings)
    assert "\n" not in str(error.value)


def test_words_without_a_backbone() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2), nn.Dropout())

    def trained(*patterns: str) -> list[str]:
        choose({"": network}, patterns)
        return [name for name, p in network.named_parameters() if p.requires_grad]

    assert trained("head") == ["3.weight", "3.bias"]
    assert trained("norm") == ["1.weight", "1.bias"]
    assert trained("*.bias") == ["0.bias", "1.bias", "3.bias"]
    assert trained("0", "3.bias") == ["0.weight", "0.bias", "3.bias"]
    assert len(trained("all")) == 6
    network.add_module("head", nn.Linear(2, 2))
    network.add_module("after", nn.Linear(2, 2))
    assert trained("head") == ["head.weight", "head.bias"]


def test_a_parameter_in_two_places_has_two_names() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    network[1].weight = network[0].weight
    for pattern in ("0.weight", "1.weight"):
        choose({"": network}, [pattern])
        assert [name for name, p in network.named_parameters() if p.requires_grad] == ["0.weight"]


def test_a_servers_weights_must_be_the_clients() -> None:
    config = config_of(backbone="chain", trainable=["layer2", "head"])
    spec = build_benchmark(config, pictures()).spec
    assert spec.origin == Backbone("chain", chain(), 8, (0.0,) * 3, (0.5,) * 3).digest()
    with pytest.raises(UserError, match="its weights here are not those that the clients have"):
        build_learner(config, replace(spec, origin="0" * 64))
    build_learner(config_of(backbone="chain"), replace(spec, shape=(4,), origin="0" * 64))  # the head needs none


def test_slices_say_where_a_parameter_lies() -> None:
    """Also where convolutions lie with their channels last: there the slice holds them in that order."""
    learner = learner_of(backbone="chain", trainable=["layer2", "head"])
    assert learner.slices == {
        "layer2.0.weight": slice(0, 24), "layer2.1.weight": slice(24, 28), "layer2.1.bias": slice(28, 32),
        "head.1.weight": slice(32, 44), "head.1.bias": slice(44, 47)}  # fmt: skip
    for channels_last in (False, True):
        heads = Heads(torch.ones(1, 2, dtype=torch.bool), False)
        learner = Learner(cnn((3, 8, 8), 2, ModelOptions(width=4)), heads, channels_last=channels_last)
        state = learner.model.state_dict()
        assert sum(s.stop - s.start for s in learner.slices.values()) == learner.params.numel()
        for name, part in learner.slices.items():
            value = state[name].permute(0, 2, 3, 1) if channels_last and state[name].dim() == 4 else state[name]
            assert torch.equal(learner.params[part], value.flatten()), name


def test_a_method_can_treat_parts_apart(tmp_path: Path) -> None:
    """The method of docs/pretrained.md: the head's steps are ten times as long."""

    @register("method", "two-rates")
    class TwoRates(FedAvg):
        def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
            gradient = client.value_and_grad(batch)[1]
            gradient[client.slices["head.1.bias"]] *= 10
            return gradient

    own = {**ONE, "steps": 1, "backbone": "chain", "trainable": ["layer2", "head"]}
    run(source=pictures(), out=tmp_path / "plain", **own)
    run(source=pictures(), out=tmp_path / "two", **{**own, "method": "two-rates", "two-rates": {"lr": LR}})
    plain, two = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "two"))
    torch.testing.assert_close(two["head.1.bias"], 10 * plain["head.1.bias"])
    assert torch.equal(two["head.1.weight"], plain["head.1.weight"])


# Adapters -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "convolution", "stride"])
def test_an_adapters_gradient_is_that_of_the_merged_weight(kind: str) -> None:
    """W' = W + s B A, so dA = s Bᵀ dW' and dB = s dW' Aᵀ."""
    torch.manual_seed(0)
    layer = nn.Linear(5, 4) if kind == "dense" else nn.Conv2d(5, 4, 1, stride=2 if kind == "stride" else 1)
    x = torch.randn(3, 5) if kind == "dense" else torch.randn(3, 5, 5, 6)
    layer.requires_grad_(False)
    adapted = Lora(layer, LoraOptions(rank=2, alpha=3.0))
    assert torch.equal(adapted(x), layer(x))
    nn.init.normal_(adapted.lora_B)
    a, b = adapted.lora_A.detach(), adapted.lora_B.detach()
    weight = (layer.weight + 1.5 * (b @ a).view_as(layer.weight)).requires_grad_()
    plain = F.linear(x, weight, layer.bias) if kind == "dense" else F.conv2d(x, weight, layer.bias, layer.stride)  # type: ignore[arg-type]
    torch.testing.assert_close(adapted(x), plain)
    slope = torch.randn_like(plain)
    (full,) = torch.autograd.grad(plain, weight, slope)
    full = full.view(4, 5)
    down, up = torch.autograd.grad(adapted(x), [adapted.lora_A, adapted.lora_B], slope)
    torch.testing.assert_close(down, 1.5 * b.T @ full)
    torch.testing.assert_close(up, 1.5 * full @ a.T)


def test_adapters_go_where_layers_fit_and_the_rest_is_frozen() -> None:
    learner = learner_of(backbone="chain", lora={"rank": 2})
    assert list(learner.slices) == ["layer1.0.lora_A", "layer1.0.lora_B", "layer2.0.lora_A", "layer2.0.lora_B",
                                    "head.1.weight", "head.1.bias"]  # fmt: skip
    assert learner.params.numel() == 2 * (5 + 6) + 2 * (6 + 4) + 15
    assert not learner.buffers.numel()
    learner = learner_of(backbone="chain", lora={"rank": 2, "layers": ["layer2.*"]}, trainable=["norm", "head"])
    assert {name.split(".")[0] for name in learner.slices} == {"pictures", "stem", "layer1", "layer2", "head"} - {
        "pictures"
    }
    assert [name for name in learner.slices if "lora" in name] == ["layer2.0.lora_A", "layer2.0.lora_B"]


def test_a_plugin_may_hand_out_the_same_network_each_time() -> None:
    """Adapters of one run must not be in the next one's backbone."""
    network = chain()
    register("backbone", "same")(lambda options: Backbone("same", network, 8, (0.0,) * 3, (0.5,) * 3))
    one, two = (learner_of(backbone="same", lora={"rank": 2}) for _ in range(2))
    assert list(one.slices) == list(two.slices)
    assert set(network.state_dict()) == set(chain().state_dict())


def test_an_adapter_depends_on_the_seed_alone() -> None:
    one, two, other = (learner_of(backbone="chain", lora={"rank": 2}, seed=seed).params for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_a_layer_in_two_places_has_one_adapter_and_one_that_is_read_is_adapted() -> None:
    """Attention reads its last layer's weight instead of calling the layer."""
    shared = nn.Linear(4, 4)
    network = nn.Sequential(shared, nn.ReLU(), shared).requires_grad_(False)
    add_adapters(network, LoraOptions(rank=1))
    assert network[0] is network[2]
    attention = nn.MultiheadAttention(4, 2).requires_grad_(False)
    add_adapters(attention, LoraOptions(rank=1))
    x = torch.randn(3, 1, 4)
    before = attention(x, x, x)[0]
    nn.init.ones_(attention.out_proj.lora_B)  # type: ignore[arg-type]
    assert not torch.equal(attention(x, x, x)[0], before)


def test_merged_adapters_are_the_plain_networks_weights(tmp_path: Path) -> None:
    own = {**ONE, "backbone": "chain"}
    for merge in (False, True):
        run(source=pictures(), lora={"rank": 2, "alpha": 4.0, "merge": merge}, out=tmp_path / str(merge), **own)
    apart, whole = (load_file(tmp_path / str(merge) / "model.safetensors") for merge in (False, True))
    product = 2.0 * apart["layer1.0.lora_B"] @ apart["layer1.0.lora_A"]
    assert product.abs().max() > 1e-4
    torch.testing.assert_close(whole["layer1.0.weight"], apart["layer1.0.layer.weight"] + product.view(6, 5, 1, 1))

    plain = nn.Sequential(
        OrderedDict([*chain().named_children(), ("head", nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))])
    )
    assert set(whole) == {name for name in plain.state_dict() if not name.startswith("stem")}
    plain.load_state_dict(whole, strict=False)
    learner = learner_of(backbone="chain", lora={"rank": 2, "alpha": 4.0})
    learner.model.load_state_dict(apart)
    assert set(merged(learner.model)) == set(whole)
    samples = build_benchmark(config_of(backbone="chain", lora={"rank": 2}), pictures()).test(0, 0)
    with torch.no_grad():
        expected = plain.eval()(pictures().test.x.float() / 255 / 0.5)
    order = samples.y.argsort(stable=True), pictures().test.y.argsort(stable=True)
    torch.testing.assert_close(learner.outputs(samples)[order[0]], expected[order[1]], rtol=1e-5, atol=1e-6)


# A model of one's own, and what methods do ----------------------------------------------------------------------------


def test_frozen_modules_of_ones_own_answer_as_they_are_and_their_statistics_stay() -> None:
    def network() -> nn.Sequential:
        below = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.9))
        return nn.Sequential(below, nn.BatchNorm1d(4), nn.Linear(4, 2))

    heads, x = Heads(torch.ones(1, 2, dtype=torch.bool), False), torch.randn(8, 4) + 3
    samples = Samples(x, torch.arange(8) % 2, torch.zeros(8, dtype=torch.long))
    whole = Learner(network(), heads)
    assert whole.buffers.numel() == 16
    frozen = network()
    frozen[0].requires_grad_(False)
    learner = Learner(frozen, heads)
    assert list(learner.slices) == ["1.weight", "1.bias", "2.weight", "2.bias"]
    assert learner.buffers.numel() == 8
    before = {name: value.clone() for name, value in frozen.state_dict().items()}
    first = learner.value_and_grad(samples)[0]
    learner.outputs(samples)
    assert learner.value_and_grad(samples)[0] == first  # no dropout, and what comes out of the batch norm is the same
    after = frozen.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("0."))
    assert not torch.equal(before["1.running_mean"], after["1.running_mean"])


@pytest.mark.parametrize("trainable", [["layer2", "head"], "all"])
def test_gradients_of_single_samples_add_up(trainable: Any) -> None:
    """What differential privacy clips; with lora and through the preparation of pictures, too."""
    lora = {"rank": 2, "layers": ["layer1.*"]} if trainable != "all" else {}
    config = config_of(backbone="chain", trainable=trainable, lora=lora, model="mlp", width=4,
                       privacy={"unit": "sample"}, image_size=8)  # fmt: skip
    benchmark = build_benchmark(config, pictures())
    learner, samples = build_learner(config, benchmark.spec), benchmark.train(0, 0)
    rows = torch.cat(list(learner.sample_gradients(samples)))
    torch.testing.assert_close(rows.mean(0), learner.value_and_grad(samples)[1], rtol=1e-4, atol=1e-6)


SMALL: dict[str, Any] = {"backbone": "chain", "model": "linear", "samples_per_class": 20, "test_per_class": 10,
                         "trainable": ["layer2.*", "head"], "lora": {"rank": 2, "layers": ["layer1.*"]}}  # fmt: skip
DIGITS: dict[str, Any] = {**SMALL, "tasks": 2, "rounds": 2, "clients": 3, "memory": {"per_task": 20, "sample": 10}}


def test_private_runs_and_methods_with_features_work(tmp_path: Path) -> None:
    private = {"unit": "sample", "noise": 1.0, "clip": 1.0}
    result = run("digits", out=tmp_path / "private", workers=1, privacy=private, **{**DIGITS, "method": "finetune"})
    assert result.costs["epsilon"] > 0
    for method in ("icarl", "ncm"):
        run("digits", out=tmp_path / method, workers=1, **{**DIGITS, "method": method})
    learner = learner_of(backbone="chain", trainable="layer2")
    x = build_benchmark(config_of(backbone="chain", trainable="layer2"), pictures()).train(0, 0)
    assert learner.features(x).shape == (TRAIN, 4)
    heads = Heads(torch.ones(1, 3, dtype=torch.bool), False)
    learner = Learner(Joined(OrderedDict(body=nn.Linear(4, 4), head=cosine((4,), 3, ModelOptions()))), heads)
    with pytest.raises(UserError, match=r"must end in an nn\.Linear"):
        learner.features(Samples(torch.ones(1, 4), torch.zeros(1), torch.zeros(1)))  # a backbone's own are none


@pytest.mark.parametrize("backbone", ["chain", "block"])
def test_workers_and_a_kill_change_nothing(backbone: str, tmp_path: Path) -> None:
    own = {**DIGITS, "backbone": backbone}
    run("digits", out=tmp_path / "one", workers=1, **own)
    run("digits", out=tmp_path / "two", workers=2, **own)
    same(tmp_path / "one", tmp_path / "two")
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            run("digits", out=tmp_path / "killed", workers=1, **own)
    resume(tmp_path / "killed")
    same(tmp_path / "one", tmp_path / "killed")


@pytest.mark.parametrize("backbone", ["chain", "block"])
def test_a_fleet_agrees_with_one_machine(backbone: str, tmp_path: Path) -> None:
    own = {**SMALL, "backbone": backbone}
    fleet = Fleet(tmp_path, min_clients=3, **own)
    fleet.run()
    local(tmp_path, **own)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_what_trains_is_written_down(tmp_path: Path) -> None:
    config = load_config("digits", backbone="chain", trainable=["layer2", "head"], lora={"rank": 2})
    (tmp_path / "own.toml").write_text(config.to_toml())
    assert load_config(str(tmp_path / "own.toml")) == config
    assert json.loads(json.dumps(config.to_dict()))["lora"]["layers"] == ["*"]
    assert Experiment(replace(config, backbone="", trainable="head", lora=LoraOptions())).learner.params.numel() == 650
