"""Following a run that another process carries."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cflag import run
from cflag.cli import main
from cflag.config import resolve
from cflag.problems.score import ACCURACY, Score
from cflag.results.display import Quiet
from cflag.results.folder import RunFolder
from cflag.results.follow import Follower

pytestmark = pytest.mark.usefixtures("no_figures")

QUICK: dict[str, Any] = {"tasks": 2, "rounds": 2, "clients": 3, "width": 8, "workers": 1}


class Log(Quiet):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self, name: str, tasks: int, rounds: int, done: int, own: int = 0, score: Score = ACCURACY) -> None:
        self.told.append(f"{name} {tasks} {rounds} {done}")

    def update(self, record: dict[str, Any]) -> None:
        self.told.append(f"round {record['round']}")

    def note(self, text: str) -> None:
        self.told.append(text)


def test_whole_lines_are_shown_once_also_after_a_cut(tmp_path: Path) -> None:
    folder, log = RunFolder.create(tmp_path / "run", resolve({"rounds": 3, "tasks": 2})), Log()
    folder.metrics.write_text('{"round": 1}\n')
    follower = Follower(folder, folder.config(), log)
    with open(folder.metrics, "a") as file:
        file.write('{"round": 2}\n{"rou')
    follower.look()
    follower.look()
    with open(folder.metrics, "a") as file:
        file.write('nd": 3}\n')
    folder.say("client 1 is away")
    follower.look()
    assert log.told[:2] == ["cflag 2 3 1", "round 2"]
    assert log.told[2].endswith("  client 1 is away")
    assert log.told[3:] == ["round 3"]
    folder.metrics.write_text('{"round": 1}\n')  # a resumed run goes back to its checkpoint
    follower.look()
    with open(folder.metrics, "a") as file:
        file.write('{"round": 2}\n')
    follower.look()
    assert log.told[4:] == ["round 2"]


def test_watch_a_run_and_a_folder_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("cflag", "finetune"):
        run("digits", out=tmp_path / "runs" / method, method=method, **QUICK)
    assert main(["watch", str(tmp_path / "runs" / "cflag")]) == 0
    assert "cflag: accuracy (%) on each" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "runs")]) == 0
    assert "finetune" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "nothing"), "--wait", "0"]) == 2
    assert "holds no run to watch" in capsys.readouterr().err


def test_watch_a_run_while_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [part for key, value in QUICK.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "cflag", "run", "digits", "--quiet", "--out", str(tmp_path / "run"), *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not (tmp_path / "run" / "config.toml").is_file():
            assert process.poll() is None
            time.sleep(0.01)
        assert main(["watch", str(tmp_path / "run")]) == 0
    assert "cflag: accuracy (%) on each" in capsys.readouterr().out
