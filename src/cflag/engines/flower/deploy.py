"""`cflag deploy`, `cflag server` and the simulation: who starts what, in which order, and who stops it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cflag.config import Config
from cflag.engines.flower.client_app import SIMULATION
from cflag.engines.flower.fleet import Flwr, Process, free_port, part, superlink, wait_until_open
from cflag.engines.flower.follow import Follower
from cflag.engines.flower.keys import make_client_key, make_server_keys
from cflag.engines.flower.part import STAY
from cflag.engines.flower.server_app import OUTCOME
from cflag.errors import CflagError, DivergedError, InterruptedRunError, UserError
from cflag.files import write_json
from cflag.results.display import Display
from cflag.results.folder import RunFolder
from cflag.results.result import Result
from cflag.safety import cores, stop_requests

LOOPBACK = "127.0.0.1"
RESTARTS = 5
"""How often a server process that was killed is started again."""
STARTS = 120.0
"""Seconds the server process has to start."""


@dataclass(frozen=True)
class ServerOptions:
    """Where the SuperLink listens, its keys, and whether it stays when the run is finished."""

    keys: Path
    host: str = LOOPBACK
    port: int = 0
    keep: bool = False


def deploy(folder: RunFolder, display: Display, keep: bool = False, data: str = "", poll: float = 0.1) -> Result:
    """Run a whole fleet on this machine, with TLS and node authentication, and stop it afterwards."""
    home = folder.path / "deployment"
    clients = range(folder.config().clients)
    keys = home / "keys"
    if not keys.is_dir():
        make_server_keys(keys, ["localhost", LOOPBACK])
        for number in clients:
            make_client_key(keys / "clients", f"client-{number}")
    options = ServerOptions(keys, LOOPBACK, free_port(), keep)
    with stop_requests() as stopped, _superlink(folder, options) as (link, flwr), ExitStack() as fleet:
        nodes = []
        for number in clients:
            state = home / f"client-{number}"
            command = [*part("client"), "--superlink", f"{LOOPBACK}:{options.port}", "--ca", str(keys / "ca.crt")]
            command += ["--key", str(keys / "clients" / f"client-{number}.key"), "--number", str(number)]
            command += ["--state", str(state), "--poll", str(poll), *(["--data", data] if data else [])]
            env = {STAY: "1"} if keep else {}
            node = Process(f"client {number}", command, state / "client.log", env)
            node.start()
            nodes.append(node)
            if not keep:
                fleet.callback(node.stop)
        result = _carry(folder, _Server(flwr, link, options.port, nodes), display, stopped)
        if keep:
            display.note(_kept(flwr, [link, *nodes]))
        return result


def serve(folder: RunFolder, options: ServerOptions, display: Display) -> Result:
    """Run the server's side of a fleet: the SuperLink and the experiment's loop; clients come from elsewhere."""
    with stop_requests() as stopped, _superlink(folder, options) as (link, flwr):
        result = _carry(folder, _Server(flwr, link, options.port, []), display, stopped)
        if options.keep:
            display.note(_kept(flwr, [link]))
        return result


def simulate(folder: RunFolder, config: Config, display: Display) -> Result:
    """Run the experiment in Flower's simulation runtime, on Ray."""
    home = (folder.path / "simulation").absolute()
    home.mkdir(exist_ok=True)
    port = free_port()
    link = superlink(home, LOOPBACK, port, None, False, "--simulation")
    link.env[SIMULATION] = str(home)
    workers = config.workers or cores()
    shape = f"num-supernodes={config.clients} client-resources-num-cpus=1 init-args-num-cpus={workers}"
    with stop_requests() as stopped, _running(link, port):
        flwr = Flwr(home / "flower", f"{LOOPBACK}:{port}", None)
        return _carry(folder, _Server(flwr, link, port, [], shape), display, stopped)


@dataclass
class _Server:
    """What a run needs while it goes on."""

    flwr: Flwr
    link: Process
    port: int
    nodes: Sequence[Process]
    shape: str = ""
    """A simulation's clients and cores, as Flower wants to be told."""


@contextmanager
def _superlink(folder: RunFolder, options: ServerOptions) -> Iterator[tuple[Process, Flwr]]:
    """A SuperLink that knows the clients' public keys."""
    home = (folder.path / "deployment").absolute()
    home.mkdir(exist_ok=True)
    link = superlink(home, options.host, options.port, options.keys.absolute(), options.keep)
    with _running(link, options.port, options.keep):
        flwr = Flwr(home / "flower", f"{LOOPBACK}:{options.port}", (options.keys / "ca.crt").absolute())
        _register(flwr, options.keys / "clients", home / "registered.json")
        yield link, flwr


@contextmanager
def _running(link: Process, port: int, keep: bool = False) -> Iterator[None]:
    link.start()
    try:
        wait_until_open(link, LOOPBACK, port)
        yield
    finally:
        if not keep:
            link.stop()


def _register(flwr: Flwr, keys: Path, done: Path) -> None:
    """Tell the SuperLink which keys may connect; its database remembers, and so do we."""
    known = json.loads(done.read_text()) if done.is_file() else []
    found = sorted(keys.glob("*.pub"))
    if not found:
        raise UserError(f"{keys} holds no public key of a client (*.pub); make them with 'cflag keys client' there")
    for path in found:
        if path.name not in known:
            flwr.call("supernode", "register", str(path), "cflag")
            known.append(path.name)
            write_json(done, known)


def _carry(folder: RunFolder, server: _Server, display: Display, stopped: Callable[[], bool]) -> Result:
    """Submit the run, follow it to its end, and start again what dies on the way."""
    write_json(folder.path / "processes.json", {p.name: p.popen.pid for p in [server.link, *server.nodes] if p.popen})
    follower = Follower(folder, folder.config(), display)
    try:
        for _ in range(RESTARTS):
            (folder.path / OUTCOME).unlink(missing_ok=True)
            run = server.flwr.submit(folder.path, server.shape)
            if _follow(folder, server, run, follower, stopped):
                return Result.load(folder.path)
            display.note("the server process ended unexpectedly; it goes on from the last checkpoint")
    finally:
        display.stop()
    raise CflagError(f"the server process ended unexpectedly {RESTARTS} times; {_logs(folder, server)}")


def _follow(folder: RunFolder, server: _Server, run: str, follower: Follower, stopped: Callable[[], bool]) -> bool:
    """Watch a run: True when it is finished, False where its process died."""
    began, next_look = time.monotonic(), time.monotonic() + STARTS
    started = gone = False
    while True:
        follower.look()
        if folder.finished:
            return True
        _raise_outcome(folder)
        if stopped():
            raise InterruptedRunError(f"stopped; all finished rounds are saved; {go_on(folder)}")
        if not server.link.alive:
            follower.display.note(f"the SuperLink ended; starting it again with its database ({server.link.log})")
            server.link.start()
            wait_until_open(server.link, LOOPBACK, server.port)
        held = folder.in_use()
        started = started or held
        if started and not held:
            if gone:
                return False
            time.sleep(1.0)  # the outcome, or the result, is written just before the lock is given back
        gone = started and not held
        if not started and time.monotonic() > next_look:
            raise CflagError(
                f"the server process did not start within {time.monotonic() - began:.0f} s (run {run}); "
                f"{_logs(folder, server)}"
            )
        time.sleep(0.1)


def _raise_outcome(folder: RunFolder) -> None:
    """Raise what the server process raised."""
    path = folder.path / OUTCOME
    if path.is_file():
        outcome = json.loads(path.read_text())
        kinds = (UserError, DivergedError, InterruptedRunError)
        kind = next((k for k in kinds if k.exit_code == outcome["exit_code"]), CflagError)
        raise kind(outcome["error"])


def go_on(folder: RunFolder) -> str:
    """Return how a deployment is resumed."""
    return f"continue with: cflag deploy --resume {folder.path}"


def _kept(flwr: Flwr, processes: Sequence[Process]) -> str:
    pids = " ".join(str(p.popen.pid) for p in processes if p.popen)
    home = flwr.env["FLWR_HOME"]
    return f"kept running; use them with FLWR_HOME={home} flwr ... cflag, stop them with: kill {pids}"


def _logs(folder: RunFolder, server: _Server) -> str:
    return f"see {server.link.log}; {go_on(folder)}"
