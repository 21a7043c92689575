"""`cflag watch --serve`, over loopback."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from cflag.cli import main
from cflag.config import resolve
from cflag.report.live import HOST, live_page, make_server
from cflag.results.folder import RunFolder


def get(port: int, path: str, host: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def line(t: int, accuracy: float) -> str:
    """What a round writes, of tasks with three rounds each."""
    return json.dumps({"task": 1 + (t - 1) // 3, "round": 1 + (t - 1) % 3, "clients": {}, "accuracy": accuracy}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of 2 tasks with 3 rounds each, of which two are done and one is being written."""
    config = resolve({"method": "finetune", "source": "digits", "tasks": 2, "rounds": 3, "seed": 7})
    made = RunFolder.create(tmp_path / "runs" / "one", config)
    made.metrics.write_text(line(1, 0.25) + line(2, 0.5) + line(3, 0.75)[:20])
    return made


@pytest.fixture
def port(folder: RunFolder) -> Iterator[int]:
    with make_server(folder.path.parent, 0) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_the_page_shows_how_far_a_run_is_and_follows_it(folder: RunFolder, port: int) -> None:
    status, page = get(port, "/")
    assert status == 200
    assert re.findall(r"<td[^>]*>(?:<i[^>]*></i>)?([^<]*)</td>", page) == [
        "one", "finetune", "7", "not running", "2/6", "33 %", "50.0"]  # fmt: skip
    assert '<progress max="6" value="2">' in page
    assert '<meta http-equiv="refresh"' in page
    assert "accuracy so far (%)" in page
    assert ">round so far, 6 are planned<" in page
    assert re.findall(r'<polyline class="c1" points="([\d.]+),[\d.]+ ([\d.]+),[\d.]+"', page) == [("60.0", "626.0")]
    with open(folder.metrics, "a") as file:
        file.write(line(3, 0.75)[20:])
    page = get(port, "/")[1]
    assert '<progress max="6" value="3">' in page
    assert "<td>75.0</td>" in page


def test_a_run_whose_turn_has_not_come_waits(folder: RunFolder, port: int) -> None:
    """While another one works; one that was begun and stopped does not."""
    root = folder.path.parent
    for name in ("next", "stopped"):
        shutil.copytree(folder.path, root / name)
    (root / "next" / "metrics.jsonl").unlink()
    page = get(port, "/")[1]
    assert page.count(">not running</td>") == 3
    assert "waiting" not in page
    hold = "import sys; from pathlib import Path; from cflag.results.folder import RunFolder\n"
    hold += "with RunFolder(Path(sys.argv[1])).locked(): print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        page = get(port, "/")[1]
        assert re.findall(r">(running|waiting|not running)</td>", page) == ["waiting", "running", "not running"]


def test_other_places_and_other_hosts_get_nothing(port: int) -> None:
    assert get(port, "/../config.toml")[0] == 404
    assert get(port, "/", host="evil.example")[0] == 403
    assert get(port, "/", host=f"localhost:{port}")[0] == 200
    assert get(port, "/report")[0] == 503, "nothing is finished"


def test_a_page_of_what_is_over_does_not_refresh(folder: RunFolder) -> None:
    folder.pruned_file.write_text("{}")
    page = live_page(folder.path)
    assert "given up" in page
    assert "http-equiv" not in page
    assert "http-equiv" in live_page(folder.path / "empty"), "a run may come"


def test_mistakes_are_told_in_a_line(tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path), "--serve", str(port)]) == 2
    assert f"cannot listen on {HOST}:{port}" in capsys.readouterr().err
    assert main(["watch", str(tmp_path / "nothing"), "--serve"]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_the_command_serves_until_ctrl_c(folder: RunFolder) -> None:
    command = [sys.executable, "-m", "cflag", "watch", str(folder.path.parent), "--serve", "0"]
    # A shell's background job ignores Ctrl-C, and so would all that it starts: the test would wait for ever.
    heed = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed
    ) as process:
        assert process.stdout is not None
        found = re.match(rf"http://{re.escape(HOST)}:(\d+)/", process.stdout.readline())
        try:
            assert found
            assert "2/6" in get(int(found[1]), "/")[1]
        finally:
            os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
def test_in_a_browser(port: int, tmp_path: Path) -> None:
    """The page's script ran on it: the chart has its buttons."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
             "--dump-dom", f"http://{HOST}:{port}/"]  # fmt: skip
    done = subprocess.run(["chromium", *flags], capture_output=True, text=True, timeout=120, check=False)
    assert "2/6" in done.stdout, done.stderr[-500:]
    assert done.stdout.count('title="Save this figure as') == 2


def test_seeds_of_a_method_can_be_told_apart_and_tasks_begin_where_they_do(folder: RunFolder) -> None:
    """The second run of a method is dashed, in the drawing and in the legend; task 2 begins in round 4."""
    root = folder.path.parent
    for name in ("two", "three-with-a-long-name"):
        shutil.copytree(folder.path, root / name)
    folder.metrics.write_text("".join(line(t, 0.5) for t in range(1, 5)))
    page = live_page(root)
    assert page.count('<polyline class="c1 dash"') == 2
    assert page.count('<i class="b1 dash"></i>') == 2
    assert re.findall(r'<text class="small"[^>]*>([^<]*)', page) == ["task 2"]
