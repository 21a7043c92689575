"""Containers as far as a machine without Docker can tell: schemas, structure, and the very commands as processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from cflag.cli import parser
from cflag.engines.flower.processes.fleet import free_port
from tests.support.pages import PAGES, blocks, lines, mentions
from tests.support.processes import background

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
CLIENTS = [name for name in SERVICES if name.startswith("client-")]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def volumes(service: str) -> dict[str, str]:
    """Return the volumes of a service by where they are."""
    return {mount.split(":")[1]: mount.split(":")[0] for mount in SERVICES[service].get("volumes", [])}


def test_every_service_is_the_one_image_without_rights() -> None:
    assert len(CLIENTS) == 3
    for service in SERVICES.values():
        assert service["image"] == "cflag"
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        assert "no-new-privileges:true" in service["security_opt"]
        assert "ports" not in service
        assert "user" not in service  # the image's own, which is not root
    assert COMPOSE["networks"] == {"fleet": {"internal": True}}


def test_private_keys_and_states_are_in_nobody_elses_container() -> None:
    private = {name: {volumes(name)["/keys"], volumes(name).get("/state")} for name in (*CLIENTS, "server")}
    for one, own in private.items():
        for other in private:
            assert one == other or not (own - {None}) & set(volumes(other).values())
    named = {volume for name in SERVICES for volume in volumes(name).values()}
    assert named == set(COMPOSE["volumes"])
    assert "public:/public:ro" in SERVICES["server"]["volumes"]


def test_the_image_runs_as_a_user_who_owns_what_is_mounted() -> None:
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER cflag$", final, re.MULTILINE)
    (made,) = re.findall(r"install -d -o cflag -g cflag -m 0700 ([^&]+)", final)
    written = {where for name in SERVICES for where in volumes(name)} - {"/data"}
    assert written == set(made.split())
    for name in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / part).exists() for part in name.split())
    assert "torch==2.13.0" in DOCKERFILE


def asked_of_docker() -> list[str]:
    """Return what pages say that Docker does, each command once."""
    version = "CFLAG_VERSION=X.Y.Z "
    said = [*(line for page in PAGES for block in blocks(page, "", "bash") for line in lines(block.text))]
    said += [line.removeprefix(version) for page in PAGES for line in mentions(page, "docker", version.strip())]
    return sorted({re.split(" *(?:#|&&)", line)[0] for line in said if line.startswith("docker ")})


def test_what_pages_ask_of_docker_is_there() -> None:
    """No daemon is here: whatever a command names is looked up in the compose file and in the Dockerfile."""
    asked = [shlex.split(line)[1:] for line in asked_of_docker()]
    assert {tuple(words[:2]) for words in asked} == {("compose", "up"), ("compose", "cp"), ("compose", "build")}
    for words in asked:
        options = {word for word in words[2:] if word.startswith("-")}
        assert options <= {"--build"}
        if words[1] == "cp":
            service, _, path = words[2].partition(":")
            assert any(path.startswith(f"{where}/") for where in volumes(service))
            assert path in SERVICES[service]["command"][0]


def test_the_health_check_knows_a_cflag_at_work_from_a_script_that_names_one() -> None:
    (check,) = re.findall(r"HEALTHCHECK .*CMD (\[.+\])", DOCKERFILE)
    pattern = re.findall(r"grep -Eq '(.+)'", json.loads(check)[2])[0]
    at_work = "/opt/cflag/bin/python /opt/cflag/bin/cflag client --number 0"
    for text, code in ((at_work, 0), (SERVICES["client-0"]["command"][0], 1), (json.loads(check)[2], 1)):
        assert subprocess.run(["grep", "-Eq", pattern], input=text, text=True).returncode == code


def units() -> list[Path]:
    return sorted((ROOT / "deploy").glob("*.service"))


@pytest.mark.parametrize("unit", units(), ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_exists_without_rights(unit: Path) -> None:
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=/opt/cflag/bin/cflag (.+)$", text, re.MULTILINE)
    parser().parse_args(command.replace("${SUPERLINK}", "localhost:1").replace("${NUMBER}", "0").split())
    assert "User=cflag" in text
    assert "NoNewPrivileges=yes" in text
    analyse = shutil.which("systemd-analyze")
    if analyse is not None:
        done = subprocess.run([analyse, "verify", str(unit)], capture_output=True, text=True)
        wrong = [line for line in done.stderr.splitlines() if unit.name in line and "is not executable" not in line]
        assert not wrong, done.stderr


def script(service: str, places: dict[str, str], port: int) -> list[str]:
    """Return what a container of the compose file runs, with folders and an address of this machine."""
    text = str(SERVICES[service]["command"][0]).replace("$$", "$").replace("server:9092", f"localhost:{port}")
    text = text.replace("--host server", "--host localhost")
    text = text.replace("exec cflag server", f"exec cflag server --host 127.0.0.1 --port {port} --no-database")
    text = text.replace("cflag client", "cflag client --poll 0.05").replace(
        " --set min_", " --set tasks=2 --set rounds=1 --set min_"
    )
    for where, here in places.items():
        text = re.sub(rf"(?<![\w.]){where}(?=[/\s])", here, text)
    return ["sh", "-euc", text]


@pytest.mark.fleet
def test_the_commands_of_the_compose_file_carry_a_run_and_resume_it(tmp_path: Path) -> None:
    port = free_port()
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def command(service: str) -> list[str]:
        places = {where: str(tmp_path / volume) for where, volume in volumes(service).items()}
        for place in places.values():
            Path(place).mkdir(exist_ok=True)
        return script(service, places, port)

    subprocess.run(command("authority"), env=env, check=True, stdout=subprocess.DEVNULL)
    with ExitStack() as stack:
        for name in CLIENTS:
            own = {**env, **SERVICES[name]["environment"]}
            stack.enter_context(background(command(name), tmp_path / f"{name}.log", own))
        server = stack.enter_context(background(command("server"), tmp_path / "server.log", env))
        assert server.wait(300) == 0, (tmp_path / "server.log").read_text()
        assert (tmp_path / "runs" / "first" / "result.json").is_file()
        again = subprocess.run(command("server"), env=env, capture_output=True, text=True)
        assert again.returncode == 0, again.stderr  # finished: it says what came out
    result = json.loads((tmp_path / "runs" / "first" / "result.json").read_text())
    assert len(result["client_matrices"]) == 3
