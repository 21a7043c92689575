"""What stands on pages for users works as it stands there, in the order it stands there."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cflag import FedAvgSettings, Result, run
from cflag.augmentations.base import AMOUNTS
from cflag.cli import main
from cflag.data.load import load_source
from tests.support.pages import blocks, file_of, lines

pytestmark = pytest.mark.usefixtures("no_figures")


def follow(page: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, object]]:
    """Do what a page says: run its commands, execute its Python; save what begins with a file's name there."""
    names: dict[str, object] = {}
    printed = ""
    for block in blocks(f"docs/{page}"):
        if file := file_of(block):
            Path(file).write_text(block.text)
        elif block.kind == "python":
            exec(compile(block.text, page, "exec"), names)
        else:
            for line in lines(block.text):
                program, *words = shlex.split(line, comments=True)
                assert program == "cflag", line
                assert main(words) == 0, capsys.readouterr().err
                printed += capsys.readouterr().out
    return printed, names


def test_use_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    x = load_source("digits").test.x[:4]
    np.savez("some.npz", x=x.numpy())
    np.savetxt("rows.csv", x.flatten(1).numpy(), delimiter=",", fmt="%d")
    Image.fromarray(x[3, 0].numpy()).resize((64, 64)).save("three.png")
    printed, names = follow("use-the-model.md", capsys)
    model, found = names["model"], names["x"]
    assert isinstance(found, torch.Tensor)
    expected = model.predict(found).tolist()  # type: ignore[attr-defined]
    lines = [line.split(",") for line in printed.splitlines() if line.startswith("some.npz,")]
    assert [int(line[2]) for line in lines] == expected


def test_your_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All run; replay by halves of one's own is the mean of two gradients, which `er-ace` is with tasks told."""
    monkeypatch.chdir(tmp_path)
    _, names = follow("your-method.md", capsys)
    assert names["model"].seen == (0, 1)  # type: ignore[attr-defined]
    rows = (tmp_path / "runs" / "rolling" / "metrics.jsonl").read_text().splitlines()
    assert all('"speed": ' in row for row in rows)
    same: dict[str, Any] = {"rounds": 2, "tasks": 2, "er-ace": {"lr": FedAvgSettings.lr}}
    other = run("digits", method="er-ace", out=tmp_path / "er-ace", **same)
    ours = Result.load(tmp_path / "runs" / "gentle")
    assert [row["loss"] for row in ours.metrics] == pytest.approx([row["loss"] for row in other.metrics], rel=1e-5)
    assert ours.metrics[-1]["memory_loss"] == pytest.approx(other.metrics[-1]["memory_loss"], rel=1e-5)


def test_augmentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    printed, _ = follow("augmentation.md", capsys)
    listed = printed.partition("crop ")[2]
    assert all(name in listed for name in AMOUNTS[1:])
    losses = {Result.load(tmp_path / "runs" / name).metrics[0]["loss"] for name in ("usual", "varied", "upside")}
    assert len(losses) == 3
