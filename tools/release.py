"""Writes a release's version and day where they must stand in a file: `make release VERSION=1.2.3`.

The package's own version is the tag (setuptools-scm). Citations and Flower apps are read without git, so they hold what
the last release wrote; `python -m tools.release 1.2.3 --check` says whether a tag finds them written.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUMBER = r"(?:0|[1-9]\d*)"
VERSION = re.compile(rf"{NUMBER}\.{NUMBER}\.{NUMBER}")
APPS = ("src/cflag/engines/flower/app/pyproject.toml", "baselines/c_flag/pyproject.toml")
UNRELEASED = "## Unreleased\n"


def places(version: str, day: date) -> dict[str, tuple[str, str]]:
    """Return what a release writes: in each file, the line to look for and what it becomes."""
    return {
        "CITATION.cff": (r"^version: .*$", f"version: {version}"),
        **dict.fromkeys(APPS, (r'^version = ".*"$', f'version = "{version}"')),
        "CHANGELOG.md": (f"^{UNRELEASED}", f"{UNRELEASED}\n## {version} ({day})\n"),
    }


def write(root: Path, version: str, day: date) -> None:
    """Write all places, or none; versions only grow."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\d+\.\d+\.\d+) \(", changelog, re.MULTILINE)
    last = max(map(_numbers, released), default=(-1,))
    if _numbers(version) <= last:
        was = ".".join(map(str, last))
        sys.exit(f"{was} is in the changelog already: the next version must be higher than that, {version} is not")
    written = {}
    for name, (looked_for, line) in places(version, day).items():
        written[name], found = re.subn(looked_for, line, (root / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
        if found != 1:
            sys.exit(f"{name} has {found} lines like {looked_for!r} where one is to be written: mend it, then repeat")
    for name, text in written.items():
        (root / name).write_text(text, encoding="utf-8")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def missing(root: Path, version: str) -> list[str]:
    """Return the files that do not say this version."""
    said = {name: line for name, (_, line) in places(version, date.min).items()} | {"CHANGELOG.md": f"## {version} ("}
    return [name for name, text in said.items() if text not in (root / name).read_text(encoding="utf-8")]


def main() -> None:
    """Write a release's version, or check that it is written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", help="three numbers, as in the tag: 1.2.3 or v1.2.3")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file says something else")
    options = parser.parse_args()
    version = options.version.removeprefix("v")
    if not VERSION.fullmatch(version):
        sys.exit(f"a version is three numbers, as in 1.2.3, not {options.version!r}")
    if options.check:
        if files := missing(ROOT, version):
            sys.exit(
                f"{', '.join(files)}: not version {version}; run `make release VERSION={version}`, commit, tag again"
            )
        return
    write(ROOT, version, datetime.now(UTC).date())
    then = f"git commit -am 'Release {version}' && git tag -s v{version} -m 'cflag {version}'"
    print(f"written; read `git diff`, then: {then}")


if __name__ == "__main__":
    main()
