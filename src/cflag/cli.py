"""The command line. torch is imported only by the commands that need it, so that `cflag --help` is instant."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflag.errors import CflagError, InterruptedRunError, UserError
from cflag.safety import cores, stop_requests

if TYPE_CHECKING:
    from cflag.config import Config
    from cflag.experiment import Experiment
    from cflag.results.result import Result

    Experiments = Iterator[tuple[Path, Experiment]]

BUDGETS = ("rounds", "gradients", "bytes")
KINDS = ("methods", "sources", "models", "memories", "presets")


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


def _resumed(args: argparse.Namespace) -> tuple[Path, Experiments]:
    """Open the run folder, or each of those in a folder of several."""
    from cflag.experiment import Experiment
    from cflag.results.folder import RunFolder

    _refuse_with_resume(args)
    configs = [(folder, RunFolder.open(folder).config()) for folder in _folders_in(args.resume)]
    if args.data_dir:
        configs = [(folder, replace(config, data_dir=_absolute(args.data_dir))) for folder, config in configs]
    return args.resume, ((folder, Experiment(config)) for folder, config in configs)


def _compare(args: argparse.Namespace) -> None:
    from cflag.compare import plan, prepare, run_all
    from cflag.experiment import flatten
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
    given |= {"--methods": args.methods}
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
    for name, about in _choices(args.kind):
        print(f"{name:<15} {about}")


def _choices(kind: str) -> list[tuple[str, str]]:
    if kind == "methods":
        from cflag.registry import describe_method, method_names

        return [(name, describe_method(name)) for name in method_names()]
    if kind == "sources":
        from cflag.data import sources

        return [(name, sources.describe(name)) for name in sources.names()]
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
