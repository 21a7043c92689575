"""The gate before the SuperLink, and the keys that open it, without processes; test_strangers.py has real ones."""

from __future__ import annotations

import asyncio
import sqlite3
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager
from hypothesis import given
from hypothesis import strategies as st

from cflag.cli import main
from cflag.engines.flower.processes.keys import read_public_keys
from cflag.engines.flower.processes.superlink import LARGEST, Gate, make_database, register

KEY = public_key_to_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
OTHER = public_key_to_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
VERBS = ("register-node", "activate-node", "deactivate-node", "unregister-node", "send-node-heartbeat", "pull-messages",
         "push-messages", "get-run", "get-fab", "push-object", "pull-object", "confirm-message-received")  # fmt: skip
FLEET = {f"/v1/fleet/{verb}" for verb in VERBS}
"""What a SuperNode calls in Flower 1.41. Who adds a call here has looked at what it lets a client do."""


def knock(scope: dict[str, Any]) -> tuple[bool, int]:
    """Send a request to a gate that KEY opens; return whether it was let through, and the status of a refusal."""
    reached, statuses = [], [0]

    async def app(*_: Any) -> None:
        reached.append(True)

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body of a refused request is not read")

    async def send(message: Any) -> None:
        statuses.append(message.get("status", statuses[-1]))

    asyncio.run(Gate(app, [KEY])(scope, receive, send))
    return bool(reached), statuses[-1]


def request(path: str, method: str = "POST", key: bytes | None = KEY, length: str | None = "5") -> dict[str, Any]:
    headers = [(b"flwr-public-key", b64encode(key))] if key is not None else []
    headers += [(b"content-length", length.encode())] if length is not None else []
    return {"type": "http", "method": method, "path": path, "headers": headers}


odd_paths = st.sampled_from(sorted(FLEET)).flatmap(
    lambda path: st.sampled_from([path, path + "/", "/" + path, path.upper(), path[:-1], path + "/../../control/x"])
)
paths = odd_paths | st.text(max_size=30) | st.sampled_from(["/v1/control/start-run", "/v1/runtime/acquire-task", "/"])


@given(paths, st.sampled_from(["POST", "GET", "HEAD", "OPTIONS", "PUT"]), st.sampled_from([KEY, OTHER, b"", None]))
def test_only_the_fleet_calls_of_registered_clients_pass(path: str, method: str, key: bytes | None) -> None:
    passed, status = knock(request(path, method, key))
    assert passed == (path in FLEET and method == "POST" and key == KEY)
    if not passed:
        assert status == (401 if path in FLEET and method == "POST" else 404)


@pytest.mark.parametrize("path", sorted(FLEET))
def test_a_call_passes_with_a_registered_key_alone(path: str) -> None:
    assert knock(request(path)) == (True, 0)
    assert [knock(request(path, key=key)) for key in (OTHER, b"", None)] == [(False, 401)] * 3
    assert knock(request(path, "GET")) == (False, 404)


@pytest.mark.parametrize(("length", "passes"), [("0", True), (str(LARGEST), True), (str(LARGEST + 1), False),
                                                (None, False), ("-1", False), ("x", False)])  # fmt: skip
def test_a_request_says_how_long_it_is_and_has_a_limit(length: str | None, passes: bool) -> None:
    assert knock(request("/v1/fleet/push-object", length=length)) == (passes, 0 if passes else 413)


def test_what_is_no_request_does_not_pass_either() -> None:
    assert not knock({"type": "websocket", "path": "/v1/fleet/get-run", "headers": []})[0]
    assert not knock(
        {**request("/v1/fleet/get-run"), "headers": [(b"flwr-public-key", b"\xff\xff"), (b"content-length", b"5")]}
    )[0]


def test_keys_are_registered_once() -> None:
    state = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()).state()
    register(state, [KEY])
    node = state.get_node_id_by_public_key(KEY)
    register(state, [KEY, OTHER])
    assert node is not None
    assert state.get_node_id_by_public_key(KEY) == node
    assert state.get_node_id_by_public_key(OTHER) not in (None, node)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's, of Alembic
def test_a_database_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a SuperLink that was killed has left, the next one makes a database that Flower can open."""
    path = tmp_path / "superlink.db"

    class KilledError(Exception):
        pass

    def killed(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", killed)
        with pytest.raises(KilledError):
            make_database(path)
    assert not path.exists()
    (tmp_path / "superlink.db.begun").write_bytes((tmp_path / "superlink.db.begun").read_bytes()[:4096])
    make_database(path)
    state = LinkStateFactory(str(path), NoOpFederationManager(), ObjectStoreFactory(str(path))).state()
    register(state, [KEY])
    before = path.stat().st_ino
    make_database(path)
    assert path.stat().st_ino == before
    assert state.get_node_id_by_public_key(KEY) is not None


def test_the_key_that_vouches_for_any_server_is_thrown_away(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert main(["keys", "server", str(keys), "--host", "fl.example.org,10.0.0.7"]) == 0
    assert {path.name for path in tmp_path.rglob("*.*")} == {"ca.crt", "server.key", "server.pem"}
    assert (keys / "server.key").stat().st_mode & 0o777 == 0o600
    authority, server = certificate(keys / "ca.crt"), certificate(keys / "server.pem")
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]


def test_an_authority_that_is_kept_vouches_for_the_next_server_too(tmp_path: Path, capsys: Any) -> None:
    kept = tmp_path / "kept"
    for name in ("first", "second"):
        assert main(["keys", "server", str(tmp_path / name), "--host", name, "--authority", str(kept)]) == 0
        certificate(tmp_path / name / "server.pem").verify_directly_issued_by(certificate(kept / "ca.crt"))
        assert (tmp_path / name / "ca.crt").read_bytes() == (kept / "ca.crt").read_bytes()
        assert not (tmp_path / name / "ca.key").exists()
    assert (kept / "ca.key").stat().st_mode & 0o777 == 0o600
    assert "off this machine" in capsys.readouterr().out

    assert main(["keys", "server", str(kept), "--host", "a", "--authority", str(kept)]) == 2
    assert main(["keys", "server", str(tmp_path / "b"), "--host", "b"]) == 0
    (kept / "ca.crt").write_bytes((tmp_path / "b" / "ca.crt").read_bytes())
    assert main(["keys", "server", str(tmp_path / "c"), "--host", "c", "--authority", str(kept)]) == 2
    assert "do not belong together" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_a_server_refuses_keys_that_are_not_safe(tmp_path: Path, capsys: Any) -> None:
    keys = tmp_path / "keys"
    command = ["server", "digits", "--keys", str(keys), "--out", str(tmp_path / "run")]

    def refused() -> str:
        assert main(command) == 2
        assert not (tmp_path / "run").exists()
        return str(capsys.readouterr().err)

    assert "server.pem" in refused() or "ca.crt" in refused()
    assert main(["keys", "server", str(keys), "--host", "localhost"]) == 0
    assert "no public key" in refused()
    (keys / "clients").mkdir()
    (keys / "clients" / "a.pub").write_text("ssh-ed25519 AAAA")
    assert "a.pub is not a public key" in refused()
    (keys / "clients" / "a.pub").unlink()
    assert main(["keys", "client", str(keys / "clients")]) == 0
    assert len(read_public_keys(keys / "clients")) == 1
    (keys / "ca.key").touch()
    assert "move it off this machine" in refused()
    (keys / "ca.key").unlink()
    (keys / "server.key").chmod(0o640)
    assert "can be read by others" in refused()


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())
