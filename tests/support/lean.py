"""Environments that hold a wheel and what its metadata asks for, and nothing else: made of links, without a download.

An import of something that is not declared fails in them as it would at a stranger's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def unpacked(wheel: Path, folder: Path) -> PathDistribution:
    """Install a wheel, and nothing it asks for, into a folder; return its metadata."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*command, "--target", str(folder), str(wheel)], check=True)
    (found,) = folder.glob("*.dist-info")
    return PathDistribution(found)


def closure(dist: Distribution, extra: str = "") -> dict[str, Distribution]:
    """Return all that a distribution needs, by name, as it is installed here; refuse what is missing or too old."""
    found: dict[str, Distribution] = {}
    todo = list(_needs(dist, {extra}))
    seen: set[str] = set()
    while todo:
        need = todo.pop()
        if str(need) in seen:
            continue
        seen.add(str(need))
        name = canonicalize_name(need.name)
        if name == canonicalize_name(dist.name):
            todo += _needs(dist, need.extras)
            continue
        here = distribution(need.name)
        assert need.specifier.contains(here.version, prereleases=True), f"{need} is not met by {here.version}"
        found[name] = here
        todo += _needs(here, {"", *need.extras})
    return found


def _needs(dist: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for text in dist.requires or []:
        need = Requirement(text)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
            yield need


def link(dists: dict[str, Distribution], folder: Path) -> None:
    """Link what distributions installed into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for dist in dists.values():
        for top in {file.parts[0] for file in dist.files or () if file.parts[0] not in ("..", "__pycache__")}:
            target = folder / top
            whole = Path(str(dist.locate_file(top)))
            if whole.is_dir() and target.is_dir() and not target.is_symlink():
                continue
            if not target.exists():
                target.symlink_to(whole)


def python(code: list[str], *folders: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with these folders, the standard library and nothing else."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONNOUSERSITE": "1"}
    return subprocess.run([sys.executable, "-S", *code], env=env, cwd=cwd, capture_output=True, text=True)
