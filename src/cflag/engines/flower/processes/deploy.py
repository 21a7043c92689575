"""`cflag deploy`, `cflag server` and the simulation: who starts what, in which order, and who stops it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cflag.config import Config
from cflag.engines.flower.environment import KEYS, OWNER, SIMULATION, STAY
from cflag.engines.flower.processes.fleet import Flwr, Process, flower_process, free_port, superlink, wait_until_open
from cflag.engines.flower.processes.keys import make_client_key, make_server_keys
from cflag.engines.flower.processes.outcome import forget_outcome, how_to_resume, raise_outcome
from cflag.errors import CflagError, InterruptedRunError, UserError
from cflag.files import read_json, write_json, write_sealed_json
from cflag.loggers.attach import ended_elsewhere
from cflag.process import cores
from cflag.results.display import Display
from cflag.results.folder import RunFolder
from cflag.results.follow import Follower
from cflag.results.result import Result
from cflag.stopping import stop_requests

LOOPBACK = "127.0.0.1"
RESTARTS = 5
"""How often a server process that was killed is started again."""
STARTS = 15.0
"""Seconds after which we ask Flower why the server process did not start."""
LOGS = 60.0
"""Seconds the server process of a finished run has for its loggers, which may send files somewhere."""


@dataclass(frozen=True)
class ServerOptions:
    """Where the SuperLink listens, its keys, whether it stays when the run is finished, and whether it has a database.

    Without one it is twice as fast. If it dies then, the run goes on from its last checkpoint instead of where it was.
    """

    keys: Path
    host: str = LOOPBACK
    port: int = 0
    keep: bool = False
    database: bool = True


@dataclass(frozen=True)
class FleetOptions:
    """A fleet on this machine: where its data are, whether it stays, whether its SuperLink has a database."""

    data: str = ""
    keep: bool = False
    database: bool = True
    poll: float = 0.1


def deploy(folder: RunFolder, fleet: FleetOptions, display: Display) -> Result:
    """Run a whole fleet on this machine, with TLS and node authentication, and stop it afterwards."""
    home = folder.path / "deployment"
    config = folder.config()
    clients = range(config.clients)
    keys = home / "keys"
    if home.is_dir() and not keys.is_dir():
        raise UserError(
            f"{folder.path} is the run of a 'cflag server', whose clients are elsewhere; {how_to_resume(folder)}"
        )
    if not keys.is_dir():
        make_server_keys(keys, ["localhost", LOOPBACK])
        for number in clients:
            make_client_key(keys / "clients", f"client-{number}")
    options = ServerOptions(keys, LOOPBACK, free_port(), fleet.keep, fleet.database)
    ends = ended_elsewhere(display, config, folder)
    with ends, stop_requests() as stopped, _superlink(folder, options) as server, ExitStack() as ending:
        for number in clients:
            state = home / f"client-{number}"
            command = [
                *flower_process("client"),
                "--superlink",
                f"{LOOPBACK}:{options.port}",
                "--ca",
                str(keys / "ca.crt"),
            ]
            command += ["--key", str(keys / "clients" / f"client-{number}.key"), "--number", str(number)]
            command += ["--state", str(state), "--poll", str(fleet.poll)]
            command += ["--data", _own_data(fleet.data, number)] if fleet.data else []
            command += [word for plugin in config.plugins for word in ("--plugin", plugin)]
            node = Process(f"client {number}", command, state / "client.log", {STAY: "1"} if fleet.keep else {})
            node.start()
            server.nodes.append(node)
            if not fleet.keep:
                ending.callback(node.stop)
        return _carry(folder, server, display, stopped)


def _own_data(data: str, number: int) -> str:
    """Return DATA/client-N if there is such a folder, with the client's own data."""
    own = Path(data) / f"client-{number}"
    return str(own) if own.is_dir() else data


def serve_fleet(folder: RunFolder, options: ServerOptions, display: Display) -> Result:
    """Run the server's side of a fleet: the SuperLink and the experiment's loop; clients come from elsewhere."""
    ends = ended_elsewhere(display, folder.config(), folder)
    with ends, stop_requests() as stopped, _superlink(folder, options) as server:
        return _carry(folder, server, display, stopped)


def simulate(folder: RunFolder, config: Config, display: Display) -> Result:
    """Run the experiment in Flower's simulation runtime, on Ray."""
    home = (folder.path / "simulation").absolute()
    home.mkdir(exist_ok=True)
    port = free_port()
    link = superlink(home, LOOPBACK, port, None, False, "--simulation")
    link.env |= {SIMULATION: str(home), OWNER: str(os.getpid())}
    workers = config.workers or cores()
    shape = f"num-supernodes={config.clients} client-resources-num-cpus=1 init-args-num-cpus={workers}"
    server = _Server(Flwr(home / "flower", f"{LOOPBACK}:{port}", None), link, port, shape=shape)
    with ended_elsewhere(display, config, folder), stop_requests() as stopped, _running(server):
        return _carry(folder, server, display, stopped)


@dataclass
class _Server:
    """What a run needs while it goes on."""

    flwr: Flwr
    link: Process
    port: int
    nodes: list[Process] = field(default_factory=list)
    shape: str = ""
    """A simulation's clients and cores, as Flower wants to be told."""
    public_keys: Path | None = None
    remembers: Path | None = None
    """Where we note which keys its database knows; None where it has no database."""
    keep: bool = False

    def start_link(self) -> None:
        """Start the SuperLink and tell it which keys may connect."""
        self.link.start()
        wait_until_open(self.link, LOOPBACK, self.port)
        if self.public_keys is not None:
            _register(self.flwr, self.public_keys, self.remembers)

    def revive(self, note: Callable[[str], None]) -> None:
        """Start again what died: the SuperLink, and the clients of this machine."""
        if not self.link.alive:
            note(f"the SuperLink ended and is started again (see {self.link.log})")
            self.start_link()
        for node in self.nodes:
            if not node.alive:
                note(f"{node.name} ended and is started again; the SuperLink lets its key in after a minute")
                node.start()

    def processes(self) -> dict[str, int]:
        """Return what runs, by name, with its process id."""
        return {p.name: p.popen.pid for p in [self.link, *self.nodes] if p.popen}


@contextmanager
def _superlink(folder: RunFolder, options: ServerOptions) -> Iterator[_Server]:
    """A SuperLink that knows the clients' public keys."""
    home = (folder.path / "deployment").absolute()
    home.mkdir(mode=0o700, exist_ok=True)
    _forget_withdrawn_keys(home, options.keys / "clients")
    extra = ["--database", str(home / "superlink.db")] if options.database else []
    link = superlink(home, options.host, options.port, options.keys.absolute(), options.keep, *extra)
    link.env[KEYS] = str((options.keys / "clients").absolute())
    if not options.keep:
        link.env[OWNER] = str(os.getpid())
    flwr = Flwr(home / "flower", f"{LOOPBACK}:{options.port}", (options.keys / "ca.crt").absolute())
    remembers = home / "registered.json" if options.database else None
    server = _Server(flwr, link, options.port, [], "", options.keys / "clients", remembers, options.keep)
    with _running(server):
        yield server


@contextmanager
def _running(server: _Server) -> Iterator[None]:
    try:
        server.start_link()
        yield
    finally:
        if not server.keep:
            server.link.stop()


def _register(flwr: Flwr, keys: Path, remembers: Path | None) -> None:
    """Tell the SuperLink which keys may connect, unless its database knows them."""
    known = read_json(remembers) if remembers and remembers.is_file() else {}
    found = sorted(keys.glob("*.pub"))
    if not found:
        raise UserError(f"{keys} holds no public key of a client (*.pub); make them with 'cflag keys client' there")
    for path in found:
        if path.name not in known:
            flwr.call("supernode", "register", str(path), "cflag")
            known[path.name] = _print_of(path)
            if remembers:
                write_sealed_json(remembers, known)


def _print_of(key: Path) -> str:
    return hashlib.sha256(key.read_bytes()).hexdigest()


def _forget_withdrawn_keys(home: Path, keys: Path) -> None:
    """A key that is gone or was replaced must not stay in the database; the run goes on from its checkpoint."""
    remembers = home / "registered.json"
    known = read_json(remembers) if remembers.is_file() else {}
    if any(not (keys / name).is_file() or _print_of(keys / name) != print_ for name, print_ in known.items()):
        for path in [remembers, *home.glob("superlink.db*")]:
            path.unlink(missing_ok=True)


def _carry(folder: RunFolder, server: _Server, display: Display, stopped: Callable[[], bool]) -> Result:
    """Submit the run, follow it to its end, and start again what dies on the way."""
    follower = Follower(folder, folder.config(), display)
    try:
        for _ in range(RESTARTS):
            forget_outcome(folder)
            run = server.flwr.submit(folder.path, server.shape)
            if _follow(folder, server, run, follower, stopped):
                _let_log(folder)
                if server.keep:
                    display.note(_kept(server))
                return Result.load(folder.path)
            display.note("the server process ended unexpectedly; it goes on from the last checkpoint")
    finally:
        display.stop()
    raise CflagError(f"the server process ended unexpectedly {RESTARTS} times; {_logs(folder, server)}")


def _follow(folder: RunFolder, server: _Server, run: str, follower: Follower, stopped: Callable[[], bool]) -> bool:
    """Watch a run: True when it is finished, False where its process died."""
    look = time.monotonic() + STARTS
    started = gone = False
    known: dict[str, int] = {}
    while True:
        follower.look()
        if folder.finished:
            return True
        raise_outcome(folder)
        if stopped():
            raise InterruptedRunError(f"stopped; all finished rounds are saved; {how_to_resume(folder)}")
        server.revive(follower.display.note)
        if server.processes() != known:
            known = server.processes()
            write_json(folder.path / "processes.json", known)
        held = folder.in_use()
        started = started or held
        if started and not held:
            if gone:
                return False
            time.sleep(1.0)  # the outcome, or the result, is written just before the lock is given back
        gone = started and not held
        if not started and time.monotonic() > look:  # asking Flower takes a second, so seldom
            look = time.monotonic() + STARTS
            if why := server.flwr.failure(run):
                raise CflagError(f"the server process did not start: {why}; {_logs(folder, server)}")
        time.sleep(0.1)


def _let_log(folder: RunFolder) -> None:
    """Let the process of a finished run close its logs; it holds the folder until it has."""
    end = time.monotonic() + (LOGS if folder.config().log else 0.0)
    while folder.in_use() and time.monotonic() < end:
        time.sleep(0.1)


def _kept(server: _Server) -> str:
    pids = " ".join(str(p.popen.pid) for p in [server.link, *server.nodes] if p.popen)
    home = server.flwr.env["FLWR_HOME"]
    return f"kept running; use them with FLWR_HOME={home} flwr ... cflag, stop them with: kill {pids}"


def _logs(folder: RunFolder, server: _Server) -> str:
    return f"see {server.link.log}; {how_to_resume(folder)}"
