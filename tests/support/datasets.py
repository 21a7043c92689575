"""Writers of small data sets in the official formats."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from cflag import registry
from cflag.data.load import find_reader
from cflag.data.sources import har
from cflag.data.sources.base import SourceReader

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)


def cut(path: Path, count: int = 1) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def write_idx(path: Path, array: Array) -> None:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = head + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def make_mnist(root: Path, folder: str = "mnist", end: str = "") -> dict[str, Array]:
    arrays = {
        "train-images-idx3-ubyte": RNG.integers(0, 256, (5, 28, 28)),
        "train-labels-idx1-ubyte": np.array([3, 1, 4, 1, 9]),
        "t10k-images-idx3-ubyte": RNG.integers(0, 256, (2, 28, 28)),
        "t10k-labels-idx1-ubyte": np.array([2, 7]),
    }
    for name, array in arrays.items():
        write_idx(root / folder / (name + end), array)
    return arrays


def write_cifar(path: Path, labels: list[list[int]]) -> Array:
    """Write records with random pixels and return the pixels."""
    pixels = RNG.integers(0, 256, (len(labels), 3072)).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.concatenate([np.array(labels, np.uint8), pixels], axis=1).tofile(path)
    return pixels.reshape(-1, 3, 32, 32)


def make_cifar10(root: Path) -> tuple[list[Array], Array]:
    folder = root / "cifar-10-batches-bin"
    train = [write_cifar(folder / f"data_batch_{k}.bin", [[k], [0], [9], [k]]) for k in range(1, 6)]
    return train, write_cifar(folder / "test_batch.bin", [[7], [8], [9]])


def make_cifar100(root: Path) -> None:
    folder = root / "cifar-100-binary"
    write_cifar(folder / "train.bin", [[19, 99], [0, 1], [2, 3], [4, 5], [6, 7], [8, 9]])
    write_cifar(folder / "test.bin", [[1, 50], [1, 51], [1, 52], [1, 53]])


COLOURS = {"n02": (250, 10, 10), "n01": (10, 250, 10), "n03": (10, 10, 250)}


def save_jpeg(path: Path, colour: tuple[int, ...], side: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "RGB" if len(colour) == 3 else "L"
    Image.new(mode, (side, side), colour if mode == "RGB" else colour[0]).save(path, "JPEG", quality=95)


def make_tiny(root: Path) -> Path:
    """Make three classes with two train images each, and two val images each; wnids.txt is not sorted."""
    folder = root / "tiny-imagenet-200"
    rows = []
    for number, (wnid, colour) in enumerate(COLOURS.items()):
        for image in (0, 1):
            save_jpeg(folder / "train" / wnid / "images" / f"{wnid}_{image}.JPEG", colour)
            rows.append((f"val_{5 - 2 * number - image}.JPEG", wnid))
            save_jpeg(folder / "val" / "images" / rows[-1][0], colour)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("not an image\n")
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in COLOURS))
    rows.sort()
    (folder / "val" / "val_annotations.txt").write_text("".join(f"{file}\t{wnid}\t0\t0\t9\t9\n" for file, wnid in rows))
    return folder


# (subject, activity from 0, windows) in recorded order; subjects 1 and 3 are the official train half.
RECORDINGS = [(1, 4, 6), (1, 0, 1), (1, 4, 4), (3, 0, 11), (3, 5, 2), (2, 5, 5), (2, 0, 3)]


def make_windows(recordings: list[tuple[int, int, int]]) -> har.Windows:
    """Cut smooth signals into windows that overlap by half; all values are exact in float16."""
    x, y, subject = [], [], []
    for number, (who, what, count) in enumerate(recordings):
        steps = np.arange((count + 1) * 64)
        signals = [np.round(400 * np.sin((steps + 37 * number) / (9 + c))) / 256 + c / 8 for c in range(9)]
        for k in range(count):
            x.append(np.stack(signals)[:, 64 * k : 64 * k + 128])
            y.append(what)
            subject.append(who)
    return har.Windows(np.array(x, np.float32), np.array(y), np.array(subject))


def write_har_folder(root: Path, windows: har.Windows) -> Path:
    folder = root / "UCI HAR Dataset"
    for half, chosen in (("train", windows.subject != 2), ("test", windows.subject == 2)):
        (folder / half / "Inertial Signals").mkdir(parents=True)
        np.savetxt(folder / half / f"y_{half}.txt", windows.y[chosen] + 1, fmt="%d")
        np.savetxt(folder / half / f"subject_{half}.txt", windows.subject[chosen], fmt="%d")
        for channel, signal in enumerate(har.SIGNALS):
            path = folder / half / "Inertial Signals" / f"{signal}_{half}.txt"
            np.savetxt(path, windows.x[chosen, channel], fmt=" % .7e")
    return folder


def write_har_npz(root: Path, windows: har.Windows, **changes: Array) -> Path:
    arrays: dict[str, Any] = {"X": windows.x.astype(np.float16), "y": windows.y, "subject": windows.subject}
    path = root / "uci-har.npz"
    np.savez(path, **{**arrays, **changes})
    return path


def put_reader(monkeypatch: pytest.MonkeyPatch, reader: SourceReader) -> None:
    """Let a registered source be read by this reader."""
    find_reader(reader.name)  # so that it is registered
    part = registry._parts["source", reader.name]
    monkeypatch.setitem(registry._parts, ("source", reader.name), replace(part, thing=reader))
