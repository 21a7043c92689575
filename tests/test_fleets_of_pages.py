"""The fleets that pages speak of are real ones here, started by the very lines that stand there, in small form."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cflag.engines.flower.processes.fleet import free_port
from tests.support.pages import PAGES, Block, blocks, file_of, lines, settle
from tests.support.processes import background

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

CFLAG = [sys.executable, "-m", "cflag"]
ELSEWHERE = "docs/your-data.md"
"""Has its data and its fleets in tests/test_your_data.py."""
SMALL = shlex.split("--set rounds=1 --set epochs=1 --set tasks=2")


def commands(block: Block) -> list[str]:
    return [line for line in lines(block.text) if line.startswith("cflag ")]


def deployments() -> Iterator[tuple[str, str]]:
    """Return what starts a fleet on one machine, each command once, with a page that has it."""
    found: dict[str, str] = {}
    for page in (page for page in PAGES if page != ELSEWHERE):
        for block in blocks(page, "", "bash"):
            for line in (line.partition("#")[0].rstrip() for line in commands(block)):
                found.setdefault(line, page)
    yield from ((page, line) for line, page in found.items() if line.startswith("cflag deploy "))


@pytest.mark.parametrize(("page", "line"), list(deployments()))
def test_a_fleet_on_this_machine(page: str, line: str, tmp_path: Path) -> None:
    settle(tmp_path)
    for block in blocks(page):
        if file := file_of(block):
            (tmp_path / file).write_text(block.text)
    words = [*shlex.split(line, comments=True)[1:], *SMALL, "--out", "fleet", "--no-database"]
    done = subprocess.run([*CFLAG, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "fleet" / "result.json").is_file()


def by_hand() -> dict[str, str]:
    """Return what deploy.md says to do on three machines, by the commands' first two words."""
    found: dict[str, str] = {}
    for line in (line for block in blocks("docs/deploy.md", "") for line in commands(block)):
        found.setdefault(" ".join(line.split()[1:3]), line)
    return found


def test_three_machines_step_by_step(tmp_path: Path) -> None:
    """Each machine has a folder of its own; people carry what the page says, and nothing else."""
    port, said = free_port(), by_hand()
    server, machines = tmp_path / "server", [tmp_path / "hospital-a", tmp_path / "hospital-b"]

    def here(start: str, machine: Path, *more: str) -> list[str]:
        machine.mkdir(exist_ok=True)
        line = said[start].replace("fl.example.org", "localhost").replace(":9092", f":{port}")
        line = line.replace("/var/lib/cflag", str(machine / "state")).replace("/srv/data", str(machine))
        inside = f"import os, sys; os.chdir({str(machine)!r}); from cflag.cli import main; sys.exit(main(sys.argv[1:]))"
        return [sys.executable, "-c", inside, *shlex.split(line, comments=True)[1:], *more]

    subprocess.run(here("keys server", server), check=True, capture_output=True)
    for machine in machines:
        subprocess.run(here("keys client", machine), check=True, capture_output=True)
        (machine / "ca.crt").write_bytes((server / "keys" / "ca.crt").read_bytes())
        (server / "keys" / "clients").mkdir(exist_ok=True)
        public = (machine / "keys" / "client.pub").read_bytes()
        (server / "keys" / "clients" / f"{machine.name}.pub").write_bytes(public)
    clients = [here("client --superlink", machine, "--number", str(k)) for k, machine in enumerate(machines)]
    link = ["--port", str(port), "--no-database"]
    with (
        background(clients[0], tmp_path / "0.log"),
        background(clients[1], tmp_path / "1.log"),
        background(here("server digits", server, *SMALL, *link), tmp_path / "server.log") as process,
    ):
        code = process.wait(300)
    assert code == 0, (tmp_path / "server.log").read_text()
    result = json.loads((server / "runs" / "first" / "result.json").read_text())
    assert len(result["client_matrices"]) == 2
    again = subprocess.run(here("server --keys", server), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr  # finished: it says what came out
    assert list((machines[1] / "state").glob("*/status.json"))
