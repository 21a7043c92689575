"""Real deployments on this machine: Flower's processes, TLS, node authentication, and a kill.

`make faults` breaks many more things (benchmarks/faults.py).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from benchmarks.faults import CFLAG, Deployment, descendants

from cflag.cli import main
from cflag.engines.flower.identity import fingerprint
from cflag.engines.flower.processes.fleet import free_port, quiet_flower, tool
from cflag.files import load_state
from tests.support.crashes import newest_checkpoint
from tests.support.grid import numbers
from tests.support.pages import blocks, lines
from tests.support.processes import background, wait_for

pytestmark = pytest.mark.fleet

ROOT = Path(__file__).parent.parent


def plain(folder: Path, **settings: Any) -> Path:
    """Run the same on the local engine."""
    words = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    assert main(["run", "digits", "--out", str(folder), "--workers", "1", "--quiet", *words]) == 0
    return folder


def logged_rounds(folder: Path) -> list[int]:
    """Return the rounds that TensorBoard has of a run, each as often as it has it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars("seconds")]


def command_of(pid: int) -> str:
    """Return a process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def without_faults(folder: Path) -> Any:
    """Return a run's numbers, but not who was missing meanwhile."""
    lines, model, matrices = numbers(folder)
    return [{k: v for k, v in line.items() if k not in ("missing", "cohort")} for line in lines], model, matrices


@pytest.mark.slow
def test_a_deployment_with_a_killed_client_has_the_local_engines_numbers(tmp_path: Path) -> None:
    """Three clients, all needed; one is killed in the middle of a round, started again, and let in after a minute."""
    fleet = Deployment(tmp_path / "fleet", "--no-database", min_clients=3, rounds=2, log="tensorboard")
    fleet.start()
    try:
        fleet.after(1)
        fleet.kill("client 1")
        assert fleet.wait() == 0, fleet.log()
    finally:
        fleet.stop()
    assert "client 1 ended and is started again" in fleet.log()
    assert any("1" in record.get("missing", {}) for record in fleet.records())
    local = plain(tmp_path / "local", clients=3, tasks=2, rounds=2)
    assert without_faults(fleet.path) == without_faults(local)
    assert logged_rounds(fleet.path) == [1, 2, 3, 4], "by the process of the server alone"
    for number in range(3):
        states = list((fleet.path / "deployment" / f"client-{number}").glob("*/client-*.safetensors"))
        assert states, "a client keeps its own state"
    assert not list((fleet.path / "checkpoint").glob("client-*")), "and nobody else does"


@pytest.mark.parametrize("options", [(), ("--no-database",)], ids=["database", "no database"])
def test_kills_while_a_deployment_starts_change_nothing(options: tuple[str, ...], tmp_path: Path) -> None:
    """The SuperLink as soon as it is there, and again when the server is; the server; everything, twice."""
    fleet = Deployment(tmp_path / "fleet", *options, min_clients=2, **SHORT)
    try:
        fleet.start()
        kill(*part(fleet, "superlink"))
        time.sleep(1.0)
        fleet.kill_all()
        fleet.start()
        part(fleet, "server")
        kill(*part(fleet, "superlink"))
        kill(*part(fleet, "server"))
        part(fleet, "server")
        fleet.kill_all()
        fleet.start()
        assert fleet.wait() == 0, fleet.log()
    finally:
        fleet.stop()
    assert "the SuperLink ended" in fleet.log()
    assert without_faults(fleet.path) == without_faults(plain(tmp_path / "local", **SHORT))


def part(fleet: Deployment, kind: str) -> list[int]:
    """Wait until there is a process of this kind, and return it."""
    assert fleet.process is not None
    end = time.monotonic() + 120
    while time.monotonic() < end and fleet.process.poll() is None:
        words = f"cflag.flower_process {kind} "
        if found := [pid for pid in descendants(fleet.process.pid) if words in command_of(pid)]:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {kind} came: {fleet.log()}")


def kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


SHORT: dict[str, Any] = {"clients": 2, "tasks": 1, "rounds": 1, "method": "replay"}


def said(start: str, instead: dict[str, str]) -> str:
    """Return the line of docs/deploy.md that begins like this, with other names in it."""
    (line,) = [line for b in blocks("docs/deploy.md", "") for line in lines(b.text) if line.startswith(start)]
    for name, other in instead.items():
        assert name in line
        line = line.replace(name, other)
    return line


def test_a_superlink_of_ones_own_carries_a_run_that_flwr_submits(tmp_path: Path) -> None:
    """As docs/deploy.md tells, by its lines: Flower's own SuperLink, command line and SuperNode, a client of ours."""
    keys, port, home = tmp_path / "keys", free_port(), tmp_path / "home"
    assert main(["keys", "server", str(keys), "--host", "localhost"]) == 0
    files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key"}
    link = [tool("flower-superlink"), "--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth"]
    link += [word for option, name in files.items() for word in (option, str(keys / name))]
    link += ["--disable-runtime-dependency-installation"]
    home.mkdir()
    connection = {"address": f"localhost:{port}", "root-certificates": str(keys / "ca.crt")}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "mylink", "mylink": connection}}))
    env = {**os.environ, **quiet_flower(home)}
    with (
        background([*link, "--disable-runtime-dependency-installation"], tmp_path / "link.log", env),
        ExitStack() as stack,
    ):
        wait_for(lambda: "Application startup complete" in (tmp_path / "link.log").read_text(), "the SuperLink")
        for number in ("0", "1"):
            assert main(["keys", "client", str(keys / "clients"), "--name", number]) == 0
            flwr(env, "supernode", "register", str(keys / "clients" / f"{number}.pub"), "mylink")
        client = [*CFLAG, "client", "--superlink", f"localhost:{port}", "--ca", str(keys / "ca.crt")]
        client += ["--key", str(keys / "clients" / "0.key"), "--number", "0", "--state", str(tmp_path / "0")]
        stack.enter_context(background(client, tmp_path / "0.log"))
        key = str(keys / "clients" / "1.key")
        own = {"id=0": "id=1", "/var/lib/cflag": str(tmp_path / "1"), "/srv/data": str(tmp_path)}
        program, *config = shlex.split(said("flower-supernode ", own | {"/etc/cflag/client.key": key, "... ": ""}))
        node = [tool(program), "--superlink", f"localhost:{port}", "--port", str(free_port()), *config]
        node += ["--root-certificates", str(keys / "ca.crt"), "--auth-supernode-private-key", key]
        stack.enter_context(background(node, tmp_path / "1.log", env | quiet_flower(tmp_path / "1-home")))
        settings = ";".join(f"{k}={v}" for k, v in SHORT.items())
        submit = said(
            "flwr run ", {"clients=3;rounds=5": settings, "/srv/runs/first": str(tmp_path / "run"), "--stream ": ""}
        )
        script = f"{said('APP=', {})}\nexec {submit} --format json"
        done = subprocess.run(["sh", "-euc", script], env=env, capture_output=True, text=True)
        assert '"success": true' in done.stdout, done.stdout + done.stderr
        wait_for(lambda: (tmp_path / "run" / "result.json").is_file(), "the run that flwr submitted")
    assert without_faults(tmp_path / "run") == without_faults(plain(tmp_path / "local", **SHORT))


def flwr(env: dict[str, str], *words: str) -> None:
    command = [tool("flwr"), *words, "--format", "json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert '"success": true' in done.stdout, done.stdout + done.stderr


def test_three_machines_by_hand_with_a_liar_and_two_strangers(tmp_path: Path) -> None:
    """`cflag keys`, `cflag server`, `cflag client` as in docs/deploy.md, each as a process of its own.

    Client 2 answers garbage. One stranger has a key nobody registered, another trusts an authority of its own.
    """
    keys, port = tmp_path / "keys", free_port()
    for folder in ("keys", "other"):
        assert main(["keys", "server", str(tmp_path / folder), "--host", "localhost"]) == 0
    for name in ("0", "1", "2", "stranger"):
        where = tmp_path / "private" if name == "stranger" else keys / "clients"
        assert main(["keys", "client", str(where), "--name", name]) == 0

    def client(name: str, number: int, key: Path, ca: Path, module: str = "cflag") -> list[str]:
        start = [sys.executable, "-m", module, *(["client"] if module == "cflag" else [])]
        link = ["--superlink", f"localhost:{port}", "--ca", str(ca), "--key", str(key)]
        return [*start, *link, "--number", str(number), "--state", str(tmp_path / f"state-{name}")]

    ours, theirs = keys / "ca.crt", tmp_path / "other" / "ca.crt"
    own = {"clients": 3, "tasks": 1, "rounds": 3, "method": "finetune", "patience": 90, "deadline": 20}
    words = [part for key, value in own.items() for part in ("--set", f"{key}={value}")]
    server = [*CFLAG, "server", "digits", "--keys", str(keys), "--port", str(port), "--out", str(tmp_path / "run")]
    with (
        background(client("0", 0, keys / "clients" / "0.key", ours), tmp_path / "0.log"),
        background(client("1", 1, keys / "clients" / "1.key", ours), tmp_path / "1.log"),
        background(
            client("2", 2, keys / "clients" / "2.key", ours, "tests.support.garbage_client"), tmp_path / "2.log"
        ),
        background(client("stranger", 0, tmp_path / "private" / "stranger.key", ours), tmp_path / "stranger.log"),
        background(client("fooled", 1, keys / "clients" / "1.key", theirs), tmp_path / "fooled.log"),
        background([*server, *words, "--no-database"], tmp_path / "server.log") as process,
    ):
        code = process.wait(300)
    assert code == 0, (tmp_path / "server.log").read_text()
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for record, words_ in zip(records, ("not finite", "it answers", "it answers"), strict=True):
        assert list(record["missing"]) == ["2"]
        assert words_ in record["missing"]["2"]
        assert record["cohort"] == [0, 1]
    assert "client 2: refused: its answer is not finite" in (tmp_path / "run" / "events.log").read_text()
    for name in ("stranger", "fooled"):  # who never got a question has nothing of an experiment
        assert not list((tmp_path / f"state-{name}").glob("*/config.toml"))
    assert list((tmp_path / "state-0").glob("*/config.toml"))
    bound = load_state(newest_checkpoint(tmp_path / "run"))["engine.keys"]
    assert bound == {n: fingerprint((keys / "clients" / f"{n}.pub").read_bytes()) for n in ("0", "1", "2")}


@pytest.mark.parametrize("method", ["cflag"])
def test_a_simulation_has_the_local_engines_numbers(method: str, tmp_path: Path) -> None:
    own = ["--set", "clients=4", "--set", "tasks=2", "--set", "rounds=1", "--set", f"method={method}"]
    own += ["--set", "log=tensorboard"]
    command = [*CFLAG, "run", "digits", "--engine", "flower-sim", "--workers", "2", "--out", str(tmp_path / "sim")]
    done = subprocess.run([*command, *own, "--quiet"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain(tmp_path / "local", clients=4, tasks=2, rounds=1, method=method)
    assert numbers(tmp_path / "sim") == numbers(tmp_path / "local")
    assert logged_rounds(tmp_path / "sim") == [1, 2]


def test_too_few_clients_ever_come(tmp_path: Path) -> None:
    """The server waits, says so, gives up with one line, and keeps the folder for later."""
    assert main(["keys", "server", str(tmp_path / "keys"), "--host", "localhost"]) == 0
    assert main(["keys", "client", str(tmp_path / "keys" / "clients")]) == 0
    command = [*CFLAG, "server", "digits", "--keys", str(tmp_path / "keys"), "--port", str(free_port())]
    command += ["--out", str(tmp_path / "run"), "--set", "patience=7", "--no-database"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "only 0 of 5 clients came in 7 s and min_clients = 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert "waiting for clients: 0 of 5 are here" in done.stdout
    assert (tmp_path / "run" / "config.toml").is_file()
