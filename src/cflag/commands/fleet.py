"""`cflag deploy`, `keys`, `server` and `client`: experiments on many machines; they need `cflag[flower]`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from cflag.commands.common import absolute, add_settings, add_state_key, names_in, raw_of
from cflag.engines.flower import require_flower
from cflag.errors import UserError

if TYPE_CHECKING:
    from cflag.commands.common import Commands
    from cflag.config import Config
    from cflag.results.display import Display
    from cflag.results.folder import RunFolder
    from cflag.results.result import Result


def add_fleet(commands: Commands) -> None:
    """The commands for many machines; they need `cflag[flower]`."""
    deploy = commands.add_parser(
        "deploy",
        help="run an experiment on a fleet of processes on this machine",
        description="Start a SuperLink and SuperNodes with TLS and node authentication, run an experiment on them, and "
        "stop them.",
    )
    _add_fleet_run(deploy)
    _add_poll(deploy)
    add_state_key(deploy)
    deploy.set_defaults(command=_deploy)

    keys = commands.add_parser("keys", help="make the keys of a fleet").add_subparsers(required=True, metavar="WHOSE")
    server_keys = keys.add_parser("server", help="the server's key and certificate, and ca.crt to check it with")
    server_keys.add_argument("folder", type=Path, metavar="DIR")
    server_keys.add_argument("--host", required=True, metavar="NAME,...", help="names or addresses clients will use")
    server_keys.add_argument("--authority", type=Path, metavar="DIR",
                             help="keep, or find, what signs certificates there (default: throw it away)")  # fmt: skip
    server_keys.set_defaults(command=_keys_server)
    client_keys = keys.add_parser("client", help="a client's key pair; its .pub goes to the server's KEYS/clients/")
    client_keys.add_argument("folder", type=Path, metavar="DIR")
    client_keys.add_argument("--name", default="client", help="NAME.key and NAME.pub (default: client)")
    client_keys.set_defaults(command=_keys_client)

    server = commands.add_parser(
        "server",
        help="the server of a fleet: run an experiment with clients on other machines",
        description="Start a SuperLink, let in the clients whose public keys are in KEYS/clients/, run an experiment.",
    )
    _add_fleet_run(server)
    server.add_argument("--keys", type=Path, required=True, metavar="DIR", help="what 'cflag keys server' made")
    server.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")
    server.add_argument("--port", type=int, default=9092, help="default: 9092")
    server.set_defaults(command=_server)

    accept = commands.add_parser(
        "accept",
        help="take back a client of a fleet whose state or key changed",
        description="Let the server of a run, which may be going on, take clients as they are with their next hello.",
    )
    accept.add_argument("run", type=Path, metavar="RUN", help="the run folder")
    accept.add_argument("numbers", type=int, nargs="+", metavar="N", help="a client's number")
    accept.set_defaults(command=_accept)

    client = commands.add_parser(
        "client",
        help="one client of a fleet, on the machine that has its data",
        description="Serve as one client until stopped. Its memory and state stay in --state, its data in --data.",
    )
    client.add_argument("--superlink", required=True, metavar="HOST:PORT", help="the server's address")
    client.add_argument("--ca", type=Path, required=True, metavar="FILE", help="the server's ca.crt")
    client.add_argument("--key", type=Path, required=True, metavar="FILE", help="what 'cflag keys client' made")
    client.add_argument("--number", type=int, required=True, metavar="N", help="which client this is, from 0")
    client.add_argument("--state", type=Path, required=True, metavar="DIR", help="its own folder; survives restarts")
    client.add_argument("--data", default="", metavar="DIR", help="where data sets are (default: $CFLAG_DATA)")
    client.add_argument("--device", default="cpu", help="what computes (default: cpu)")
    client.add_argument("--model", default="", metavar="FILE.py:NAME",
                        help="the experiment's model, where it is code: as it is on this machine")  # fmt: skip
    _add_poll(client)
    add_state_key(client)
    client.set_defaults(command=_client)


def _add_fleet_run(parser: argparse.ArgumentParser) -> None:
    """What `deploy` and `server` have in common."""
    parser.add_argument("preset", nargs="?", metavar="PRESET | FILE.toml", help="default: digits")
    add_settings(parser)
    parser.add_argument("--clients", type=int, metavar="N", help="how many (default: the preset's)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write; must be new (default: runs/...)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with what was stopped or killed")
    parser.add_argument("--no-database", dest="database", action="store_false",
                        help="a SuperLink without database: faster; if it dies the round is repeated")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def _add_poll(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--poll", type=float, default=0.1, metavar="SECONDS",
                        help="how often a client looks for questions; 0: Flower's own 3 s (default: 0.1)")  # fmt: skip


def _loading(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Say at once that something goes on."""
    from cflag.results.display import PatientConsole, loading

    return nullcontext() if args.quiet else loading(PatientConsole(), "loading torch and Flower")


def _deploy(args: argparse.Namespace) -> None:
    with _loading(args), require_flower():
        from cflag.engines.flower.processes.deploy import FleetOptions, check_data, deploy
    data = absolute(args.data_dir) if args.data_dir else os.environ.get("CFLAG_DATA", "")
    fleet = FleetOptions(data, args.database, args.poll)
    _fleet(args, lambda folder, display: deploy(folder, fleet, display), lambda config: check_data(config, fleet))


def _server(args: argparse.Namespace) -> None:
    with _loading(args), require_flower():
        from cflag.engines.flower.processes.deploy import ServerOptions, serve_fleet
        from cflag.engines.flower.processes.keys import check_server_keys
    check_server_keys(args.keys)
    options = ServerOptions(args.keys, args.host, args.port, args.database)
    _fleet(args, lambda folder, display: serve_fleet(folder, options, display))


def _fleet(
    args: argparse.Namespace,
    carry: Callable[[RunFolder, Display], Result],
    check: Callable[[Config], None] = lambda config: None,
) -> None:
    """Open or make the run folder of a deployment that passes a check, let it be carried, and show what came out."""
    from cflag.config import resolve
    from cflag.loggers.attach import require_loggers
    from cflag.results.display import Bar, PatientConsole, Quiet, show_results
    from cflag.results.folder import RunFolder, new_folder

    console = PatientConsole()
    if args.resume is not None:
        if args.preset or args.set or args.out or args.clients:
            raise UserError("--resume takes all from the folder's config.toml; give nothing else to change")
        folder = RunFolder.open(args.resume)
        folder.add_plugins([*map(absolute, args.plugin)])
        if not folder.finished:
            check(folder.config())
    else:
        args.engine = "flower"
        config = resolve(raw_of(args))
        require_loggers(config.log)
        check(config)
        stem = Path(args.preset or "digits").stem.replace(":", "-")
        folder = RunFolder.create(args.out or new_folder(f"{stem}-{config.method}-{config.seed}"), config)
    if not folder.finished:
        require_loggers(folder.config().log)
        console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
    show_results(console, [carry(folder, Quiet() if args.quiet else Bar(console))])


def _keys_server(args: argparse.Namespace) -> None:
    with require_flower():
        from cflag.engines.flower.processes.keys import make_server_keys
    hosts = [*names_in("--host", args.host), "localhost", "127.0.0.1"]
    for path in make_server_keys(args.folder, list(dict.fromkeys(hosts)), args.authority):
        print(path)
    print(f"copy {args.folder / 'ca.crt'} to every client; all else in {args.folder} stays with the server")
    if args.authority is not None:
        print(f"move {args.authority} off this machine: {args.authority / 'ca.key'} can vouch for any server")


def _keys_client(args: argparse.Namespace) -> None:
    with require_flower():
        from cflag.engines.flower.processes.keys import make_client_key
    for path in make_client_key(args.folder, args.name):
        print(path)
    print(f"copy {args.folder / args.name}.pub to the server's KEYS/clients/ under a name of its own")


def _accept(args: argparse.Namespace) -> None:
    from cflag.results.folder import RunFolder

    with require_flower():
        from cflag.engines.flower.server.register import accept
    folder = RunFolder.open(args.run)
    clients = folder.config().clients
    if folder.finished:
        raise UserError(f"{args.run} is finished")
    for number in args.numbers:
        if not 0 <= number < clients:
            raise UserError(f"{number}: this run has clients 0 to {clients - 1}")
    accept(args.run, args.numbers)
    print(f"with the next hello, as they are: clients {', '.join(map(str, args.numbers))}")


def _client(args: argparse.Namespace) -> None:
    with require_flower():
        from cflag.engines.flower.processes.node import NodeOptions, run_client
        from cflag.models.reference import absolute_reference
    names = ("superlink", "ca", "key", "number", "state", "device", "poll")
    data = absolute(args.data) if args.data else os.environ.get("CFLAG_DATA", "")
    model = absolute_reference(args.model, Path.cwd()) if args.model else ""
    run_client(NodeOptions(**{name: getattr(args, name) for name in names}, data=data, model=model))
