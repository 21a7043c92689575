"""The documentation site: it builds without a warning, its links lead somewhere, and its pages do what they say."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import cflag
from cflag import cli, registry
from tests.support.pages import ROOT, blocks, lines

DOCS = ROOT / "docs"
OWN = ["docs/start.md", "docs/tutorial.md"]
"""Pages whose every block of `bash` and `python` is run as it stands, one after the other, in an empty folder."""


class Page(HTMLParser):
    """What a page links to, loads, and can be linked to by."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of a tag."""
        named = {name: value or "" for name, value in attrs}
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        if tag in ("img", "script") and "src" in named:
            self.loads.append(named["src"])
        if tag == "link" and named.get("rel") == "stylesheet":
            self.loads.append(named["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(out)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not built.returncode, built.stderr
    return out


@pytest.mark.slow
def test_the_site_builds_and_every_link_of_it_leads_somewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 40
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            if re.match(r"\w+:", link):
                assert link not in page.loads, f"{path.name} loads {link} from elsewhere"
                continue
            name, _, anchor = unquote(link).partition("#")
            there = (path.parent / name.partition("?")[0]).resolve() if name else path
            assert there.exists(), f"{path.relative_to(site)}: {link}"
            if anchor and there in pages:
                assert anchor in pages[there].anchors, f"{path.relative_to(site)}: {link}"
    text = (site / "methods" / "cflag.html").read_text()
    assert "<math" in text
    assert "the constraint of the problem it solves" in text, "settings say what the code says of them"
    numbers = text.partition('id="numbers"')[2]
    assert 0 < numbers.index("Task-incremental, IID") < numbers.index("On pretrained features"), (
        "the paper's come first"
    )


MEASURE = """
addEventListener("load", () => {
  // The theme lets the whole text scroll, so the width of a page says nothing; what is in a table may be wider.
  const scrolls = (box) => ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
  const inside = (box, around = box.parentElement) => around.closest("article") && (scrolls(around) || inside(around));
  const wide = (frame) => Math.ceil(Math.max(0, ...[...frame.contentDocument.querySelectorAll("article *")]
    .filter((box) => !inside(box)).map((box) => box.getBoundingClientRect().right)));
  document.title = [...document.querySelectorAll("iframe")].map((frame) => frame.name + "=" + wide(frame)).join(" ");
});
"""
PHONE = 420


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
def test_no_page_is_wider_than_a_phone(site: Path, tmp_path: Path) -> None:
    """Tables, code and formulas scroll inside of it. A page that is wider is told from the others: the last one."""
    pages = [page for page in site.rglob("*.html") if "_modules" not in page.parts]
    (tmp_path / "wide.html").write_text(f'<article><p style="width: {PHONE + 1}px">wide')
    frames = "".join(
        f'<iframe name="{page.stem}" src="{page.as_uri()}" style="width: {PHONE}px; height: 800px"></iframe>'
        for page in [*pages, tmp_path / "wide.html"]
    )
    (tmp_path / "all.html").write_text(f"<title></title>{frames}<script>{MEASURE}</script>")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "all.html").as_uri()]  # fmt: skip
    done = subprocess.run(["chromium", *flags], capture_output=True, text=True, timeout=300, check=False)
    found = re.search("<title>(.*?)</title>", done.stdout)
    assert found, done.stderr[-500:]
    widths = [(name, int(wide)) for name, wide in (word.split("=") for word in found[1].split())]
    assert len(widths) == len(pages) + 1
    assert [name for name, wide in widths if wide > PHONE] == ["wide"]


def test_every_method_has_a_page_with_the_same_parts() -> None:
    pages = {path.stem: path.read_text() for path in (DOCS / "methods").glob("*.md") if path.stem != "index"}
    assert sorted(pages) == sorted(registry.names("method"))
    index = (DOCS / "methods" / "index.md").read_text()
    for name, text in pages.items():
        heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
        idea, equations, differs, *rest = heads
        assert (idea, equations, differs.split(" from ")[0]) == ("Idea", "Equations", "What differs"), name
        assert rest == ["Settings", "Numbers"], name
        assert f"{{settings}} {name}\n" in text
        assert f"{{numbers}} {name}\n" in text
        assert f"\n{name}\n" in index


def test_the_reference_has_all_public_names_and_no_other() -> None:
    text = (DOCS / "api.md").read_text()
    shown = re.findall(r"^\.\. auto\w+:: cflag\.(\w+)$", text, re.MULTILINE)
    assert sorted([*shown, *re.findall(r"^`(\w+)`", text, re.MULTILINE)]) == sorted(cflag.__all__)


def assert_printed(shown: str, printed: str) -> None:
    """A page shows the first columns of the table that its last command printed, and calls them what the table does."""
    table = [line.split() for line in printed.splitlines()]
    head, *rows = [line.split() for line in shown.splitlines()]
    for row in rows:
        assert row in [line[: len(row)] for line in table], f"{row} was not printed:\n{printed}"
    names = [name for name in head if name not in ("method", "%")]
    assert names in [line[: len(names)] for line in table]


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures", "runs_here")
@pytest.mark.parametrize("page", OWN)
def test_what_a_page_says_can_be_done(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for kind, text in blocks(page, "bash", "python", "text"):
        if kind == "text":
            assert_printed(text, capsys.readouterr().out)
            continue
        if kind == "bash":
            for line in lines(text):
                words = shlex.split(line, comments=True)
                if words[1] != "deploy":  # a real fleet does it: tests/test_fleets_of_pages.py
                    assert words[0] == "cflag"
                    assert cli.main(words[1:]) == 0, line
        else:
            name = re.match(r"# (\w+\.py)\n", text)
            assert name, "a block of Python begins with the name of its file"
            Path(name[1]).write_text(text)
            if "__main__" in text:
                subprocess.run([sys.executable, name[1]], check=True, capture_output=True)


def test_the_readme_is_a_shop_window() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    assert "smoke" not in text


def test_the_first_picture_is_what_the_ledger_has() -> None:
    """Its last points carry the numbers of the ledger's own table; the file is what the drawing makes of them today."""
    module = runpy.run_path(str(DOCS / "_ext" / "forgetting.py"))
    assert module["PICTURE"].read_text(encoding="utf-8") == module["picture"]()
    part = (
        (DOCS / "results.md").read_text(encoding="utf-8").partition("## figure-tasks\n")[2].partition("**cifar100**")[0]
    )
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")
    ]
    last = {cells[0]: cells[5].split(" ")[0] for cells in table}
    drawn = dict(re.findall(r">([\w -]+) ([\d.]+)<", module["picture"]()))
    assert drawn == {
        "replay": last["Erg-FL"],
        "EWC": last["EWC-FL"],
        "C-FLAG": last["C-FLAG, as in the paper's experiments"],
        "plain training": last["Fine-FL"],
    }
