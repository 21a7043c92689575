"""Strangers at a real deployment: they have the server's port and the public ca.crt, and may be on its machine."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import tomli_w
from benchmarks.faults import Deployment, descendants
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    PullArtifactsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from cflag import run
from cflag.engines.flower.processes.fleet import tool
from cflag.engines.flower.processes.keys import read_public_keys
from tests.support import sockets
from tests.support.grid import numbers

pytestmark = pytest.mark.fleet

NOBODY = 65534
SETTINGS: dict[str, Any] = {"clients": 3, "tasks": 2, "rounds": 3}
Client = TypeVar("Client", bound=ProtobufClient)


@pytest.mark.slow
def test_strangers_are_refused_everywhere_and_the_fleet_does_not_notice(tmp_path: Path) -> None:
    fleet = Deployment(tmp_path / "fleet", **SETTINGS)
    fleet.start()
    try:
        fleet.after(1)
        assert fleet.process is not None
        parts = descendants(fleet.process.pid)
        assert len(parts) == 8, "SuperLink, server, three clients and their SuperNodes"
        (port,) = sockets.ports([fleet.process.pid, *parts])
        ca = fleet.path / "deployment" / "keys" / "ca.crt"
        private_sockets_are_private(sockets.paths([fleet.process.pid, *parts]))
        every_route_is_refused(port, ca)
        control_and_runtime_are_refused(port, ca)
        fleet_is_refused(port, ca, fleet.path / "deployment" / "keys" / "clients")
        no_app_is_executed(port, ca, tmp_path)
        without_tls_there_is_nothing(port)
        assert not fleet.path.joinpath("result.json").exists(), "the run ended before the strangers were done"
        assert fleet.wait() == 0, fleet.log()
    finally:
        fleet.stop()
    assert "started again" not in fleet.log()
    assert not list(fleet.path.rglob("ca.key")), "what vouches for any server is nowhere"
    run("digits", out=tmp_path / "local", workers=1, progress=False, **SETTINGS)
    assert numbers(fleet.path) == numbers(tmp_path / "local")


def private_sockets_are_private(found: set[Path]) -> None:
    """One of the SuperLink, one for each SuperNode; the system keeps all other users out of their folders."""
    assert len(found) == 4
    for path in found:
        folder = path.parent.stat()
        assert (stat.S_IMODE(folder.st_mode), folder.st_uid) == (0o700, os.geteuid())
        if os.geteuid() == 0:
            listed = subprocess.run(["ls", str(path.parent)], user=NOBODY, capture_output=True, text=True, check=False)
            assert "ermission denied" in listed.stderr


def ask(port: int, ca: Path, head: str, body: bytes = b"") -> int:
    """Send a request as it is, and return the status of the answer."""
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as link,
    ):
        link.sendall(f"{head}\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        return int(link.recv(4096).split()[1])


def every_route_is_refused(port: int, ca: Path) -> None:
    """All that Flower's SuperLink serves, with every method, and ways to write a path that could fool a gate."""
    routes = sorted(create_app().openapi()["paths"])
    assert len(routes) > 60
    for path in [*routes, "/docs", "/openapi.json", "/"]:
        refusal = 401 if path.startswith("/v1/fleet/") else 404
        assert ask(port, ca, f"POST {path} HTTP/1.1\r\nContent-Type: application/x-protobuf") == refusal, path
        assert ask(port, ca, f"GET {path} HTTP/1.1") == 404, path
    wanted = "v1/control/list-runs"
    tricks = [f"//{wanted}", f"/{wanted}/", f"/{wanted}?a", f"/{wanted}%00", f"http://x/{wanted}", f"/{wanted.upper()}"]
    tricks += [
        f"/v1/fleet/{up}/control/list-runs" for up in ("..", "%2e%2e", "pull-messages/../..", "pull-messages;/..")
    ]
    for path in [*tricks, "*"]:
        assert ask(port, ca, f"POST {path} HTTP/1.1") in (400, 404), path
    assert ask(port, ca, "PRI * HTTP/2.0") in (400, 404)
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YQ=="
    assert ask(port, ca, f"GET /{wanted} HTTP/1.1\r\n{upgrade}") in (400, 404)


def connect(kind: type[Client], port: int, ca: Path, *interceptors: ProtobufClientInterceptor) -> Client:
    return kind.from_server_address(f"localhost:{port}", False, ca.read_bytes(), list(interceptors))


def refused(call: Callable[[], object], status: int) -> None:
    with pytest.raises(httpx.HTTPStatusError) as error:
        call()
    assert error.value.response.status_code == status


def control_and_runtime_are_refused(port: int, ca: Path) -> None:
    """What the operator's own process may do: list, stop, read, register, submit, take the server's task."""
    key = public_key_to_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
    with connect(ControlHttpClient, port, ca) as control:
        for call in (
            lambda: control.ListRuns(ListRunsRequest()),
            lambda: control.ListNodes(ListNodesRequest()),
            lambda: control.StopRun(StopRunRequest(run_id=1)),
            lambda: list(control.StreamLogs(StreamLogsRequest(run_id=1))),
            lambda: control.PullArtifacts(PullArtifactsRequest(run_id=1)),
            lambda: control.RegisterNode(RegisterNodeRequest(public_key=key)),
            lambda: control.UnregisterNode(UnregisterNodeRequest(node_id=1)),
            lambda: control.StartRun(StartRunRequest()),
        ):
            refused(call, 404)
    with connect(RuntimeHttpClient, port, ca) as runtime:
        refused(lambda: runtime.AcquireTask(AcquireTaskRequest(supported_task_types=["serverapp"])), 404)


def fleet_is_refused(port: int, ca: Path, clients: Path) -> None:
    """A key that nobody registered; and a registered public key in the hands of one who has not the private one."""
    own = ec.generate_private_key(ec.SECP384R1())
    theirs = load_pem_public_key(read_public_keys(clients)[0])
    assert isinstance(theirs, ec.EllipticCurvePublicKey)
    for public in (own.public_key(), theirs):
        with connect(FleetHttpClient, port, ca, NodeAuthHttpInterceptor(own, public)) as link:
            knock(link, public_key_to_bytes(public))


def knock(link: FleetHttpClient, key: bytes) -> None:
    refused(lambda: link.RegisterNode(RegisterNodeFleetRequest(public_key=key)), 401)
    refused(lambda: link.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=30)), 401)


def no_app_is_executed(port: int, ca: Path, folder: Path) -> None:
    """What was done once: an app of a stranger, submitted with nothing but Flower's own command line."""
    app, home, proof = folder / "theirs", folder / "home", folder / "executed"
    (app / "theirs").mkdir(parents=True)
    components = {"serverapp": "theirs.app:server", "clientapp": "theirs.app:client"}
    flwr = {"app": {"publisher": "stranger", "components": components, "config": {}}}
    project = {"name": "theirs", "version": "1.0.0", "description": "", "license": "MIT", "dependencies": ["flwr"]}
    (app / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": flwr}}))
    code = "from flwr.serverapp import ServerApp\nfrom flwr.clientapp import ClientApp\n"
    code += f"open({str(proof)!r}, 'w').close()\nserver = ServerApp()\nclient = ClientApp()\n"
    (app / "theirs" / "app.py").write_text(code)
    (app / "theirs" / "__init__.py").touch()
    home.mkdir()
    link = {"address": f"localhost:{port}", "root-certificates": str(ca)}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "x", "x": link}}))
    env = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    command = [tool("flwr"), "run", str(app), "x", "--format", "json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert '"success": false' in done.stdout, done.stdout + done.stderr
    assert not proof.exists()


def without_tls_there_is_nothing(port: int) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://127.0.0.1:{port}/v1/control/list-runs", timeout=10)
