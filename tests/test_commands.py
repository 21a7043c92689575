"""Every command that a page names is one: its options, presets, settings, methods, targets and modules exist."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from cflag.cli import main, parser
from cflag.commands.common import configs_of, names_in
from cflag.commands.paper import _reproduce
from cflag.engines.flower.identity import fingerprint
from cflag.engines.flower.server.register import Register
from cflag.paper.campaigns import find_campaign
from cflag.paper.cells import chosen
from tests.support.pages import PAGES, ROOT, blocks, file_of, lines, mentions, settle

HISTORY = "CHANGELOG.md"
"""Says what there was; commands in it may be gone."""
PLACEHOLDER = re.compile(r"[A-Z]+|\.\.\.")
"""What stands for something in a command that is spoken of."""


def lines_of(page: str) -> list[str]:
    """Return what a page's blocks give to a shell."""
    return [line for block in blocks(page, "", "bash") for line in lines(block.text)]


def starting(word: str) -> list[tuple[str, str]]:
    """Return the commands that begin with a word, in blocks or in the text, with their pages."""
    found = [(page, line) for page in PAGES if page != HISTORY for line in (*lines_of(page), *mentions(page))]
    return [(page, line) for page, line in dict.fromkeys(found) if line.startswith(f"{word} ")]


def command_of(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of the command that words begin with, and what is left of them."""
    found = parser()
    while words and not words[0].startswith("-"):
        inner = [action for action in found._actions if isinstance(action, argparse._SubParsersAction)]
        if not inner:
            break
        assert words[0] in inner[0].choices, f"there is no command {words[0]}"
        found, words = inner[0].choices[words[0]], words[1:]
    return found, words


def parsed(words: list[str]) -> argparse.Namespace | None:
    """Return what the parser makes of a command; None of one that is only spoken of, or has DIR and the like in it."""
    try:
        return parser().parse_args(words)
    except SystemExit:
        return None


def check(args: argparse.Namespace) -> None:
    """Refuse presets, settings, methods and campaigns that do not exist; a file of another page is its own test's."""
    if args.command is _reproduce:
        lists = [names_in("", given) if given else [] for given in (args.methods, args.sources, args.groups)]
        points = [float(text) for text in names_in("", args.at)] if args.at else []
        rows, sources, groups = lists
        chosen(find_campaign(args.name), args.scale or "small", rows, sources, groups, points)
    elif getattr(args, "preset", None) and not getattr(args, "resume", None):
        files = [*args.plugin, *([args.preset] if args.preset.endswith(".toml") else [])]
        if all(Path(file).is_file() for file in files):
            methods = getattr(args, "methods", None)
            configs_of(args, names_in("", methods) if methods else [None], [None])


@pytest.mark.parametrize("page", [page for page in PAGES if page != HISTORY])
def test_every_command_of_a_page_is_one(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CFLAG_DATA", raising=False)
    settle(tmp_path)
    for block in blocks(page):
        if file := file_of(block):
            Path(file).write_text(block.text)
    shell, spoken = lines_of(page), mentions(page)
    for line in (line for line in (*shell, *spoken) if line.startswith("cflag ")):
        words = shlex.split(line, comments=True)
        found, rest = command_of(words[1:])
        options = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert options <= set(found._option_string_actions), line
        args = parsed(words[1:])
        if args is not None and not any(PLACEHOLDER.fullmatch(word) for word in rest):
            check(args)
        assert args is not None or line in spoken or "..." in words, capsys.readouterr().err


@pytest.mark.parametrize(("page", "line"), starting("make"))
def test_a_target_is_one(page: str, line: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in shlex.split(line, comments=True)[1:]:
        assert "=" in target or re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: {line}"


@pytest.mark.parametrize(("page", "line"), starting("python"))
def test_a_module_is_one(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "-m":
        name = words[1].replace(".", "/")
        assert (ROOT / f"{name}.py").is_file() or (ROOT / name / "__main__.py").is_file(), f"{page}: {line}"
    elif not words[0].startswith(("runs/", "-c")):  # what a run made; code
        of_the_page = {file_of(block) for block in blocks(page)}
        assert words[0] in of_the_page or (ROOT / words[0]).is_file(), f"{page}: {line}"


def test_what_is_copied_to_a_server_is_there_and_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`scp` needs a second machine: here a folder is one, and the server's own look at its keys finds what came."""
    (block,) = [block for block in blocks("docs/deploy.md", "") if "scp " in block.text]
    make, copy = (shlex.split(line, comments=True) for line in lines(block.text)[:2])
    for machine, words in {
        "fl.example.org": ["keys", "client", "keys/clients", "--name", "a"],
        "new": make[1:],
    }.items():
        (tmp_path / machine).mkdir()
        monkeypatch.chdir(tmp_path / machine)
        assert main(words) == 0
    program, what, where = copy
    register = Register(tmp_path / "run", tmp_path / "fl.example.org" / "keys" / "clients")
    assert program == "scp"
    assert "is not registered" in register.doubt(2, fingerprint(Path(what).read_bytes()), [])
    shutil.copy(what, tmp_path / where.replace(":", "/"))
    assert not register.doubt(2, fingerprint(Path(what).read_bytes()), [])


def test_an_extra_is_one() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for page in PAGES for extra in re.findall(r"cflag\[(\w+)\]", (ROOT / page).read_text())}
    assert named
    assert named <= set(extras)
