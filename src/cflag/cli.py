"""The command line. torch is imported only by the commands that need it, so that `cflag --help` is instant."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflag.errors import CflagError, InterruptedRunError, UserError
from cflag.safety import cores, require_flower, stop_requests

if TYPE_CHECKING:
    from cflag.config import Config
    from cflag.experiment import Experiment
    from cflag.results.display import Display
    from cflag.results.folder import RunFolder
    from cflag.results.result import Result

    Experiments = Iterator[tuple[Path, Experiment]]

BUDGETS = ("rounds", "gradients", "bytes")
KINDS = ("methods", "sources", "models", "memories", "presets", "campaigns")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a person's mistake ends in one line and an exit code, not in a traceback."""
    args = _parser().parse_args(argv)
    try:
        args.command(args)
        sys.stdout.flush()
    except CflagError as error:
        print(f"cflag: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("cflag: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"cflag: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cflag", description="Continual federated learning with C-FLAG.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run an experiment", description="Run an experiment, or several.")
    run.add_argument("preset", nargs="?", metavar="PRESET | FILE.toml", help="default: digits")
    _add_settings(run)
    run.add_argument("--out", type=Path, metavar="DIR", help="folder to write; must be new (default: runs/...)")
    run.add_argument("--seeds", metavar="N,N,...", help="one run for each seed")
    run.add_argument("--methods", metavar="NAME,NAME,...", help="one run for each method")
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on with what was stopped or killed")
    run.add_argument("--engine", choices=("local", "flower-sim"), help="what carries the questions (default: local)")
    run.add_argument("--workers", type=int, metavar="N", help="processes that compute (default: one a core)")
    run.add_argument("--quiet", action="store_true", help="no progress display")
    run.set_defaults(command=_run)

    compare = commands.add_parser(
        "compare",
        help="compare methods at an equal budget",
        description="Run several methods with several seeds, side by side on all cores, and make one table.",
    )
    compare.add_argument("preset", metavar="PRESET | FILE.toml")
    _add_settings(compare)
    compare.add_argument("--methods", required=True, metavar="NAME,NAME,...", help="the first sets the budget")
    compare.add_argument("--seeds", default="1234,1235,1236", metavar="N,N,...")
    compare.add_argument("--budget", choices=BUDGETS, default="rounds",
                         help="what every method gets the same of (default: rounds)")  # fmt: skip
    compare.add_argument("--tuned", type=Path, action="append", default=[], metavar="FILE",
                         help="values that 'cflag tune' found")  # fmt: skip
    compare.add_argument("--out", type=Path, required=True, metavar="DIR", help="repeat the command to go on")
    compare.add_argument("--jobs", type=int, default=0, metavar="N", help="runs at once (default: one a core)")
    compare.set_defaults(command=_compare)

    tune = commands.add_parser(
        "tune",
        help="search for a method's best settings",
        description="Search each method's declared space with the same number of trials, on a seed of its own.",
    )
    tune.add_argument("methods", metavar="METHOD,METHOD,...", help="the first sets the budget")
    tune.add_argument("preset", metavar="PRESET | FILE.toml")
    _add_settings(tune)
    tune.add_argument("--trials", type=int, default=20, metavar="N", help="for each method (default: 20)")
    tune.add_argument(
        "--seed", type=int, default=4321, metavar="N", help="must not be one of a table's (default: 4321)"
    )
    tune.add_argument("--budget", choices=BUDGETS, default="rounds", help="as in 'compare' (default: rounds)")
    tune.add_argument("--out", type=Path, required=True, metavar="DIR", help="repeat the command to go on")
    tune.set_defaults(command=_tune)

    _add_fleet(commands)

    reproduce = commands.add_parser(
        "reproduce",
        help="a table or figure of the paper, ours beside theirs",
        description="Run what is behind a table or figure of the paper, as far as it is not there yet, and show it. "
        "Names: cflag list campaigns.",
    )
    reproduce.add_argument("name", metavar="NAME", help="for example table-iid; 'all' for everything")
    reproduce.add_argument("--scale", choices=("lite", "cpu", "paper"), default="lite",
                           help="minutes, a night, or the paper's own settings (default: lite)")  # fmt: skip
    reproduce.add_argument("--methods", metavar="NAME,NAME,...", help="only these (default: all of the table)")
    reproduce.add_argument("--sources", metavar="NAME,NAME,...", help="only these data sets (default: all)")
    reproduce.add_argument("--seeds", default="1234,1235,1236", metavar="N,N,...")
    reproduce.add_argument("--jobs", type=int, default=0, metavar="N", help="runs at once (default: one a core)")
    reproduce.add_argument("--log", default="", metavar="NAME,NAME", help="log the runs: tensorboard, mlflow or both")
    reproduce.add_argument("--data-dir", metavar="DIR", help="where data sets are (default: $CFLAG_DATA)")
    reproduce.add_argument("--out", type=Path, metavar="DIR", help="repeat the command to go on "
                           "(default: runs/reproduce-SCALE)")  # fmt: skip
    reproduce.add_argument("--dry-run", action="store_true", help="say what would run, how long, how much disk")
    reproduce.set_defaults(command=_reproduce)

    watching = commands.add_parser(
        "watch",
        help="follow a running experiment or campaign",
        description="Show how far a run, or all runs in a folder, are, until they are finished.",
    )
    watching.add_argument("folder", type=Path, metavar="DIR")
    watching.set_defaults(command=_watch)

    report = commands.add_parser(
        "report",
        help="finished runs as one HTML page",
        description="Make one self-contained HTML page of finished runs: tables, curves, matrices, rates, clients.",
    )
    report.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders of them")
    report.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help="default: report.html")
    report.add_argument("--title", default="Continual federated learning", metavar="TEXT")
    report.set_defaults(command=_report)

    theory = commands.add_parser(
        "theory",
        help="check the paper's statements on problems with known constants",
        description="Run C-FLAG on problems whose constants are known and check every statement, round by round.",
    )
    theory.add_argument("--problem", metavar="NAME", help="quadratic, logistic, multinomial, nonconvex, sigmoid or "
                        "tanh (default: all)")  # fmt: skip
    theory.add_argument("--rounds", metavar="T,T,...", help="lengths of the runs that measure the rate "
                        "(default: 10,20,40,80)")  # fmt: skip
    theory.add_argument("--seed", type=int, default=0, metavar="N", help="draws the problems (default: 0)")
    theory.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    theory.add_argument("--out", type=Path, metavar="DIR", help="folder for the figures; must be new "
                        "(default: runs/theory)")  # fmt: skip
    theory.set_defaults(command=_theory)

    listing = commands.add_parser("list", help="what there is to choose from")
    listing.add_argument("kind", choices=KINDS)
    listing.set_defaults(command=_list)

    show = commands.add_parser("show", help="a preset's or file's config with all defaults filled in")
    show.add_argument("preset", metavar="PRESET | FILE.toml")
    _add_settings(show)
    show.set_defaults(command=_show)

    data = commands.add_parser("data", help="list or download data sets").add_subparsers(
        required=True, metavar="COMMAND"
    )
    data_list = data.add_parser("list", help="which data sets are here")
    data_list.set_defaults(command=_data_list)
    data_get = data.add_parser("get", help="download a data set from its official home")
    data_get.add_argument("name")
    data_get.set_defaults(command=_data_get)
    for sub in (data_list, data_get):
        sub.add_argument("--data-dir", metavar="DIR", help="default: $CFLAG_DATA, or a cache folder")
    return parser


def _add_fleet(commands: Any) -> None:
    """The commands for many machines; they need `cflag[flower]`."""
    deploy = commands.add_parser(
        "deploy",
        help="run an experiment on a fleet of processes on this machine",
        description="Start a SuperLink and SuperNodes with TLS and node authentication, run an experiment on them, and "
        "stop them.",
    )
    _add_fleet_run(deploy)
    _add_poll(deploy)
    deploy.set_defaults(command=_deploy)

    keys = commands.add_parser("keys", help="make the keys of a fleet").add_subparsers(required=True, metavar="WHOSE")
    server_keys = keys.add_parser("server", help="an authority and the server's certificate")
    server_keys.add_argument("folder", type=Path, metavar="DIR")
    server_keys.add_argument("--host", required=True, metavar="NAME,...", help="names or addresses clients will use")
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
    _add_poll(client)
    client.set_defaults(command=_client)


def _add_fleet_run(parser: argparse.ArgumentParser) -> None:
    """What `deploy` and `server` have in common."""
    parser.add_argument("preset", nargs="?", metavar="PRESET | FILE.toml", help="default: digits")
    _add_settings(parser)
    parser.add_argument("--clients", type=int, metavar="N", help="how many (default: the preset's)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write; must be new (default: runs/...)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with what was stopped or killed")
    parser.add_argument("--keep", action="store_true", help="leave what was started running afterwards")
    parser.add_argument("--no-database", dest="database", action="store_false",
                        help="a SuperLink without database: faster; if it dies the round is repeated")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def _add_poll(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--poll", type=float, default=0.1, metavar="SECONDS",
                        help="how often a client looks for questions; 0: Flower's own 3 s (default: 0.1)")  # fmt: skip


class _Version(argparse.Action):
    """Looks the version up only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import cflag

        print(f"cflag {cflag.__version__}")
        parser.exit()


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--data-dir", metavar="DIR", help="where data sets are (default: $CFLAG_DATA)")


def _configs(args: argparse.Namespace, methods: Sequence[str | None], seeds: Sequence[int | None]) -> list[Config]:
    """Resolve one config for each method and seed."""
    from cflag.config import merge, resolve

    raw = _raw(args)
    return [
        resolve(merge(raw, [(k, v) for k, v in (("method", m), ("seed", s)) if v is not None]))
        for m in methods
        for s in seeds
    ]


def _raw(args: argparse.Namespace, tuned: Iterable[tuple[str, Any]] = ()) -> dict[str, Any]:
    """Return the preset's values with tuned ones and, above all, those of --set and --data-dir."""
    from cflag.config import load_raw, merge, parse_setting

    settings = [*tuned, *(parse_setting(text) for text in args.set)]
    if args.data_dir:
        settings.append(("data_dir", _absolute(args.data_dir)))
    for key in ("engine", "workers", "clients"):
        if getattr(args, key, None) is not None:
            settings.append((key, getattr(args, key)))
    return merge(load_raw(args.preset or "digits"), settings)


def _run(args: argparse.Namespace) -> None:
    from cflag.results.display import Bar, PatientConsole, Quiet, show_results

    console = PatientConsole()
    display = Quiet() if args.quiet else Bar(console)
    with nullcontext() if args.quiet else console.status("loading torch and the data"):  # takes a few seconds
        root, experiments = _resumed(args) if args.resume is not None else _begun(args)
    results: list[Result] = []
    try:
        with stop_requests() as stopped:
            for folder, experiment in experiments:
                if stopped():
                    raise InterruptedRunError("stopped")
                results.append(experiment.resume(folder, display))
    except InterruptedRunError:
        raise InterruptedRunError(
            f"stopped; all finished rounds are saved; continue with: cflag run --resume {root}"
        ) from None
    show_results(console, results)
    if len(results) > 1 and len({len(r.accuracy_matrix) for r in results}) == 1:
        for path in _compare_figure(results, root):
            console.print(f"together: {path}", highlight=False, soft_wrap=True)


def _deploy(args: argparse.Namespace) -> None:
    with require_flower():
        from cflag.engines.flower.deploy import FleetOptions, deploy
    data = _absolute(args.data_dir) if args.data_dir else os.environ.get("CFLAG_DATA", "")
    fleet = FleetOptions(data, args.keep, args.database, args.poll)
    _fleet(args, lambda folder, display: deploy(folder, fleet, display))


def _server(args: argparse.Namespace) -> None:
    with require_flower():
        from cflag.engines.flower.deploy import ServerOptions, serve
    for name in ("ca.crt", "server.pem", "server.key"):
        if not (args.keys / name).is_file():
            raise UserError(f"{args.keys / name}: there is no such file; 'cflag keys server {args.keys}' makes it")
    options = ServerOptions(args.keys, args.host, args.port, args.keep, args.database)
    _fleet(args, lambda folder, display: serve(folder, options, display))


def _fleet(args: argparse.Namespace, carry: Callable[[RunFolder, Display], Result]) -> None:
    """Open or make the run folder of a deployment, let it be carried, and show what came out."""
    from cflag.config import resolve
    from cflag.experiment import new_folder
    from cflag.results.display import Bar, PatientConsole, Quiet, show_results
    from cflag.results.folder import RunFolder

    console = PatientConsole()
    if args.resume is not None:
        if args.preset or args.set or args.out or args.clients:
            raise UserError("--resume takes all from the folder's config.toml; give nothing else to change")
        folder = RunFolder.open(args.resume)
    else:
        args.engine = "flower"
        config = resolve(_raw(args))
        stem = Path(args.preset or "digits").stem
        folder = RunFolder.create(args.out or new_folder(f"{stem}-{config.method}-{config.seed}"), config)
    if not folder.finished:
        console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
    show_results(console, [carry(folder, Quiet() if args.quiet else Bar(console))])


def _keys_server(args: argparse.Namespace) -> None:
    with require_flower():
        from cflag.engines.flower.keys import make_server_keys
    hosts = [*_names("--host", args.host), "localhost", "127.0.0.1"]
    for path in make_server_keys(args.folder, list(dict.fromkeys(hosts))):
        print(path)
    print(f"copy {args.folder / 'ca.crt'} to every client; all else here stays with the server")


def _keys_client(args: argparse.Namespace) -> None:
    with require_flower():
        from cflag.engines.flower.keys import make_client_key
    for path in make_client_key(args.folder, args.name):
        print(path)
    print(f"copy {args.folder / args.name}.pub to the server's KEYS/clients/ under a name of its own")


def _client(args: argparse.Namespace) -> None:
    with require_flower():
        from cflag.engines.flower.node import NodeOptions, run_client
    names = ("superlink", "ca", "key", "number", "state", "device", "poll")
    data = _absolute(args.data) if args.data else os.environ.get("CFLAG_DATA", "")
    run_client(NodeOptions(**{name: getattr(args, name) for name in names}, data=data))


def _resumed(args: argparse.Namespace) -> tuple[Path, Experiments]:
    """Open the run folder, or each of those in a folder of several."""
    from cflag.experiment import Experiment
    from cflag.results.folder import RunFolder

    _refuse_with_resume(args)
    configs = [(folder, RunFolder.open(folder).config()) for folder in _folders_in(args.resume)]
    if args.data_dir:
        configs = [(folder, replace(config, data_dir=_absolute(args.data_dir))) for folder, config in configs]
    if args.workers is not None:
        configs = [(folder, replace(config, workers=args.workers)) for folder, config in configs]
    return args.resume, ((folder, Experiment(config)) for folder, config in configs)


def _compare(args: argparse.Namespace) -> None:
    from cflag.compare import plan, prepare, run_all
    from cflag.config import flatten
    from cflag.results.display import Overview, PatientConsole
    from cflag.results.table import as_text, write_tables
    from cflag.tune import load_tuned

    console = PatientConsole()
    if args.jobs < 0:
        raise UserError(f"--jobs {args.jobs}: 0 (one a core) or more")
    methods, seeds = _names("--methods", args.methods), [_seed(text) for text in _names("--seeds", args.seeds)]
    tuned = load_tuned(args.tuned, methods, seeds) if args.tuned else {}
    jobs = plan(_raw(args, flatten(tuned)), methods, seeds, args.budget, args.out)
    prepare(jobs)
    with Overview(console) as overview:
        results = run_all(jobs, args.jobs or cores(), overview.update)
    caption = f"{args.preset}: equal {args.budget}, mean ± standard deviation over {len(seeds)} seeds"
    console.print(caption, highlight=False)
    console.print(as_text(results))
    figure = _compare_figure(results, args.out, f"accuracy-{args.budget}")
    for path in [*write_tables(results, args.out / f"table-{args.budget}", caption), *figure]:
        console.print(str(path), highlight=False, soft_wrap=True)


def _tune(args: argparse.Namespace) -> None:
    from cflag.results.display import Overview, PatientConsole
    from cflag.tune import Tuning, tune, write_tuned

    if args.trials < 1:
        raise UserError(f"--trials {args.trials}: at least one")
    console = PatientConsole()
    tuning = Tuning(args.preset, args.trials, args.seed, args.budget)
    with Overview(console) as overview:
        found = tune(_raw(args), _names("METHOD", args.methods), tuning, args.out, overview.update)
    path = args.out / "tuned.toml"
    write_tuned(path, tuning, {method: values for method, (_, values) in found.items()})
    for method, (accuracy, values) in found.items():
        shown = ", ".join(f"{k} = {v:.3g}" if isinstance(v, float) else f"{k} = {v}" for k, v in values.items())
        console.print(f"{method:<10} {100 * accuracy:5.1f} %  {shown}", highlight=False)
    console.print(f"use it: cflag compare {args.preset} --tuned {path} ...", highlight=False, soft_wrap=True)


def _reproduce(args: argparse.Namespace) -> None:
    from cflag.paper.campaigns import CAMPAIGNS, chosen, find
    from cflag.paper.present import as_text, write
    from cflag.paper.reproduce import carry_out, default_out, estimate, logged
    from cflag.paper.summary import summarise
    from cflag.results.display import Overview, PatientConsole

    console = PatientConsole()
    if args.jobs < 0:
        raise UserError(f"--jobs {args.jobs}: 0 (one a core) or more")
    if args.data_dir:
        os.environ["CFLAG_DATA"] = _absolute(args.data_dir)  # for the runs, which are processes of their own
    seeds = [_seed(text) for text in _names("--seeds", args.seeds)]
    methods = _names("--methods", args.methods) if args.methods else []
    sources = _names("--sources", args.sources) if args.sources else []
    campaigns = list(CAMPAIGNS.values()) if args.name == "all" else [find(args.name)]
    campaigns = [chosen(campaign, methods, sources) for campaign in campaigns]
    out, at_once = args.out or default_out(args.scale), args.jobs or cores()
    jobs = logged(list(dict.fromkeys(job for c in campaigns for job in c.jobs(args.scale, seeds, out))), args.log)
    if args.dry_run:
        with console.status("timing a few gradients of each benchmark"):
            plan = estimate(jobs, at_once)
        for campaign in campaigns:
            console.print(f"{campaign.name}: {campaign.title}", highlight=False)
        console.print(
            f"{plan.runs} runs, {plan.finished} of them finished; about {_duration(plan.seconds)} for the others with "
            f"{at_once} at once; {plan.disk_mb:,.0f} MB of disk, {plan.memory_mb:,.0f} MB of memory; in {out}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        return
    with Overview(console) as overview:
        failed = carry_out(jobs, at_once, overview.update)
    for campaign in campaigns:
        command = f"cflag reproduce {campaign.name} --scale {args.scale}"
        summary = summarise(campaign, args.scale, seeds, out, command)
        console.print(as_text(campaign, summary))
        for path in write(campaign, summary, out / campaign.name):
            console.print(str(path), highlight=False, soft_wrap=True)
    for line in failed:
        console.print(f"failed: {line}", highlight=False, soft_wrap=True, markup=False)


def _watch(args: argparse.Namespace) -> None:
    from cflag.results.display import PatientConsole
    from cflag.results.follow import watch

    watch(args.folder, PatientConsole())


def _report(args: argparse.Namespace) -> None:
    from cflag.files import write_atomically
    from cflag.report.page import find_results, make_page

    write_atomically(args.out, make_page(find_results(args.folders), args.title).encode())
    print(args.out)


def _duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _theory(args: argparse.Namespace) -> None:
    from cflag.results.display import PatientConsole, RoundsBar

    console = PatientConsole()
    with console.status("loading torch"):
        from cflag.experiment import new_folder
        from cflag.files import write_json
        from cflag.results.folder import refuse_existing
        from cflag.theory import lab
        from cflag.theory.display import show
        from cflag.theory.figures import write_figures
        from cflag.theory.problems import problem_names
    names = [args.problem] if args.problem else problem_names()
    horizons = [_rounds(text) for text in _names("--rounds", args.rounds)] if args.rounds else lab.HORIZONS
    folder = args.out or new_folder("theory")
    refuse_existing(folder)
    with RoundsBar(console, len(names) * lab.rounds_of(lab.ROUNDS, horizons)) as bar:
        report = lab.report(names, args.seed, horizons=horizons, tick=bar.advance)
    folder.mkdir(parents=True, exist_ok=True)
    show(console, report)
    for path in write_figures(report, folder):
        console.print(str(path), highlight=False, soft_wrap=True)
    if args.json:
        write_json(args.json, report.to_dict())
        console.print(str(args.json), highlight=False, soft_wrap=True)
    if report.broken():
        raise CflagError(f"not as it should be: {'; '.join(report.broken())}")


def _refuse_with_resume(args: argparse.Namespace) -> None:
    given = {"PRESET": args.preset, "--set": args.set, "--out": args.out, "--seeds": args.seeds}
    given |= {"--methods": args.methods, "--engine": args.engine}
    for name, value in given.items():
        if value:
            raise UserError(f"{name} cannot be changed when resuming: --resume takes all from the folder's config.toml")


def _folders_in(root: Path) -> list[Path]:
    """Return the run folder itself, or those in a folder of several."""
    if (root / "config.toml").is_file():
        return [root]
    inner = sorted(path.parent for path in root.glob("*/config.toml"))
    if not inner:
        raise UserError(f"{root} holds no run to resume: there is no config.toml in it")
    return inner


def _begun(args: argparse.Namespace) -> tuple[Path, Experiments]:
    """Make one folder a run, all of them before the first starts, so that --resume finds what is still to do."""
    from cflag.experiment import Experiment, new_folder
    from cflag.results.folder import RunFolder, refuse_existing

    methods = _names("--methods", args.methods) if args.methods else [None]
    seeds = [_seed(text) for text in _names("--seeds", args.seeds)] if args.seeds else [None]
    configs = _configs(args, methods, seeds)
    first = Experiment(configs[0])  # missing data and the like come to light before a folder is made
    stem = Path(args.preset or "digits").stem
    if len(configs) == 1:
        root = args.out or new_folder(f"{stem}-{configs[0].method}-{configs[0].seed}")
        return root, iter([(RunFolder.create(root, configs[0]).path, first)])
    root = args.out or new_folder(stem)
    refuse_existing(root)
    names = [f"{k:02d}-{config.method}-{config.seed}" for k, config in enumerate(configs, 1)]
    folders = [RunFolder.create(root / name, config).path for name, config in zip(names, configs, strict=True)]
    others = ((folder, Experiment(config)) for folder, config in zip(folders[1:], configs[1:], strict=True))
    return root, chain([(folders[0], first)], others)


def _absolute(folder: str) -> str:
    """A run may be resumed from another folder than it was begun in."""
    return str(Path(folder).expanduser().absolute())


def _names(option: str, text: str) -> list[str]:
    """Split a list with commas; each name may stand in it once."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name or names.count(name) > 1:
            raise UserError(f"{option} {text}: write each name once, with commas between")
    return names


def _seed(text: str) -> int:
    if not text.strip().isdecimal():
        raise UserError(f"--seeds: '{text}' is not a whole number")
    return int(text)


def _rounds(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"--rounds: '{text}' is not a whole number")
    return int(text)


def _compare_figure(results: Sequence[Result], root: Path, name: str = "accuracy_after_each_task") -> list[Path]:
    from cflag.results.figures import draw_accuracy, save

    return save(draw_accuracy(results), root / name)[:1]


def _list(args: argparse.Namespace) -> None:
    choices = _choices(args.kind)
    width = max(15, *(len(name) for name, _ in choices))
    for name, about in choices:
        print(f"{name:<{width}} {about}")


def _choices(kind: str) -> list[tuple[str, str]]:
    if kind == "methods":
        from cflag.registry import describe_method, method_names

        return [(name, describe_method(name)) for name in method_names()]
    if kind == "sources":
        from cflag.data import sources

        return [(name, sources.describe(name)) for name in sources.names()]
    if kind == "campaigns":
        from cflag.paper.campaigns import CAMPAIGNS

        return [(name, campaign.title) for name, campaign in CAMPAIGNS.items()]
    if kind == "presets":
        from cflag.presets import describe_preset, preset_names

        return [(name, describe_preset(name)) for name in preset_names()]
    from cflag.memory import MEMORIES
    from cflag.models import MODELS

    registry = MODELS if kind == "models" else MEMORIES
    return [(name, registry.describe(name)) for name in registry.names()]


def _show(args: argparse.Namespace) -> None:
    print(_configs(args, [None], [None])[0].to_toml(), end="")


def _data_list(args: argparse.Namespace) -> None:
    from cflag.data import sources
    from cflag.data.download import status

    folder = sources.data_dir_or_default(args.data_dir)
    print(f"data folder: {folder}")
    for name in sources.names():
        print(f"{name:<15} {status(name, folder):<10} {sources.describe(name)}")


def _data_get(args: argparse.Namespace) -> None:
    from cflag.data import sources
    from cflag.data.download import fetch

    path = fetch(args.name, sources.data_dir_or_default(args.data_dir))
    print(f"{args.name} is ready in {path}")


if __name__ == "__main__":
    sys.exit(main())
