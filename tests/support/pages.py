"""What stands on the pages for users: their blocks of code, and the commands that their text mentions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if "_build" not in path.parts
)
"""All pages, as paths from the repository's root; those of docs/ are the site's."""
PROGRAMS = ("cflag", "make", "python")
"""What a text between backticks begins with if it is a command that we can look at."""


class Block(NamedTuple):
    """A block of code: what its fence says it is, and its text."""

    kind: str
    text: str


def blocks(page: str, *kinds: str) -> list[Block]:
    """Return a page's blocks, or those of some kinds; the directives of the site's builder are none."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(*block) for block in found if not block[0].startswith("{") and (not kinds or block[0] in kinds)]


def lines(text: str) -> list[str]:
    """Return the lines of a block that are something to do: continued ones as one, without empty ones."""
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def mentions(page: str, *programs: str) -> list[str]:
    """Return the commands between backticks in a page's text, of these programs; several in one are apart."""
    text = re.sub(
        r"^```[^\n]*\n.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    found = [part.strip() for code in re.findall(r"`([^`]+)`", text) for part in code.replace("\n", " ").split(";")]
    return [code for code in found if code.split(" ")[0] in (programs or PROGRAMS) and " " in code]


def file_of(block: Block) -> str | None:
    """Return the name of the file that a block is, where it begins with one."""
    named = re.match(r"# (\w+\.\w+)\n", block.text)
    return named[1] if named else None


METHOD = """
from cflag import FedAvg, register

register("method", "mine")(FedAvg)
"""
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, shape, outputs, options):
        super().__init__(nn.Flatten(), nn.Linear(64, outputs))
"""


def settle(folder: Path) -> None:
    """Put into a folder what pages take for granted: a method, a model and an experiment of one's own, the examples."""
    (folder / "mine.py").write_text(METHOD)
    (folder / "net.py").write_text(NET)
    for name in ("experiment.toml", "mine.toml"):
        (folder / name).write_text('base = "digits"\n')
    (folder / "examples").symlink_to(ROOT / "examples")
