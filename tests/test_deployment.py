"""Real deployments on this machine: Flower's processes, TLS, node authentication, and a kill.

`make faults` breaks many more things (benchmarks/faults.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.faults import CFLAG, Deployment

from cflag.cli import main
from cflag.engines.flower.identity import fingerprint
from cflag.engines.flower.processes.fleet import APP, free_port, tool
from cflag.files import load_state
from tests.support.grid import numbers

pytestmark = pytest.mark.fleet

ROOT = Path(__file__).parent.parent


def plain(folder: Path, **settings: Any) -> Path:
    """Run the same on the local engine."""
    words = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    assert main(["run", "digits", "--out", str(folder), "--workers", "1", "--quiet", *words]) == 0
    return folder


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in the background, and stop it."""
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def logged_rounds(folder: Path) -> list[int]:
    """Return the rounds that TensorBoard has of a run, each as often as it has it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars("seconds")]


def without_faults(folder: Path) -> Any:
    """Return a run's numbers, but not who was missing meanwhile."""
    lines, model, matrices = numbers(folder)
    return [{k: v for k, v in line.items() if k not in ("missing", "cohort")} for line in lines], model, matrices


def test_a_deployment_with_a_killed_client_has_the_local_engines_numbers(tmp_path: Path) -> None:
    """Three clients, all needed; one is killed in the middle of a round, started again, and let in after a minute.

    Then the fleet, kept running, carries a run that was submitted with Flower's own command line.
    """
    fleet = Deployment(tmp_path / "fleet", "--keep", "--no-database", min_clients=3, rounds=2, log="tensorboard")
    fleet.start()
    try:
        fleet.after(1)
        fleet.kill("client 1")
        assert fleet.wait() == 0, fleet.log()
        assert "client 1 ended and is started again" in fleet.log()
        assert any("1" in record.get("missing", {}) for record in fleet.records())
        local = plain(tmp_path / "local", clients=3, tasks=2, rounds=2)
        assert without_faults(fleet.path) == without_faults(local)
        assert logged_rounds(fleet.path) == [1, 2, 3, 4], "by the process of the server alone"
        for number in range(3):
            states = list((fleet.path / "deployment" / f"client-{number}").glob("*/client-*.safetensors"))
            assert states, "a client keeps its own state"
        assert not list((fleet.path / "checkpoint").glob("client-*")), "and nobody else does"
        _submitted_by_hand(fleet, tmp_path / "by-hand")
        assert without_faults(tmp_path / "by-hand")[1] == without_faults(plain(tmp_path / "short", **SHORT))[1]
    finally:
        for name in ("client 0", "client 1", "client 2", "SuperLink"):
            os.kill(fleet.pid(name), signal.SIGTERM)


SHORT: dict[str, Any] = {"clients": 3, "tasks": 1, "rounds": 1, "method": "replay"}


def _submitted_by_hand(fleet: Deployment, out: Path) -> None:
    """What someone with a SuperLink of their own does."""
    settings = ";".join(f"{k}={v}" for k, v in SHORT.items())
    config = f'preset="digits" settings="{settings}" out="{out}"'
    env = {**os.environ, "FLWR_HOME": str(fleet.path / "deployment" / "flower"), "FLWR_TELEMETRY_ENABLED": "0"}
    command = [tool("flwr"), "run", str(APP), "cflag", "-c", config, "--format", "json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert '"success": true' in done.stdout, done.stdout + done.stderr
    end = time.monotonic() + 120
    while not (out / "result.json").is_file():
        assert time.monotonic() < end, "the run that flwr submitted did not finish"
        time.sleep(0.2)


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

    def client(name: str, number: int, key: Path, ca: Path, module: str = "cflag.cli") -> list[str]:
        start = [sys.executable, "-m", module, *(["client"] if module == "cflag.cli" else [])]
        link = ["--superlink", f"localhost:{port}", "--ca", str(ca), "--key", str(key)]
        return [*start, *link, "--number", str(number), "--state", str(tmp_path / f"state-{name}")]

    ours, theirs = keys / "ca.crt", tmp_path / "other" / "ca.crt"
    own = {"clients": 3, "tasks": 1, "rounds": 3, "method": "finetune", "patience": 90, "deadline": 20}
    words = [part for key, value in own.items() for part in ("--set", f"{key}={value}")]
    server = [*CFLAG, "server", "digits", "--keys", str(keys), "--port", str(port), "--out", str(tmp_path / "run")]
    with (
        started(client("0", 0, keys / "clients" / "0.key", ours), tmp_path / "0.log"),
        started(client("1", 1, keys / "clients" / "1.key", ours), tmp_path / "1.log"),
        started(client("2", 2, keys / "clients" / "2.key", ours, "tests.support.garbage_client"), tmp_path / "2.log"),
        started(client("stranger", 0, tmp_path / "private" / "stranger.key", ours), tmp_path / "stranger.log"),
        started(client("fooled", 1, keys / "clients" / "1.key", theirs), tmp_path / "fooled.log"),
        started([*server, *words, "--no-database"], tmp_path / "server.log") as process,
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
    bound = load_state(tmp_path / "run" / "checkpoint" / "server.safetensors")["engine.keys"]
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
