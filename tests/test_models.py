"""Built-in models against published sizes, and what they do with shapes, widths and norms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from cflag import registry
from cflag.errors import UserError
from cflag.models.layers import TrimmedConv2d
from cflag.models.options import ModelOptions
from cflag.process import one_thread

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "linear": [(7,), (1, 8, 8)],
    "cosine": [(7,), (1, 8, 8)],
    "mlp": [(7,), (9, 128), (1, 8, 8)],
    "cnn": [(1, 8, 8), (3, 16, 16), (1, 28, 28), (2, 5, 9)],
    "cnn1d": [(9, 128), (1, 5)],
    "resnet18": [(1, 8, 8), (3, 32, 32), (3, 15, 20)],
    "resnet50": [(3, 32, 32)],
}
"""Samples that each model takes."""
NARROW = {"linear": 0, "cosine": 0, "mlp": 6, "cnn": 4, "cnn1d": 4, "resnet18": 4, "resnet50": 4}

Norm = Literal["group", "batch", "none"]
Stem = Literal["3x3", "7x7"]


@pytest.fixture(autouse=True)
def _quickly() -> Iterator[None]:
    """Layers this small lose more time to threads that wait for each other than they win."""
    with one_thread():
        yield


def build(name: str, shape: tuple[int, ...], outputs: int = 10, **options: Any) -> nn.Module:
    model: nn.Module = registry.get("model", name)(shape, outputs, ModelOptions(**options))
    return model


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "published"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_resnets_have_the_published_number_of_parameters(name: str, published: int) -> None:
    with torch.device("meta"):
        assert parameters(build(name, (3, 224, 224), 1000, norm="batch", stem="7x7")) == published


@pytest.mark.parametrize(("name", "published"), [("resnet18", 11_173_962), ("resnet50", 23_520_842)])
def test_resnets_for_cifar_have_the_usual_number_of_parameters(name: str, published: int) -> None:
    with torch.device("meta"):
        assert parameters(build(name, (3, 32, 32), 10, norm="batch", stem="3x3")) == published


def test_small_models_have_the_parameters_of_their_layers() -> None:
    dense = 64 * 32 + 32 + 32 * 32 + 32 + 32 * 10 + 10
    assert parameters(build("mlp", (1, 8, 8), width=32)) == dense
    convolutions = (9 * 3 + 1) * 8 + (9 * 8 + 1) * 16 + (9 * 16 + 1) * 16
    # 16 pixels halved three times leave 2x2 of 16 channels.
    assert parameters(build("cnn", (3, 16, 16), width=8, norm="none")) == convolutions + (64 + 1) * 32 + (32 + 1) * 10
    assert parameters(build("cnn", (3, 16, 16), width=8)) == (
        convolutions + 2 * (8 + 16 + 16) + (64 + 1) * 32 + (32 + 1) * 10
    )
    assert parameters(build("linear", (1, 8, 8))) == 64 * 10 + 10
    assert parameters(build("cosine", (1, 8, 8))) == 64 * 10
    series = (5 * 9 + 1) * 8 + (5 * 8 + 1) * 16 + (5 * 16 + 1) * 16
    assert parameters(build("cnn1d", (9, 128), 6, width=8, norm="none")) == series + (16 + 1) * 6


def test_every_registered_model_is_tried_here() -> None:
    assert set(SHAPES) == set(NARROW) == set(registry.names("model"))


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shapes in SHAPES.items() for shape in shapes])
@pytest.mark.parametrize("norm", ["group", "batch", "none"])
def test_models_return_one_logit_per_output(name: str, shape: tuple[int, ...], norm: Norm) -> None:
    torch.manual_seed(0)
    model = build(name, shape, outputs=7, width=NARROW[name], norm=norm)
    for mode in (True, False):
        logits = model.train(mode)(torch.randn(4, *shape))
        assert logits.shape == (4, 7)
        assert logits.isfinite().all()


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnets_with_the_large_stem_take_small_images_too(name: str) -> None:
    model = build(name, (3, 32, 32), outputs=5, width=4, stem="7x7").eval()
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize("name", registry.names("model"))
def test_every_parameter_takes_part(name: str) -> None:
    torch.manual_seed(0)
    shape = SHAPES[name][-1]
    model = build(name, shape, width=NARROW[name])
    (model(torch.randn(3, *shape)) - 1).square().sum().backward()  # a linear model's outputs begin at zero
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@given(st.sampled_from(["mlp", "cnn", "cnn1d"]), st.integers(1, 12))
@settings(deadline=None, max_examples=30)
def test_width_sets_the_first_layers_size_and_any_width_works(name: str, width: int) -> None:
    shape = SHAPES[name][0]
    model = build(name, shape, width=width)
    first = next(model.parameters())
    assert first.shape[0] == width
    assert model(torch.randn(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_width_scales_every_stage_of_a_resnet(name: str) -> None:
    with torch.device("meta"):
        half, whole, usual = (build(name, (3, 32, 32), width=width, norm="none") for width in (32, 64, 0))
    assert parameters(whole) == parameters(usual)
    pairs = list(zip(half.modules(), whole.modules(), strict=True))
    convolutions = [(h, w) for h, w in pairs if isinstance(h, nn.Conv2d) and isinstance(w, nn.Conv2d)]
    assert len(convolutions) == {"resnet18": 1 + 16 + 3, "resnet50": 1 + 48 + 4}[name]
    assert all(w.out_channels == 2 * h.out_channels for h, w in convolutions)
    assert all(w.in_channels == 2 * h.in_channels for h, w in convolutions[1:])


@pytest.mark.parametrize("name", registry.names("model"))
def test_models_have_a_usual_width(name: str) -> None:
    usual = {"linear": 0, "cosine": 0, "mlp": 64, "cnn": 32, "cnn1d": 32, "resnet18": 64, "resnet50": 64}[name]
    with torch.device("meta"):
        assert parameters(build(name, SHAPES[name][0])) == parameters(build(name, SHAPES[name][0], width=usual))


@pytest.mark.parametrize("name", ["cnn", "cnn1d", "resnet18", "resnet50"])
def test_batch_norm_alone_has_floating_point_buffers(name: str) -> None:
    def buffers(norm: Norm) -> int:
        model = build(name, SHAPES[name][0], width=NARROW[name], norm=norm)
        return sum(b.numel() for b in model.buffers() if b.is_floating_point())

    assert buffers("group") == buffers("none") == 0
    model = build(name, SHAPES[name][0], width=NARROW[name], norm="batch")
    channels = sum(m.out_channels for m in model.modules() if isinstance(m, (nn.Conv1d, nn.Conv2d)))
    assert buffers("batch") == 2 * channels  # a mean and a variance for every feature map


@pytest.mark.parametrize("name", ["cnn", "cnn1d", "resnet18"])
@pytest.mark.parametrize("norm", ["group", "none"])
def test_without_batch_norm_a_samples_logits_do_not_depend_on_its_neighbours(name: str, norm: Norm) -> None:
    torch.manual_seed(0)
    model, x = build(name, SHAPES[name][0], width=NARROW[name], norm=norm).train(), torch.randn(4, *SHAPES[name][0])
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cnn", (64,)), ("cnn", (9, 128)), ("cnn1d", (64,)), ("cnn1d", (1, 8, 8)), ("resnet18", (9, 128)),
     ("resnet50", (64,))],
)  # fmt: skip
def test_samples_of_the_wrong_shape_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"not samples of shape \(") as refused:
        build(name, shape)
    assert str(shape) in str(refused.value)


@pytest.mark.parametrize(
    ("typed", "meant"), [("resnet-18", "resnet18"), ("resnet5", "resnet50"), ("cn", "cnn"), ("mpl", "mlp")]
)
def test_unknown_model_suggests_the_closest(typed: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"unknown model '{typed}'; did you mean '{meant}'"):
        registry.get("model", typed)


def test_unknown_model_like_no_other_lists_all() -> None:
    with pytest.raises(UserError) as refused:
        registry.get("model", "transformer!")
    assert all(name in str(refused.value) for name in registry.names("model"))


@pytest.mark.parametrize(("stem", "expected"), [("3x3", (32, 48)), ("7x7", (8, 12))])
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_small_stem_keeps_the_resolution_and_the_large_one_quarters_it(
    name: str, stem: Stem, expected: tuple[int, int]
) -> None:
    model = build(name, (3, 32, 48), width=4, stem=stem).eval()
    assert isinstance(model, nn.Sequential)
    sizes: list[tuple[int, ...]] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        sizes.append(tuple(inputs[0].shape[2:]))

    blocks = [m for m in model if type(m).__name__ == "Residual"]
    for block in blocks:
        block.register_forward_hook(note)
    model(torch.zeros(1, 3, 32, 48))
    height, breadth = expected
    assert sizes[0] == expected
    # Of four stages all but the first halve the image.
    assert sorted(set(sizes), reverse=True)[:3] == [(height // k, breadth // k) for k in (1, 2, 4)]


def test_resnet50_halves_in_the_middle_convolution_of_a_block() -> None:
    # As in the published accuracies' "v1.5" and in torchvision; the number of parameters cannot tell.
    with torch.device("meta"):
        model = build("resnet50", (3, 32, 32))
    strided = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)]
    assert [m.kernel_size for m in strided] == [(3, 3), (1, 1)] * 3


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_leaving_out_taps_that_see_padding_changes_nothing(size: int, stride: int) -> None:
    torch.manual_seed(0)
    trimmed = TrimmedConv2d(3, 5, 3, stride=stride, padding=1).double()
    plain = nn.Conv2d(3, 5, 3, stride=stride, padding=1).double()
    plain.load_state_dict(trimmed.state_dict())
    x = torch.randn(4, 3, size, size, dtype=torch.float64)
    weights = torch.randn_like(plain(x))
    for conv in (trimmed, plain):
        conv(x).mul(weights).sum().backward()
    torch.testing.assert_close(trimmed(x), plain(x))
    torch.testing.assert_close(trimmed.weight.grad, plain.weight.grad)
    torch.testing.assert_close(trimmed.bias.grad, plain.bias.grad)  # type: ignore[union-attr]


def test_few_taps_are_used_on_small_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ResNet-18 with a 7x7 stem on 32x32 images: three convolutions with one tap of nine, one with four."""
    seen: list[tuple[int, ...]] = []
    convolve = F.conv2d

    def watched(x: Tensor, weight: Tensor, *args: Any) -> Tensor:
        seen.append(tuple(weight.shape[2:]))
        return convolve(x, weight, *args)

    monkeypatch.setattr("cflag.models.layers.F.conv2d", watched)
    registry.get("model", "resnet18")((3, 32, 32), 10, ModelOptions(width=4, stem="7x7"))(torch.rand(2, 3, 32, 32))
    assert seen.count((2, 2)) == 1
    assert seen.count((1, 1)) == 3 + 3  # and three shortcuts


def test_cosines_by_hand() -> None:
    """The angle between (1, 0) and (1, 1) is 45°; lengths do not count."""
    model = build("cosine", (2,), outputs=2)
    model.load_state_dict({"1.weight": torch.tensor([[5.0, 5.0], [0.0, -0.1]])})
    found = model(torch.tensor([[3.0, 0.0], [0.0, 2.0]]))
    root = 16 / 2**0.5
    torch.testing.assert_close(found, torch.tensor([[root, 0.0], [root, -16.0]]))
