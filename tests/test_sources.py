"""The sources: every format read back value by value, every damage told in one line, the real data."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cflag.data.load import data_dir_or_default, find_reader, load_source
from cflag.data.source import Source
from cflag.data.sources import digits, har, idx
from cflag.data.sources.cifar import Cifar
from cflag.errors import DataError, UserError
from tests.support.datasets import (
    RECORDINGS,
    Array,
    cut,
    make_cifar10,
    make_cifar100,
    make_mnist,
    make_tiny,
    make_windows,
    save_jpeg,
    write_cifar,
    write_har_folder,
    write_har_npz,
    write_idx,
)


def refusal(name: str, root: Path) -> str:
    """Return the one line with which loading fails, without the folder's own name."""
    with pytest.raises(DataError) as caught:
        load_source(name, root)
    line = str(caught.value)
    assert "\n" not in line
    assert f"'cflag data get {name}'" in line
    assert "--data-dir" in line
    assert "CFLAG_DATA" in line
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return line.replace(f"{root}{os.sep}", "").replace(os.sep, "/")


def put(path: Path, place: int, value: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] = value
    path.write_bytes(content)


# --- the registry ----------------------------------------------------------------------------------------


NAMES = [
    "cifar10", "cifar100", "diabetes", "digits", "fashion-mnist", "folder", "har", "led", "mnist", "npz", "pictures",
    "sea", "stagger", "table", "tiny-imagenet",
]  # fmt: skip


def test_listing_imports_no_heavy_library() -> None:
    code = (
        "import sys; from cflag import registry; from cflag.data.load import find_reader\n"
        "for name in registry.names('source'): print(name, registry.about('source', name)); find_reader(name)\n"
        "sys.exit(' '.join({'torch', 'sklearn', 'pooch', 'PIL'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == NAMES  # each has one line about it


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_knows_the_name_it_is_registered_under(name: str) -> None:
    assert find_reader(name).name == name


def test_a_folder_of_your_own(tmp_path: Path) -> None:
    x, y = np.arange(24, dtype=np.float64).reshape(6, 4), np.array([0, 1, 2, 0, 1, 2])
    for name in ("train", "test"):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    (tmp_path / "source.toml").write_text('name = "mine"\nclasses = 3\nmean = [2.0]\nstd = [4.0]\n')
    source = load_source("folder", tmp_path)
    assert (source.name, source.classes, source.shape, source.mean, source.std) == ("mine", 3, (4,), (2.0,), (4.0,))
    assert torch.equal(source.train.x, torch.arange(24.0).reshape(6, 4))
    assert source.test.y.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("source.toml", b"classes = 3", "'name' is missing"),
        ("source.toml", b"name = 3 4", "source.toml: Expected"),
        ("source.toml", b'name = "m"\nclasses = 2', "labels span 0..2, expected 0..1"),
        ("train.npz", b"noise", "cannot be read as arrays x and y"),
        ("test.npz", None, "test.npz: there is no such file"),
    ],
)
def test_a_damaged_folder_is_told_in_one_line(file: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    test_a_folder_of_your_own(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        load_source("folder", tmp_path)
    assert "\n" not in str(caught.value)


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    test_a_folder_of_your_own(tmp_path)
    np.savez(tmp_path / "train.npz", x=np.array([{"a": 1}], dtype=object), y=np.array([0]))
    with pytest.raises(DataError, match="cannot be read as arrays"):
        load_source("folder", tmp_path)


def test_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(UserError, match=r"unknown source 'cifar-10'; did you mean 'cifar10'\?"):
        load_source("cifar-10")


def test_data_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path / "env"))
    assert data_dir_or_default(str(tmp_path)) == tmp_path
    assert data_dir_or_default(None) == tmp_path / "env"
    assert data_dir_or_default("~/x") == Path.home() / "x"
    monkeypatch.setenv("CFLAG_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    default = data_dir_or_default(None)
    assert "cflag" in default.parts
    if sys.platform == "linux":
        assert default == tmp_path / "cache" / "cflag"


def test_load_without_folder_uses_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_mnist(tmp_path)
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path))
    assert len(load_source("mnist").train) == 5


# --- digits ----------------------------------------------------------------------------------------------


def test_digits() -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    source = load_source("digits")
    assert source.train.x.shape == (1442, 1, 8, 8)
    assert source.test.x.shape == (355, 1, 8, 8)
    assert source.train.x.dtype == torch.uint8
    assert source.train.y.dtype == torch.int64
    # The first sample, a zero: 5 of 16 becomes 79, 13 becomes 207, 16 becomes 255.
    assert source.train.x[0, 0, 0].tolist() == [int(v) * 255 // 16 for v in images[0][:8]]
    assert source.train.x.max() == 255
    # The fifth zero is the first zero of the test half.
    fifth = np.flatnonzero(labels == 0)[4]
    first = int((source.test.y == 0).nonzero()[0])
    assert source.test.x[first].flatten().tolist() == [int(v) * 255 // 16 for v in images[fifth]]
    counts = np.bincount(labels)
    assert source.test.y.bincount().tolist() == (counts // 5).tolist()
    assert source.train.y.bincount().tolist() == (counts - counts // 5).tolist()
    close_to_constants(source, 1e-4)


def test_digits_are_the_same_where_scikit_learn_has_no_such_file(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = load_source("digits")
    monkeypatch.setattr("cflag.data.sources.digits._table", digits._table.__wrapped__)  # type: ignore[attr-defined]
    monkeypatch.setattr("cflag.data.sources.digits.find_spec", lambda name: None)
    asked = load_source("digits")
    for half in ("train", "test"):
        for part in ("x", "y"):
            assert torch.equal(getattr(getattr(usual, half), part), getattr(getattr(asked, half), part))


def close_to_constants(source: Source, tolerance: float) -> None:
    scale = 1.0 if source.train.x.is_floating_point() else 255.0
    channels = source.train.x.transpose(0, 1).flatten(1).double() / scale
    assert channels.mean(1).tolist() == pytest.approx(list(source.mean), abs=tolerance)
    assert channels.std(1).tolist() == pytest.approx(list(source.std), abs=tolerance)


# --- idx -------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(array=hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=5, min_side=0)), packed=st.booleans())
def test_idx_round_trip(tmp_path_factory: pytest.TempPathFactory, array: Array, packed: bool) -> None:
    path = tmp_path_factory.getbasetemp() / ("any-idx.gz" if packed else "any-idx")
    write_idx(path, array)
    again = idx.read_idx(path, array.ndim)
    assert again.dtype == np.uint8
    assert again.shape == array.shape
    assert np.array_equal(again, array)
    idx.check_idx(path, array.ndim)


@pytest.mark.parametrize(
    ("name", "folder", "end"),
    [
        ("mnist", "mnist", ""),
        ("mnist", "mnist", ".gz"),
        ("mnist", "MNIST/raw", ""),
        ("fashion-mnist", "fashion-mnist", ".gz"),
        ("fashion-mnist", "FashionMNIST/raw", ".gz"),
    ],
)
def test_mnist_layouts(tmp_path: Path, name: str, folder: str, end: str) -> None:
    arrays = make_mnist(tmp_path, folder, end)
    source = load_source(name, tmp_path)
    assert source.name == name
    assert source.shape == (1, 28, 28)
    assert source.train.x.dtype == torch.uint8
    assert source.train.x[:, 0].tolist() == arrays["train-images-idx3-ubyte"].tolist()
    assert source.train.y.tolist() == [3, 1, 4, 1, 9]
    assert source.test.x[:, 0].tolist() == arrays["t10k-images-idx3-ubyte"].tolist()
    assert source.test.y.tolist() == [2, 7]
    assert (source.classes, source.train.subject) == (10, None)


def test_a_fresh_download_wins_over_older_files(tmp_path: Path) -> None:
    make_mnist(tmp_path)
    make_mnist(tmp_path, "MNIST/raw")
    fresh = make_mnist(tmp_path, "mnist", ".gz")
    source = load_source("mnist", tmp_path)
    assert source.train.x[:, 0].tolist() == fresh["train-images-idx3-ubyte"].tolist()


def write_no_images(path: Path) -> None:
    write_idx(path, np.zeros((0, 28, 28)))
    write_idx(path.parent / "train-labels-idx1-ubyte", np.zeros(0))


IDX_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "train-images-idx3-ubyte (plain or .gz) not found in mnist or MNIST/raw"),
    "empty": (lambda p: p.write_bytes(b""), "holds 0 bytes, too few for an idx header"),
    "magic": (lambda p: put(p, 2, 0x0D), "starts with 0x00000d03, expected 0x000008.."),
    "no dimensions": (lambda p: put(p, 3, 0), "starts with 0x00000800, expected 0x000008.."),
    "dimensions": (lambda p: put(p, 3, 2), "has 2 dimension(s), expected 3"),
    "cut header": (lambda p: p.write_bytes(p.read_bytes()[:9]), "holds 9 bytes, expected a header of 16"),
    "cut": (cut, "holds 3935 bytes, expected 3936 for 5x28x28 values"),
    "trailing": (lambda p: p.write_bytes(p.read_bytes() + b"x"), "holds 3937 bytes, expected 3936"),
    "size": (
        lambda p: write_idx(p, np.zeros((5, 14, 28))),
        "images are 28x14, expected 28x28",
    ),
    "count": (
        lambda p: write_idx(p, np.zeros((6, 28, 28))),
        "train-labels-idx1-ubyte: holds 5 labels, expected 6 as in train-images-idx3-ubyte",
    ),
    "none": (
        write_no_images,
        "mnist: train has 0 samples and 0 labels",
    ),
    "label": (
        lambda p: write_idx(p.parent / "train-labels-idx1-ubyte", np.array([1, 2, 10, 3, 11])),
        "mnist/train-labels-idx1-ubyte: label 10 at place 3, expected 0..9",
    ),
    "folder": (
        lambda p: p.rename(p.with_suffix(".bak")).with_suffix("").mkdir(),
        "train-images-idx3-ubyte (plain or .gz) not found",
    ),
}


@pytest.mark.parametrize("damage", IDX_DAMAGE)
def test_idx_damage(tmp_path: Path, damage: str) -> None:
    make_mnist(tmp_path)
    harm, expected = IDX_DAMAGE[damage]
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    harm(path)
    line = refusal("mnist", tmp_path)
    assert expected in line
    assert path.name in line or "mnist: train" in line or "labels" in line
    assert "the folder that contains 'mnist'" in line


GZIP_DAMAGE: dict[str, Callable[[Path], object]] = {
    "not gzip": lambda p: p.write_bytes(gzip.decompress(p.read_bytes())),
    "cut": lambda p: cut(p, 20),
    "flipped": lambda p: put(p, len(p.read_bytes()) // 2, 0x55 ^ p.read_bytes()[len(p.read_bytes()) // 2]),
    "trailing": lambda p: p.write_bytes(p.read_bytes() + b"junk"),
}


@pytest.mark.parametrize("damage", GZIP_DAMAGE)
def test_gzip_damage(tmp_path: Path, damage: str) -> None:
    make_mnist(tmp_path, end=".gz")
    GZIP_DAMAGE[damage](tmp_path / "mnist" / "train-images-idx3-ubyte.gz")
    assert "mnist/train-images-idx3-ubyte.gz: broken gzip file (" in refusal("mnist", tmp_path)


def test_unreadable_file_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)$"):
        idx.read_idx(tmp_path)
    with pytest.raises(DataError, match=r"nothing: not found$"):
        idx.read_idx(tmp_path / "nothing")


# --- CIFAR -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_cifar10(tmp_path: Path) -> None:
    train, test = make_cifar10(tmp_path)
    source = load_source("cifar10", tmp_path)
    assert source.train.y.tolist() == [1, 0, 9, 1, 2, 0, 9, 2, 3, 0, 9, 3, 4, 0, 9, 4, 5, 0, 9, 5]
    assert source.train.x.tolist() == np.concatenate(train).tolist()
    assert source.test.y.tolist() == [7, 8, 9]
    assert source.test.x.tolist() == test.tolist()
    assert (source.shape, source.classes, source.train.x.dtype) == ((3, 32, 32), 10, torch.uint8)


@pytest.mark.usefixtures("small")
def test_cifar_planes_are_red_green_blue(tmp_path: Path) -> None:
    make_cifar10(tmp_path)
    red, green, blue = bytes([200] * 1024), bytes([100] * 1024), bytes([50] * 1024)
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes((b"\x03" + red + green + blue) * 3)
    image = load_source("cifar10", tmp_path).test.x[0]
    assert [channel.unique().tolist() for channel in image] == [[200], [100], [50]]


@pytest.mark.usefixtures("small")
def test_cifar100_uses_the_fine_label(tmp_path: Path) -> None:
    make_cifar100(tmp_path)
    source = load_source("cifar100", tmp_path)
    assert source.train.y.tolist() == [99, 1, 3, 5, 7, 9]
    assert source.test.y.tolist() == [50, 51, 52, 53]
    assert source.classes == 100


CIFAR_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "not found"),
    "cut": (cut, "holds 12291 bytes, expected 12292 (4 records of 3073 bytes)"),
    "whole record cut": (lambda p: cut(p, 3073), "holds 9219 bytes, expected 12292 (4 records"),
    "trailing": (lambda p: p.write_bytes(p.read_bytes() + b"x"), "holds 12293 bytes, expected 12292"),
    "other format": (
        lambda p: write_cifar(p, [[0, 1]] * 4),
        "holds 12296 bytes, expected 12292 (4 records of 3073 bytes)",
    ),
    "label": (lambda p: put(p, 3073, 77), "label 77 at place 2, expected 0..9"),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("damage", CIFAR_DAMAGE)
def test_cifar_damage(tmp_path: Path, damage: str) -> None:
    make_cifar10(tmp_path)
    harm, expected = CIFAR_DAMAGE[damage]
    harm(tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin")
    assert f"cifar-10-batches-bin/data_batch_3.bin: {expected}" in refusal("cifar10", tmp_path)


def test_cifar_needs_the_official_number_of_records(tmp_path: Path) -> None:
    make_cifar10(tmp_path)
    make_cifar100(tmp_path)
    # 10,000 in each of six files; 50,000 and 10,000.
    for name, numbers in (("cifar10", (10_000, 10_000)), ("cifar100", (50_000, 10_000))):
        reader = find_reader(name)
        assert isinstance(reader, Cifar)
        assert reader.records == numbers
    assert "expected 30730000 (10000 records of 3073 bytes)" in refusal("cifar10", tmp_path)
    assert "expected 153700000 (50000 records of 3074 bytes)" in refusal("cifar100", tmp_path)


# --- Tiny-ImageNet ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_tiny_imagenet(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path)
    save_jpeg(folder / "train" / "n02" / "images" / "n02_0.JPEG", (120,))
    source = load_source("tiny-imagenet", tmp_path)
    assert (source.shape, source.classes) == ((3, 8, 8), 3)
    # Labels follow wnids.txt, which starts with n02, and val follows its annotations.
    assert source.train.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.test.y.tolist() == [2, 2, 1, 1, 0, 0]
    means = source.train.x.float().mean((2, 3))
    assert means[0].tolist() == pytest.approx([120, 120, 120], abs=3)  # grey
    assert means[1].tolist() == pytest.approx([250, 10, 10], abs=3)
    assert means[2].tolist() == pytest.approx([10, 250, 10], abs=3)
    assert source.test.x.float().mean((2, 3))[0].tolist() == pytest.approx([10, 10, 250], abs=3)


def annotate(folder: Path, change: Callable[[str], str]) -> None:
    path = folder / "val" / "val_annotations.txt"
    path.write_text(change(path.read_text()))


TINY_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "wnids.txt: not found"),
    "few classes": (
        lambda f: (f / "wnids.txt").write_text("n01\n"),
        "wnids.txt: lists 1 classes, expected 3",
    ),
    "twice": (lambda f: (f / "wnids.txt").write_text("n01 n02 n01"), "wnids.txt: lists a class twice"),
    "not text": (lambda f: (f / "wnids.txt").write_bytes(b"\xff\xfe"), "wnids.txt: not a plain text file"),
    "no class": (lambda f: shutil.rmtree(f / "train/n01"), "train/n01/images: holds no .JPEG file"),
    "no val": (lambda f: (f / "val/val_annotations.txt").unlink(), "val/val_annotations.txt: not found"),
    "columns": (
        lambda f: annotate(f, lambda text: text.replace("\t", " ", 1)),
        "val/val_annotations.txt: line 1 has 5 columns, expected 6",
    ),
    "stranger": (
        lambda f: annotate(f, lambda text: text.replace("n01", "n77", 1)),
        "val/val_annotations.txt: line 3 names class 'n77', which wnids.txt does not list",
    ),
    "class without val": (
        lambda f: annotate(f, lambda text: text.replace("n01", "n02")),
        "val/val_annotations.txt: lists no image of class 'n01', expected at least one",
    ),
    "lost val image": (
        lambda f: (f / "val/images/val_3.JPEG").unlink(),
        "val/images/val_3.JPEG: not found, but listed in val_annotations.txt",
    ),
    "not an image": (
        lambda f: (f / "train/n01/images/n01_1.JPEG").write_bytes(b"GIF? no"),
        "train/n01/images/n01_1.JPEG: broken or cut image file",
    ),
    "cut image": (
        lambda f: cut(f / "train/n01/images/n01_1.JPEG", 30),
        "train/n01/images/n01_1.JPEG: broken or cut image file",
    ),
    "size": (
        lambda f: save_jpeg(f / "val/images/val_3.JPEG", (1, 2, 3), side=9),
        "val/images/val_3.JPEG: is 9x9 pixels, expected 8x8",
    ),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("damage", TINY_DAMAGE)
def test_tiny_imagenet_damage(tmp_path: Path, damage: str) -> None:
    harm, expected = TINY_DAMAGE[damage]
    harm(make_tiny(tmp_path))
    assert f"tiny-imagenet-200/{expected}" in refusal("tiny-imagenet", tmp_path)


# --- HAR -------------------------------------------------------------------------------------------------


def same(one: Source, other: Source) -> bool:
    pairs = [(one.train, other.train), (one.test, other.test)]
    return one.mean == other.mean and all(
        torch.equal(a.x, b.x)
        and torch.equal(a.y, b.y)
        and a.subject is not None
        and b.subject is not None
        and torch.equal(a.subject, b.subject)
        for a, b in pairs
    )


# Where the windows of RECORDINGS go: sorted by person, activity, time; the last 20 % of each are test.
TRAIN = [6, 0, 1, 2, 3, 4, 5, 7, 8, 29, 30, 24, 25, 26, 27, *range(11, 20), 22]
TEST = [9, 10, 31, 28, 20, 21, 23]


def test_har_folder_and_split(tmp_path: Path) -> None:
    windows = make_windows(RECORDINGS)
    write_har_folder(tmp_path, windows)
    source = load_source("har", tmp_path)
    assert (source.shape, source.classes, source.train.x.dtype) == ((9, 128), 6, torch.float32)
    for split, places in ((source.train, TRAIN), (source.test, TEST)):
        assert split.subject is not None
        assert split.y.tolist() == windows.y[places].tolist()
        assert split.subject.tolist() == (windows.subject[places] - 1).tolist()
        assert np.allclose(split.x.numpy(), windows.x[places], atol=1e-6)
    assert sorted(TRAIN + TEST) == list(range(len(windows.y)))
    close_to_constants(source, 1e-3)


def test_har_forms_agree(tmp_path: Path) -> None:
    windows = make_windows(RECORDINGS)
    write_har_folder(tmp_path / "a", windows)
    for place in "bcd":
        (tmp_path / place).mkdir()
    write_har_npz(tmp_path / "b", windows)
    write_har_npz(tmp_path / "c", windows, y=windows.y + 1)
    by_step = windows.x.transpose(0, 2, 1).reshape(windows.x.shape)
    write_har_npz(tmp_path / "d", windows, X=by_step)
    official, from_0, from_1, mixed = (load_source("har", tmp_path / place) for place in "abcd")
    assert same(official, from_0)
    assert same(official, from_1)
    assert same(official, mixed)


def test_har_folder_goes_first(tmp_path: Path) -> None:
    write_har_folder(tmp_path, make_windows(RECORDINGS))
    (tmp_path / "uci-har.npz").write_bytes(b"broken")
    assert len(load_source("har", tmp_path).test) == 7


def shared_halves(source: Source) -> int:
    """Return how many test windows have a half that is also in a train window."""
    halves = [{w.tobytes() for w in s.x[:, :, k : k + 64].numpy()} for s in (source.train,) for k in (0, 64)]
    heads, tails = halves
    test = source.test.x.numpy()
    return sum(w[:, 64:].tobytes() in heads or w[:, :64].tobytes() in tails for w in test)


def test_har_shuffled_file_is_put_in_order(tmp_path: Path) -> None:
    windows = make_windows(RECORDINGS)
    mixed = np.random.default_rng(3).permutation(len(windows.y))
    write_har_npz(tmp_path, windows, X=windows.x[mixed], y=windows.y[mixed], subject=windows.subject[mixed])
    source = load_source("har", tmp_path)
    # All but the first person's two recordings of activity 4 (whose order is lost) must be as recorded.
    assert np.array_equal(source.test.x[2:].numpy(), windows.x[TEST[2:]])
    assert np.array_equal(source.train.x[9:].numpy(), windows.x[TRAIN[9:]])
    # At most one pair a group shares samples: the one at the cut.
    assert shared_halves(source) <= 5


def test_recorded_order() -> None:
    x = make_windows([(1, 0, 5)]).x
    assert har.recorded_order(x[[3, 0, 4, 2, 1]]) == [1, 4, 3, 0, 2]
    assert har.recorded_order(np.zeros((4, 9, 128), np.float32)) == [0, 1, 2, 3]
    assert har.recorded_order(x[[2, 1, 1, 0]]) == [0, 1, 2, 3]  # which of the two is meant is not told
    around = np.concatenate([x[:2], np.concatenate([x[1:2, :, 64:], x[:1, :, :64]], axis=2)])
    assert har.recorded_order(around) == [0, 1, 2]


def har_file(folder: Path, name: str) -> Path:
    return folder / "train" / name


def edit(path: Path, line: int, change: Callable[[str], str]) -> None:
    lines = path.read_text().splitlines()
    lines[line - 1] = change(lines[line - 1])
    path.write_text("\n".join(lines) + "\n")


SIGNAL = "Inertial Signals/body_gyro_y_train.txt"
HAR_DAMAGE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "missing": (SIGNAL, Path.unlink, "not found"),
    "empty": (SIGNAL, lambda p: p.write_text(""), "is empty"),
    "cut": (SIGNAL, lambda p: cut(p, 40), "line 24 has 126 columns, expected 128"),
    "columns": (SIGNAL, lambda p: edit(p, 2, lambda s: s + " 1.0"), "line 2 has 129 columns, expected 128"),
    "blank": (SIGNAL, lambda p: edit(p, 2, lambda s: ""), "line 2 has 0 columns, expected 128"),
    "rows": (
        SIGNAL,
        lambda p: edit(p, 1, lambda s: s + "\n" + s),
        "has 25 lines, expected 24 as in y_train.txt",
    ),
    "word": (
        SIGNAL,
        lambda p: edit(p, 5, lambda s: "x" + s.lstrip()[1:]),
        "line 5 holds something that is not a number",
    ),
    "nan": (
        SIGNAL,
        lambda p: edit(p, 3, lambda s: "nan " + s.split(maxsplit=1)[1]),
        "line 3 holds a value that is not finite",
    ),
    "huge": (
        SIGNAL,
        lambda p: edit(p, 4, lambda s: "1e99 " + s.split(maxsplit=1)[1]),
        "line 4 holds a value that is not finite",
    ),
    "binary": (SIGNAL, lambda p: p.write_bytes(b"\xff\x00"), "not a plain text file"),
    "label 0": ("y_train.txt", lambda p: edit(p, 2, lambda s: "0"), "label 0 at place 2, expected 1..6"),
    "label 7": ("y_train.txt", lambda p: edit(p, 9, lambda s: "7"), "label 7 at place 9, expected 1..6"),
    "half a label": (
        "y_train.txt",
        lambda p: edit(p, 2, lambda s: "2.5"),
        "line 2 holds 2.5, expected a whole number",
    ),
    "giant person": (
        "subject_train.txt",
        lambda p: edit(p, 2, lambda s: "1e30"),
        "line 2 holds 1",
    ),
    "people": (
        "subject_train.txt",
        lambda p: cut(p, 2),
        "has 23 lines, expected 24 as in y_train.txt",
    ),
}


@pytest.mark.parametrize("damage", HAR_DAMAGE)
def test_har_folder_damage(tmp_path: Path, damage: str) -> None:
    name, harm, expected = HAR_DAMAGE[damage]
    harm(har_file(write_har_folder(tmp_path, make_windows(RECORDINGS)), name))
    line = refusal("har", tmp_path)
    assert f"UCI HAR Dataset/train/{name}: {expected}" in line
    assert "the folder that contains 'UCI HAR Dataset'" in line


def test_har_missing(tmp_path: Path) -> None:
    assert f"{tmp_path}: neither 'UCI HAR Dataset' nor uci-har.npz found" in refusal("har", tmp_path)


class Unsafe:
    """An object whose unpickling would be seen."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.putenv, ("CFLAG_UNPICKLED", "yes")


W = make_windows(RECORDINGS)
NPZ_DAMAGE: dict[str, tuple[dict[str, Array], str]] = {
    "shape": ({"X": W.x[:, :8]}, "X is (32, 8, 128), y (32,), subject (32,); expected X (32, 9, 128)"),
    "labels": ({"y": W.y[:-1]}, "y (31,), subject (32,); expected X (31, 9, 128)"),
    "scalar": ({"y": np.array(1)}, "y (), subject (32,)"),
    "none": ({"X": W.x[:0], "y": W.y[:0], "subject": W.y[:0]}, "expected X (0, 9, 128)"),
    "people": ({"subject": W.subject[:-1]}, "y (32,), subject (31,)"),
    "kind": ({"y": W.y.astype(float)}, "expected X of floating point, y and subject of whole numbers"),
    "nan": ({"X": np.where(W.x == W.x[3, 2, 1], np.nan, W.x)}, "X holds values that are not finite"),
    "huge": ({"X": W.x.astype(np.float64) * 1e99}, "X holds values that are not finite"),
    "label": ({"y": np.where(np.arange(32) == 4, 6, W.y)}, "label 6 at place 5, expected 0..5"),
    "negative": ({"y": W.y - 1}, "label -1 at place 7, expected 0..5"),
    "objects": (
        {"X": np.array([Unsafe()] * 32)},
        "broken .npz file, or one that holds more than plain numbers",
    ),
}


@pytest.mark.parametrize("damage", NPZ_DAMAGE)
def test_har_npz_damage(tmp_path: Path, damage: str) -> None:
    changes, expected = NPZ_DAMAGE[damage]
    write_har_npz(tmp_path, W, **changes)
    line = refusal("har", tmp_path)
    assert line.startswith("uci-har.npz: ")
    assert expected in line


BROKEN_NPZ: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda p: cut(p, 100), "broken .npz file"),
    "empty": (lambda p: p.write_bytes(b""), "broken .npz file"),
    "text": (lambda p: p.write_text("X, y, subject"), "broken .npz file"),
    "flipped": (lambda p: put(p, 30_000, p.read_bytes()[30_000] ^ 0xFF), "broken .npz file"),
    "npy": (lambda p: shutil.move(save_npy(p), p), "broken .npz file"),
    "no people": (
        lambda p: np.savez(p, X=W.x, y=W.y),
        "has no array subject; expected X, y, subject",
    ),
}


def save_npy(path: Path) -> Path:
    np.save(path.with_suffix(".npy"), W.x)
    return path.with_suffix(".npy")


@pytest.mark.parametrize("damage", BROKEN_NPZ)
def test_har_npz_broken(tmp_path: Path, damage: str) -> None:
    harm, expected = BROKEN_NPZ[damage]
    harm(write_har_npz(tmp_path, W))
    assert f"uci-har.npz: {expected}" in refusal("har", tmp_path)


# --- the real data, where it is at hand ------------------------------------------------------------------

DATA = os.environ.get("CFLAG_DATA")
REAL = Path(DATA) if DATA else None


def real(name: str) -> pytest.MarkDecorator:
    there = REAL is not None and find_reader(name).present(REAL)
    return pytest.mark.skipif(not there, reason=f"CFLAG_DATA holds no {name}")


def images(name: str, train: int, test: int, shape: tuple[int, ...]) -> Source:
    source = load_source(name, REAL)
    assert source.train.x.shape == (train, *shape)
    assert source.test.x.shape == (test, *shape)
    assert source.train.x.dtype == torch.uint8
    assert (int(source.train.x.min()), int(source.train.x.max())) == (0, 255)
    return source


def balanced(labels: torch.Tensor, classes: int) -> bool:
    return labels.bincount(minlength=classes).tolist() == [len(labels) // classes] * classes


@real("mnist")
def test_real_mnist() -> None:
    source = images("mnist", 60_000, 10_000, (1, 28, 28))
    train, test = source.train.y.bincount().tolist(), source.test.y.bincount().tolist()
    assert train == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert source.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    close_to_constants(source, 1e-4)


@real("fashion-mnist")
def test_real_fashion_mnist() -> None:
    source = images("fashion-mnist", 60_000, 10_000, (1, 28, 28))
    assert balanced(source.train.y, 10)
    assert balanced(source.test.y, 10)
    assert source.train.y[:5].tolist() == [9, 0, 0, 3, 0]
    close_to_constants(source, 1e-4)


@real("cifar10")
def test_real_cifar10() -> None:
    source = images("cifar10", 50_000, 10_000, (3, 32, 32))
    assert balanced(source.train.y, 10)
    assert balanced(source.test.y, 10)
    # The first train image is a frog whose first pixel is (59, 62, 63).
    assert source.train.y[:5].tolist() == [6, 9, 9, 4, 1]
    assert source.train.x[0, :, 0, 0].tolist() == [59, 62, 63]
    close_to_constants(source, 1e-4)


@real("cifar100")
def test_real_cifar100() -> None:
    source = images("cifar100", 50_000, 10_000, (3, 32, 32))
    assert balanced(source.train.y, 100)
    assert balanced(source.test.y, 100)
    assert source.train.y[:5].tolist() == [19, 29, 0, 11, 1]
    close_to_constants(source, 1e-4)


@real("tiny-imagenet")
def test_real_tiny_imagenet() -> None:
    source = load_source("tiny-imagenet", REAL)
    assert (source.shape, source.classes) == ((3, 64, 64), 200)
    assert balanced(source.train.y, 200)
    assert balanced(source.test.y, 200)
    close_to_constants(source, 5e-3)  # it may be a subset


@real("har")
def test_real_har() -> None:
    source = load_source("har", REAL)
    assert source.shape == (9, 128)
    assert len(source.train) + len(source.test) == 10_299
    together = torch.cat([source.train.y, source.test.y]).bincount().tolist()
    assert together == [1722, 1544, 1406, 1777, 1906, 1944]
    assert source.train.subject is not None
    assert source.test.subject is not None
    assert set(source.train.subject.tolist()) == set(range(30))
    assert set(source.test.subject.tolist()) == set(range(30))
    # Body acceleration and turning rest around zero; the phone at the waist feels gravity along x.
    assert list(source.mean) == pytest.approx([0, 0, 0, 0, 0, 0, 0.8, 0, 0.1], abs=0.05)
    assert list(source.std[:3]) == pytest.approx([0.19, 0.12, 0.10], abs=0.01)
    # Of 30 people's 6 activities each at most the pair at the cut shares samples.
    assert shared_halves(source) <= 180
