"""`cflag run`, `compare` and `tune`: experiments on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflag.commands.common import (
    absolute,
    add_settings,
    add_state_key,
    configs_of,
    jobs_at_once,
    names_in,
    raw_of,
    seed_of,
)
from cflag.errors import InterruptedRunError, UserError
from cflag.stopping import stop_requests

if TYPE_CHECKING:
    from cflag.commands.common import Commands
    from cflag.config import Config
    from cflag.experiment import Experiment
    from cflag.results.display import Display
    from cflag.results.folder import RunFolder
    from cflag.results.result import Result

    Experiments = Iterator[tuple[RunFolder, Experiment | None]]
    """Run folders, and what is to be done in them: nothing where they are finished."""

BUDGETS = ("rounds", "gradients", "bytes")


def add_run(commands: Commands) -> None:
    """Add `cflag run`."""
    run = commands.add_parser("run", help="run an experiment", description="Run an experiment, or several.")
    run.add_argument("preset", nargs="?", metavar="PRESET | FILE.toml", help="default: digits")
    add_settings(run)
    run.add_argument("--out", type=Path, metavar="DIR", help="folder to write; must be new (default: runs/...)")
    run.add_argument("--seeds", metavar="N,N,...", help="one run for each seed")
    run.add_argument("--methods", metavar="NAME,NAME,...", help="one run for each method")
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on with what was stopped or killed")
    run.add_argument("--engine", choices=("local", "flower-sim"), help="what carries the questions (default: local)")
    run.add_argument("--workers", type=int, metavar="N", help="processes that compute (default: one per core)")
    run.add_argument("--quiet", action="store_true", help="no progress display")
    run.add_argument("--floors", default="", help=argparse.SUPPRESS)  # of a trial, which 'cflag tune' starts
    add_state_key(run)
    run.set_defaults(command=_run)


def add_compare(commands: Commands) -> None:
    """Add `cflag compare`."""
    compare = commands.add_parser(
        "compare",
        help="compare methods at an equal budget",
        description="Run several methods with several seeds, side by side on all cores, and make one table.",
    )
    compare.add_argument("preset", metavar="PRESET | FILE.toml")
    add_settings(compare)
    compare.add_argument("--methods", required=True, metavar="NAME,NAME,...", help="the first sets the budget")
    compare.add_argument("--seeds", default="1234,1235,1236", metavar="N,N,...")
    compare.add_argument("--budget", choices=BUDGETS, default="rounds",
                         help="what every method gets the same of (default: rounds)")  # fmt: skip
    compare.add_argument("--tuned", type=Path, action="append", default=[], metavar="FILE",
                         help="values that 'cflag tune' found")  # fmt: skip
    compare.add_argument("--out", type=Path, required=True, metavar="DIR", help="repeat the command to go on")
    compare.add_argument("--jobs", type=int, default=0, metavar="N", help="runs at once (default: one per core)")
    compare.set_defaults(command=_compare)


def add_tune(commands: Commands) -> None:
    """Add `cflag tune`."""
    tune = commands.add_parser(
        "tune",
        help="search for a method's best settings",
        description="Search around each method's own values in the file, with the same number of trials for all, on a "
        "seed of its own and by held-out training samples.",
    )
    tune.add_argument("methods", metavar="METHOD,METHOD,...", help="the first sets the budget")
    tune.add_argument("preset", metavar="PRESET | FILE.toml")
    add_settings(tune)
    tune.add_argument("--trials", type=int, default=20, metavar="N", help="for each method (default: 20)")
    tune.add_argument(
        "--seed", type=int, default=4321, metavar="N", help="must not be one of a table's (default: 4321)"
    )
    tune.add_argument("--budget", choices=BUDGETS, default="rounds", help="as in 'compare' (default: rounds)")
    tune.add_argument("--parallel", type=int, default=4, metavar="N",
                      help="trials that are chosen together, whatever runs at once (default: 4)")  # fmt: skip
    tune.add_argument("--validation", type=float, default=0.2, metavar="SHARE",
                      help="of the training samples, to judge trials by (default: 0.2)")  # fmt: skip
    tune.add_argument("--jobs", type=int, default=0, metavar="N", help="runs at once (default: one per core)")
    tune.add_argument("--out", type=Path, required=True, metavar="DIR", help="repeat the command to go on")
    tune.set_defaults(command=_tune)


def _run(args: argparse.Namespace) -> None:
    from cflag.results.display import Bar, PatientConsole, Quiet, loading, show_files, show_tables
    from cflag.results.drawing import beside, draw, draw_together

    console = PatientConsole()
    display = Quiet() if args.quiet else Bar(console)
    with nullcontext() if args.quiet else loading(console):  # takes a few seconds
        from cflag.launch import carry, finished

        say = partial(console.print, highlight=False, soft_wrap=True)
        root, experiments = (
            _resumed(args, (lambda _: None) if args.quiet else say) if args.resume is not None else _begun(args)
        )
    results: list[Result] = []
    with beside():
        try:
            with stop_requests() as stopped:
                for folder, experiment in experiments:
                    if stopped():
                        raise InterruptedRunError("stopped")
                    shown = _floors(args, folder) if args.floors else display
                    results.append(finished(folder, shown) if experiment is None else carry(experiment, folder, shown))
        except InterruptedRunError:
            raise InterruptedRunError(
                f"stopped; all finished rounds are saved; continue with: cflag run --resume {root}"
            ) from None
        together = None
        if len(results) > 1 and len({len(r.accuracy_matrix) for r in results}) == 1:
            together = _together(results, root)
            draw(draw_together, results, together)
        show_tables(console, results)
    show_files(console, results)
    if together is not None:
        console.print(f"together: {together}.png", highlight=False, soft_wrap=True)


def _floors(args: argparse.Namespace, folder: RunFolder) -> Display:
    from cflag.results.floors import Floors

    return Floors(folder, [float(text) for text in args.floors.split(",")])


def _resumed(args: argparse.Namespace, say: Callable[[str], None]) -> tuple[Path, Experiments]:
    """Open the run folder, or each of those in a folder of several, and say which of them are meant."""
    from cflag.results.folder import RunFolder

    _refuse_with_resume(args)
    changed: dict[str, Any] = {"data_dir": absolute(args.data_dir)} if args.data_dir else {}
    changed |= {"workers": args.workers} if args.workers is not None else {}
    folders = [RunFolder.open(path) for path in _folders_in(args.resume)]
    for folder in folders:
        folder.add_plugins([absolute(file) for file in args.plugin])
    configs = [None if folder.finished else replace(folder.config(), **changed) for folder in folders]
    if len(folders) > 1:
        for line in _what_is_left(folders, configs):
            say(line)
    return args.resume, ((f, _experiment(f, config)) for f, config in zip(folders, configs, strict=True))


def _experiment(folder: RunFolder, config: Config | None) -> Experiment | None:
    """Build a run's experiment; what is wrong with it is said with its folder, which may be one of many."""
    from cflag.experiment import Experiment

    if config is None:
        return None
    try:
        return Experiment(config)
    except UserError as error:
        raise UserError(f"{folder.path}: {error}") from None


def _what_is_left(folders: Sequence[RunFolder], configs: Sequence[Config | None]) -> Iterator[str]:
    """Yield a line for each run of several: what it is, and how far."""
    from cflag.config import load_file
    from cflag.data.schedules.base import total_rounds

    width = max(len(folder.path.name) for folder in folders)
    for folder, config in zip(folders, configs, strict=True):
        raw, how_far = load_file(folder.path / "config.toml"), "finished"
        if config is not None:
            how_far = f"goes on after round {folder.rounds_done()} of {total_rounds(config)}"
        yield f"{folder.path.name:<{width}}  {raw['method']}, seed {raw['seed']}: {how_far}"


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
    """Make one folder per run, all of them before the first starts, so that --resume finds what is still to do."""
    from cflag.experiment import Experiment
    from cflag.launch import check_engine
    from cflag.loggers.attach import require_loggers
    from cflag.results.folder import RunFolder, new_folder, refuse_existing

    methods = names_in("--methods", args.methods) if args.methods else [None]
    seeds = [seed_of(text) for text in names_in("--seeds", args.seeds)] if args.seeds else [None]
    configs = configs_of(args, methods, seeds)
    check_engine(configs[0])
    require_loggers(configs[0].log)
    first = Experiment(configs[0])  # missing data and the like come to light before a folder is made
    stem = Path(args.preset or "digits").stem.replace(":", "-")
    if len(configs) == 1:
        root = args.out or new_folder(f"{stem}-{configs[0].method}-{configs[0].seed}")
        return root, iter([(RunFolder.create(root, configs[0]), first)])
    root = args.out or new_folder(stem)
    refuse_existing(root)
    names = [f"{k:02d}-{config.method}-{config.seed}" for k, config in enumerate(configs, 1)]
    folders = [RunFolder.create(root / name, config) for name, config in zip(names, configs, strict=True)]
    others = ((folder, Experiment(config)) for folder, config in zip(folders[1:], configs[1:], strict=True))
    return root, chain([(folders[0], first)], others)


def _compare(args: argparse.Namespace) -> None:
    from cflag.comparison import Terms, carry_out
    from cflag.config import flatten
    from cflag.own import Own
    from cflag.results.display import Overview, PatientConsole
    from cflag.results.table import as_text
    from cflag.tuning.tuned import load_tuned

    console = PatientConsole()
    at_once = jobs_at_once(args.jobs)
    methods, seeds = names_in("--methods", args.methods), [seed_of(text) for text in names_in("--seeds", args.seeds)]
    tuned = load_tuned(args.tuned, methods, seeds) if args.tuned else {}
    raw, terms = raw_of(args, flatten(tuned)), Terms(args.preset, methods, seeds, args.budget)
    with Overview(console) as overview:
        table = carry_out(raw, terms, args.out, Own(), at_once, overview.update)
    console.print(table.caption, highlight=False)
    console.print(as_text(table.results))
    for path in table.files:
        console.print(str(path), highlight=False, soft_wrap=True)


def _tune(args: argparse.Namespace) -> None:
    from cflag.own import Own
    from cflag.results.display import Overview, PatientConsole
    from cflag.tuning.tune import carry_out
    from cflag.tuning.tuned import Tuning

    console, at_once = PatientConsole(), jobs_at_once(args.jobs)
    tuning = Tuning(args.preset, args.trials, args.seed, args.budget, args.parallel, args.validation)
    with Overview(console) as overview:
        tuned = carry_out(
            raw_of(args), names_in("METHOD", args.methods), tuning, args.out, Own(), at_once, overview.update
        )
    console.print(tuned.tables())
    console.print(str(args.out / "search.png"), highlight=False, soft_wrap=True)
    path = args.out / "tuned.toml"
    console.print(f"use it: cflag compare {args.preset} --tuned {path} ...", highlight=False, soft_wrap=True)


def _together(results: Sequence[Result], root: Path) -> Path:
    """Return where several runs are drawn together, without the ending of the file's name."""
    from cflag.problems.score import common

    return root / common([result.score for result in results]).named("accuracy_after_each_task")
