"""`cflag deploy`, `cflag server` and the simulation: who starts what, in which order, and who stops it."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cflag import registry
from cflag.config import Config
from cflag.data.load import data_dir_or_default, find_reader, home_of
from cflag.data.partitions.base import has_own_data
from cflag.data.sources.base import Reading
from cflag.engines.flower.environment import KEYS, SIMULATION
from cflag.engines.flower.private import private_socket
from cflag.engines.flower.processes.fleet import (
    Process,
    alone,
    flower_process,
    free_port,
    quiet_flower,
    superlink,
    wait_until_open,
)
from cflag.engines.flower.processes.keys import make_client_key, make_server_keys
from cflag.engines.flower.processes.outcome import forget_outcome, how_to_resume, raise_outcome
from cflag.errors import CflagError, DataError, InterruptedRunError, UserError
from cflag.files import write_json
from cflag.loggers.attach import ended_elsewhere
from cflag.models.reference import is_reference
from cflag.results.display import Display
from cflag.results.folder import RunFolder
from cflag.results.follow import Follower
from cflag.results.result import Result
from cflag.stopping import stop_requests

LOOPBACK = "127.0.0.1"
RESTARTS = 5
"""How often a process that ends is started while the run does not move on."""
OWN_DATA = "put each client's data into DATA/client-0, DATA/client-1, ... and give --data-dir DATA"
ENDS = 60.0
"""Seconds the server process of a finished run has for its loggers, which may send files somewhere."""


@dataclass(frozen=True)
class ServerOptions:
    """Where the SuperLink listens for clients, its keys, and whether it has a database.

    Without one it is twice as fast. If it dies then, the run goes on from its last checkpoint instead of where it was.
    """

    keys: Path
    host: str = LOOPBACK
    port: int = 0
    database: bool = True


@dataclass(frozen=True)
class FleetOptions:
    """A fleet on this machine: where its data are, whether its SuperLink has a database, how often clients look."""

    data: str = ""
    database: bool = True
    poll: float = 0.1

    def folder(self, config: Config) -> str:
        """Return the data folder of all clients, in which each may have one of its own; '' for the usual one."""
        return self.data or config.data_dir or home_of(config.source)


def deploy(folder: RunFolder, options: FleetOptions, display: Display) -> Result:
    """Run a whole fleet on this machine, with TLS and node authentication, and stop it afterwards."""
    home = folder.path / "deployment"
    config = folder.config()
    data = options.folder(config)
    keys = home / "keys"
    if (home / "superlink.log").is_file() and not keys.is_dir():
        raise UserError(
            f"{folder.path} is the run of a 'cflag server', whose clients are elsewhere; {how_to_resume(folder)}"
        )
    link = ServerOptions(keys, LOOPBACK, free_port(), options.database)
    ends = ended_elsewhere(display, config, folder)
    with ends, stop_requests() as stopped, _kept_apart(folder), ExitStack() as ending:
        if not keys.is_dir():
            _make_keys(keys, config.clients)
        fleet = ending.enter_context(_fleet(folder, link))
        for number in range(config.clients):
            state = home / f"client-{number}"
            command = [*flower_process("client"), "--superlink", f"{LOOPBACK}:{link.port}"]
            command += ["--ca", str(keys / "ca.crt"), "--key", str(keys / "clients" / f"client-{number}.key")]
            command += ["--number", str(number), "--state", str(state), "--poll", str(options.poll)]
            command += ["--data", _own_data(data, number)] if data else []
            command += ["--model", config.model] if is_reference(config.model) else []
            command += [word for plugin in config.plugins for word in ("--plugin", plugin)]
            fleet.nodes.append(Process(f"client {number}", command, state / "client.log", {}))
        return _carry(folder, fleet, display, stopped)


def _make_keys(keys: Path, clients: int) -> None:
    """Make all keys of a fleet on this machine, or, if this process is killed meanwhile, none."""
    new = keys.with_name("keys.new")
    shutil.rmtree(new, ignore_errors=True)
    make_server_keys(new, ["localhost", LOOPBACK])
    for number in range(clients):
        make_client_key(new / "clients", f"client-{number}")
    new.rename(keys)


def _own_data(data: str, number: int) -> str:
    """Return DATA/client-N if there is such a folder, with the client's own data."""
    own = Path(data) / f"client-{number}"
    return str(own) if own.is_dir() else data


def check_data(config: Config, options: FleetOptions) -> None:
    """Refuse to start a fleet of which a client would find no data: each would wait for it until its patience ends."""
    data, own = options.folder(config), has_own_data(registry.get("partition", config.partition))
    reader = find_reader(config.source, Reading(config.data, own, True, config.problem))
    whose: dict[Path, int] = {}
    for number in range(config.clients):
        whose.setdefault(data_dir_or_default(_own_data(data, number) or None), number)
        if own and not (Path(data) / f"client-{number}").is_dir():
            raise UserError(
                f"client {number}: there is no folder {Path(data) / f'client-{number}'} with its data; {OWN_DATA}"
            )
    for folder, number in whose.items():
        try:
            reader.check(folder)
        except DataError as error:
            raise UserError(f"client {number}: {error}; {OWN_DATA if own else reader.advice()}") from None


def serve_fleet(folder: RunFolder, options: ServerOptions, display: Display) -> Result:
    """Run the server's side of a fleet: the SuperLink and the experiment's loop; clients come from elsewhere."""
    ends = ended_elsewhere(display, folder.config(), folder)
    with ends, stop_requests() as stopped, _kept_apart(folder), _fleet(folder, options) as fleet:
        return _carry(folder, fleet, display, stopped)


def simulate(folder: RunFolder, config: Config, display: Display) -> Result:
    """Run the experiment in Flower's simulation runtime, on Ray."""
    home = (folder.path / "simulation").absolute()
    home.mkdir(exist_ok=True)
    env = {**quiet_flower(home / "flower"), SIMULATION: str(home)}
    command = [*flower_process("simulation"), str(folder.path.absolute())]
    fleet = Fleet(Process("simulation", command, home / "simulation.log", env))
    with ended_elsewhere(display, config, folder), stop_requests() as stopped, fleet.stopped_afterwards():
        return _carry(folder, fleet, display, stopped)


@dataclass
class Fleet:
    """The processes of a run: its server, the SuperLink between it and the clients, and the clients of this machine."""

    server: Process
    link: Process | None = None
    """None in a simulation."""
    socket: str = ""
    nodes: list[Process] = field(default_factory=list)

    def revive(self, note: Callable[[str], None]) -> None:
        """Start the SuperLink and the clients, for the first time or because they died."""
        if self.link is not None and not self.link.alive:
            if self.link.popen is not None:
                note(f"the SuperLink ended and is started again (see {self.link.log})")
            self._start_link(self.link, note)
        for node in self.nodes:
            if not node.alive:
                if node.popen is not None:
                    note(f"{node.name} ended and is started again; the SuperLink lets its key in after a minute")
                node.start()

    def _start_link(self, link: Process, note: Callable[[str], None]) -> None:
        """Start the SuperLink; it may be killed meanwhile, or its port may be free only in a moment."""
        for _ in range(RESTARTS):
            link.start()
            if wait_until_open(link, self.socket):
                return
            note(f"the SuperLink ended while it started (see {link.log})")
        raise CflagError(f"the SuperLink did not start: {link.last_words()} (see {link.log})")

    def let_end(self) -> None:
        """Give the server process of a finished run time to end by itself."""
        if self.server.popen is not None:
            with suppress(subprocess.TimeoutExpired):
                self.server.popen.wait(ENDS)

    def processes(self) -> dict[str, int]:
        """Return what runs, by name, with its process id."""
        parts = [self.link, self.server, *self.nodes]
        return {p.name: p.popen.pid for p in parts if p is not None and p.popen}

    @contextmanager
    def stopped_afterwards(self) -> Iterator[None]:
        """Stop everything in the end: first those who would miss the others, clients at the same time."""
        try:
            yield
        finally:
            self.server.stop()
            for node in self.nodes:
                node.ask_to_stop()
            for process in self.nodes:
                process.stop()
            if self.link is not None:
                self.link.stop()


@contextmanager
def _kept_apart(folder: RunFolder) -> Iterator[None]:
    """Keep a second deployment out of the folder, and wait for the server process of one that was just killed."""
    home = folder.path / "deployment"
    home.mkdir(mode=0o700, exist_ok=True)
    with alone(home, "deployment"):
        end = time.monotonic() + 10.0
        while folder.in_use() and time.monotonic() < end:
            time.sleep(0.1)
        yield


@contextmanager
def _fleet(folder: RunFolder, options: ServerOptions) -> Iterator[Fleet]:
    """The server's side of a fleet: what is not for clients goes through a socket that only this user can reach."""
    home = (folder.path / "deployment").absolute()
    extra = ["--database", str(home / "superlink.db")] if options.database else []
    with private_socket() as socket:
        link = superlink(home, socket, options.host, options.port, options.keys.absolute(), *extra)
        command = [*flower_process("server"), socket, str(folder.path.absolute())]
        env = {**quiet_flower(home / "flower"), KEYS: str((options.keys / "clients").absolute())}
        fleet = Fleet(Process("server", command, home / "server.log", env), link, socket)
        with fleet.stopped_afterwards():
            yield fleet


def _carry(folder: RunFolder, fleet: Fleet, display: Display, stopped: Callable[[], bool]) -> Result:
    """Start the run's processes, follow it to its end, and start again what dies on the way."""
    follower = Follower(folder, folder.config(), display)
    known: dict[str, int] = {}
    starts, rounds = 0, folder.rounds_done()
    forget_outcome(folder)
    try:
        while True:
            idle = not fleet.server.alive  # asked first: what a process left before it ended is seen below
            follower.look()
            if folder.finished:
                fleet.let_end()
                return Result.load(folder.path)
            raise_outcome(folder)
            if stopped():
                raise InterruptedRunError(f"stopped; all finished rounds are saved; {how_to_resume(folder)}")
            fleet.revive(display.note)
            if idle:
                starts, rounds = starts + 1 if rounds == folder.rounds_done() else 1, folder.rounds_done()
                _start_server(folder, fleet, starts, display)
            if fleet.processes() != known:
                known = fleet.processes()
                write_json(folder.path / "processes.json", known)
            time.sleep(0.1)
    finally:
        display.stop()


def _start_server(folder: RunFolder, fleet: Fleet, starts: int, display: Display) -> None:
    """Start the server process, unless it ended too often while the run did not move on."""
    if starts > RESTARTS:
        log = fleet.server.log
        raise CflagError(f"the server process ended unexpectedly {RESTARTS} times; see {log}; {how_to_resume(folder)}")
    if fleet.server.popen is not None:
        display.note("the server process ended unexpectedly; it goes on from the last checkpoint")
    fleet.server.start()
