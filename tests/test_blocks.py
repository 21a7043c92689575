"""Every block of code on every page is run, in small form, or is named here with the reason why not."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cflag import Source
from cflag.cli import main
from cflag.config import flatten, load_raw, merge, resolve
from cflag.data.load import find_reader
from cflag.data.sources.base import FunctionReader
from tests.support.datasets import put_reader
from tests.support.pages import PAGES, ROOT, Block, blocks, file_of, lines, settle
from tests.support.tiny_backbones import chain, register_tiny

ELSEWHERE = {
    "CONTRIBUTING.md": ("test_contributing.py", "python toml"),
    "README.md": ("test_examples.py", "python"),
    "docs/augmentation.md": ("test_pages.py", "shell python"),
    "docs/problems.md": ("test_problems_page.py", "bash python"),
    "docs/start.md": ("test_site.py", "bash text"),
    "docs/tune.md": ("test_own.py", "python"),
    "docs/tutorial.md": ("test_site.py", "bash python text"),
    "docs/use-the-model.md": ("test_pages.py", "shell python"),
    "docs/your-data.md": ("test_your_data.py", "shell python toml"),
    "docs/your-method.md": ("test_pages.py", "shell python"),
}
"""Pages that have a test of their own, and the kinds of blocks that it runs; a fence that names none is `shell`."""
NOT_RUN = {
    r"make |pip |\.venv/bin/pip |python3\.11 -m venv": "installs: tests/test_wheel.py; targets: tests/test_commands.py",
    r"docker |scp ": "needs a daemon or a machine: what is named is there, tests/test_containers.py, test_commands.py",
    r"flwr |flower-supernode |APP=": "needs a SuperLink: tests/test_deployment.py",
    r"cflag deploy ": "starts a fleet: tests/test_fleets_of_pages.py, tests/test_your_data.py",
    r"cflag (server|client|accept) ": "tests/test_fleets_of_pages.py, tests/test_deployment.py, tests/test_joining.py",
    r"cflag data get ": "downloads: tests/test_download.py",
    r"cflag watch .* --serve|tensorboard ": "stays until it is stopped: tests/test_report_live.py",
    r"cflag ledger ": "needs the summaries of many runs: tests/test_ledger.py",
}
"""Commands that are not run, by what they begin with, and why; all others of the same block are. Whether those that are
not would be understood is for test_commands.py."""
NO_COMMANDS = {
    r"\[Service\]": "a file of the machine's own",
    r"source\.toml  ": "a drawing of a folder",
    r"refused node ": "what a server prints: tests/test_means.py",
    r"src/cflag/": "the source tree",
    r"def round\(self, server\):": "an excerpt of methods/cflag.py",
}
"""Blocks that are nothing to do, by what they begin with."""


SMALLER = {
    "run": "--quiet --workers 1 --set rounds=1 --set epochs=1",
    "compare": "--seeds 1 --jobs 1 --set rounds=1 --set epochs=1",
    "tune": "--trials 1 --jobs 1 --set rounds=1 --set epochs=1",
    "reproduce": "--dry-run",
    "theory": "--problem quadratic --rounds 2,4",
}
"""What makes a command small: of an option that is given twice the last one counts."""
TINY = "--set backbone=chain --set image_size=8"
"""A backbone that takes no time, in the place of a pretrained one."""
BASES = {"docs/task-free.md": "protocol:drift-sea", "docs/pretrained.md": "cifar10-pretrained"}
"""The experiment that a page's fragments of a config change, where it is not `digits`."""
SLOW = ("docs/cflag-balanced.md", "docs/commands.md", "docs/comparison.md", "docs/theory.md", "docs/which-method.md")
"""Pages whose commands draw pictures, plan campaigns or check the theory first."""
MACHINES = ("docs/deploy.md",)
"""Pages on which each block is for another machine."""


def small_source(name: str, classes: int, side: int) -> FunctionReader:
    """A data set's stand-in: twelve pictures of a class to learn from, four held out."""
    y = torch.arange(16 * classes) % classes
    draw = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (len(y), 3, side, side), generator=draw, dtype=torch.uint8)
    cut = 12 * classes
    source = Source.from_tensors((x[:cut], y[:cut]), (x[cut:], y[cut:]), name)
    return FunctionReader(name=name, function=lambda _: source)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what pages take for granted: data sets, which are small here, and files of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CFLAG_DATA", raising=False)
    for name, classes, side in (
        ("cifar10", 10, 32),
        ("cifar100", 100, 32),
        ("fashion-mnist", 10, 28),
        ("tiny-imagenet", 20, 64),
    ):
        put_reader(monkeypatch, small_source(name, classes, side))
    register_tiny()
    for kind in ("a", "b", "c", "d", "e"):
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for number in range(30):
            Image.new("L", (8, 8), 50 * ord(kind) % 256 + number % 5).save(f"pictures/{kind}/{number}.png")
    Image.new("L", (8, 8), 3).save("scan.png")
    np.save("samples.npy", np.zeros((2, 1, 8, 8), np.uint8))
    settle(tmp_path)
    return tmp_path


def begins(text: str, starts: dict[str, str]) -> bool:
    """Return whether a text begins with one of these."""
    return any(re.match(start, text) for start in starts)


def smaller(words: list[str]) -> list[str]:
    """Return the options that make a command small; a resumed run takes none."""
    if "--resume" in words:
        return []
    pretrained = re.search(r"pretrained|protocol:(glfc|powder)", " ".join(words))
    return shlex.split(f"{SMALLER.get(words[0], '')} {TINY if pretrained else ''}")


def do(line: str, here: Path) -> None:
    """Give a command, in small form."""
    program, *words = shlex.split(line.replace("/etc/cflag", str(here)), comments=True)
    if program == "python":
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        return
    assert program == "cflag", f"{line}: neither a command that is run here nor one that NOT_RUN names"
    assert main([*words, *smaller(words)]) == 0, line


def take_in(page: str, block: Block, names: dict[str, Any], here: Path) -> None:
    """Do what a block says: save what begins with a file's name, execute Python, look at a config, give commands."""
    file = file_of(block)
    if file is not None:  # later commands may name it
        Path(file).write_text(block.text)
    elif (block.kind or "shell") in ELSEWHERE.get(page, ("", ""))[1].split() or begins(block.text, NO_COMMANDS):
        return
    elif block.kind == "python":
        exec(compile(block.text, page, "exec"), names)
    elif block.kind == "toml":
        given = flatten(tomllib.loads(block.text))
        resolve(merge(load_raw(BASES.get(page, "digits")), given))
    else:
        assert block.kind in ("", "bash"), f"{page}: nobody knows what to do with a block of {block.kind}"
        for line in lines(block.text):
            if not begins(line, NOT_RUN):
                do(line, here)


def marked(page: str) -> Any:
    return pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])


@pytest.mark.usefixtures("no_figures", "runs_here")
@pytest.mark.parametrize("page", [marked(page) for page in PAGES if blocks(page)])
def test_what_a_page_says_is_done(page: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = find_reader("cifar10").read(here)
    names: dict[str, Any] = {"__name__": "page", "pictures": pictures, "my_network": chain(), "load_my_network": chain}
    for number, block in enumerate(blocks(page)):
        if page in MACHINES:
            (here / f"machine-{number}").mkdir()
            monkeypatch.chdir(here / f"machine-{number}")
        take_in(page, block, names, here)


@pytest.mark.parametrize("page", ELSEWHERE)
def test_a_page_that_another_test_runs_is_read_there(page: str) -> None:
    file, kinds = ELSEWHERE[page]
    assert {block.kind or "shell" for block in blocks(page)} >= set(kinds.split())
    assert Path(page).stem in (ROOT / "tests" / file).read_text()


def test_no_reason_is_left_over() -> None:
    found = [block for page in PAGES for block in blocks(page)]
    said = [line for block in found for line in lines(block.text)]
    unused = [why for start, why in NOT_RUN.items() if not any(re.match(start, line) for line in said)]
    unused += [why for start, why in NO_COMMANDS.items() if not any(re.match(start, block.text) for block in found)]
    assert not unused


def test_a_command_that_is_not_run_takes_no_other_along(here: Path) -> None:
    take_in("docs/none.md", Block("", "pip install cflag\ncflag run digits --set tasks=2 --out runs/here\n"), {}, here)
    assert (here / "runs" / "here" / "result.json").is_file()
