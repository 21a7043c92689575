"""What goes to Flower: the app in the format its Hub takes, and the baseline in the shape its checker wants."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files
from flwr.common.config import validate_config

from cflag.engines.flower.client.app import _simulated
from cflag.engines.flower.processes.fleet import APP, free_port, quiet_flower, tool
from cflag.errors import CflagError
from tests.support.processes import background, wait_for

ROOT = Path(__file__).parent.parent
BASELINE = ROOT / "baselines" / "c_flag"
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's builder uses it
APPS = {"the app": APP, "the baseline": BASELINE}


@pytest.mark.parametrize("which", APPS)
def test_flower_builds_it_in_format_1(which: str) -> None:
    """With Flower's own builder, which refuses what the Hub would; the versions are those we pin."""
    app = APPS[which]
    _, built = build_fab_from_files(collect_files(app))
    assert (built.fab_format_version, built.flwr_version_min, built.flwr_version_target) == (1, "1.41", "1.41.0")
    config = tomllib.loads((app / "pyproject.toml").read_text())
    ok, errors, warnings = validate_config(config, check_module=False)
    assert ok, errors
    assert not warnings
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["flower"]
    assert extra[0] in config["project"]["dependencies"]
    assert (app / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_a_missing_license_is_noticed() -> None:
    """Or the test above could not fail."""
    files = {name: path for name, path in collect_files(APP).items() if name != "LICENSE"}
    with pytest.raises(ValueError, match="license"):
        build_fab_from_files(files)


def test_the_baseline_has_the_files_that_flowers_checker_wants() -> None:
    names = {path.name for path in (BASELINE / "c_flag").glob("*.py")}
    assert names >= {"client_app.py", "dataset.py", "model.py", "server_app.py", "strategy.py", "utils.py"}
    for path in (BASELINE / "c_flag").glob("*.py"):
        assert all(len(line) <= 88 for line in path.read_text().splitlines()), path  # their line length


def test_the_baselines_readme_has_what_its_table_is_made_of() -> None:
    text = (BASELINE / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    about: dict[str, Any] = yaml.safe_load(front)
    assert set(about) == {"title", "url", "labels", "dataset"}
    assert 4 <= len(about["labels"]) <= 10
    sections = ("About this baseline", "Experimental Setup", "Environment Setup", "Running the Experiments")
    assert [f"## {section}" in body for section in sections] == [True] * 4
    assert ":warning:" not in text
    described = tomllib.loads((BASELINE / "pyproject.toml").read_text())["project"]["description"]
    assert f"# {described}\n" in body


def test_simulated_states_lie_where_nobody_else_can_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = _simulated(7)
    assert folder == _simulated(7)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(CflagError, match="not ours alone"):
        _simulated(7)


@pytest.mark.fleet
def test_the_baseline_runs_in_flowers_own_simulation_with_the_local_engines_numbers(tmp_path: Path) -> None:
    home, port, settings = tmp_path / "home", free_port(), ["clients=3", "tasks=2", "rounds=1", "width=8"]
    home.mkdir()
    connection = {"address": f"127.0.0.1:{port}", "insecure": True}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "sim", "sim": connection}}))
    env = {**os.environ, **quiet_flower(home)}
    link = [tool("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    with background([*link, "--disable-runtime-dependency-installation"], tmp_path / "link.log", env):
        wait_for(lambda: "Application startup complete" in (tmp_path / "link.log").read_text(), "the SuperLink")
        words = [str(BASELINE), "sim", "--federation-config", "num-supernodes=3", "--format", "json"]
        config = f'settings="{";".join(settings)}" out="{tmp_path / "run"}"'
        done = subprocess.run([tool("flwr"), "run", *words, "-c", config], env=env, capture_output=True, text=True)
        assert '"success": true' in done.stdout, done.stdout + done.stderr
        wait_for(lambda: (tmp_path / "run" / "result.json").is_file(), "the simulation")
    shutil.rmtree(_simulated(int(json.loads(done.stdout)["run-id"])))
    local = [sys.executable, "-m", "cflag", "run", "digits", "--workers", "1", "--quiet"]
    local += ["--out", str(tmp_path / "local"), *(part for word in settings for part in ("--set", word))]
    subprocess.run(local, check=True, stdout=subprocess.DEVNULL)
    found = [json.loads((tmp_path / name / "result.json").read_text())["matrices"] for name in ("run", "local")]
    assert found[0] == found[1]
    table = [sys.executable, "-m", "c_flag.utils", str(tmp_path / "run")]
    shown = subprocess.run(table, cwd=BASELINE, capture_output=True, text=True, check=True).stdout
    assert len(shown.splitlines()) == 3
    assert shown.splitlines()[-1].startswith("Acc ")
