"""`cflag run`, `compare` and `tune`: experiments on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
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
    from cflag.experiment import Experiment
    from cflag.results.folder import RunFolder
    from cflag.results.result import Result

    Experiments = Iterator[tuple[RunFolder, Experiment]]

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
        description="Search each method's declared space with the same number of trials, on a seed of its own.",
    )
    tune.add_argument("methods", metavar="METHOD,METHOD,...", help="the first sets the budget")
    tune.add_argument("preset", metavar="PRESET | FILE.toml")
    add_settings(tune)
    tune.add_argument("--trials", type=int, default=20, metavar="N", help="for each method (default: 20)")
    tune.add_argument(
        "--seed", type=int, default=4321, metavar="N", help="must not be one of a table's (default: 4321)"
    )
    tune.add_argument("--budget", choices=BUDGETS, default="rounds", help="as in 'compare' (default: rounds)")
    tune.add_argument("--out", type=Path, required=True, metavar="DIR", help="repeat the command to go on")
    tune.set_defaults(command=_tune)


def _run(args: argparse.Namespace) -> None:
    from cflag.results.display import Bar, PatientConsole, Quiet, loading, show_results

    console = PatientConsole()
    display = Quiet() if args.quiet else Bar(console)
    with nullcontext() if args.quiet else loading(console):  # takes a few seconds
        from cflag.launch import carry

        root, experiments = _resumed(args) if args.resume is not None else _begun(args)
    results: list[Result] = []
    try:
        with stop_requests() as stopped:
            for folder, experiment in experiments:
                if stopped():
                    raise InterruptedRunError("stopped")
                results.append(carry(experiment, folder, display))
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
    changed: dict[str, Any] = {"data_dir": absolute(args.data_dir)} if args.data_dir else {}
    changed |= {"workers": args.workers} if args.workers is not None else {}
    folders = [RunFolder.open(path) for path in _folders_in(args.resume)]
    configs = [replace(folder.config(), **changed) for folder in folders]
    return args.resume, ((folder, Experiment(config)) for folder, config in zip(folders, configs, strict=True))


def _refuse_with_resume(args: argparse.Namespace) -> None:
    given = {"PRESET": args.preset, "--set": args.set, "--out": args.out, "--seeds": args.seeds}
    given |= {"--methods": args.methods, "--engine": args.engine, "--plugin": args.plugin}
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
    from cflag.compare import plan, prepare, run_all
    from cflag.config import flatten
    from cflag.results.display import Overview, PatientConsole
    from cflag.results.table import as_text, write_tables
    from cflag.tune import load_tuned

    console = PatientConsole()
    at_once = jobs_at_once(args.jobs)
    methods, seeds = names_in("--methods", args.methods), [seed_of(text) for text in names_in("--seeds", args.seeds)]
    tuned = load_tuned(args.tuned, methods, seeds) if args.tuned else {}
    jobs = plan(raw_of(args, flatten(tuned)), methods, seeds, args.budget, args.out)
    prepare(jobs)
    with Overview(console) as overview:
        results = run_all(jobs, at_once, overview.update)
    caption = f"{args.preset}: equal {args.budget}, mean ± standard deviation over {len(seeds)} seeds"
    console.print(caption, highlight=False)
    console.print(as_text(results))
    figure = _compare_figure(results, args.out, f"accuracy-{args.budget}")
    for path in [*write_tables(results, args.out / f"table-{args.budget}", caption), *figure]:
        console.print(str(path), highlight=False, soft_wrap=True)


def _tune(args: argparse.Namespace) -> None:
    from cflag.config import resolve
    from cflag.problems.base import scoring
    from cflag.results.display import Overview, PatientConsole
    from cflag.tune import Tuning, tune, write_tuned

    if args.trials < 1:
        raise UserError(f"--trials {args.trials}: at least one")
    console = PatientConsole()
    tuning = Tuning(args.preset, args.trials, args.seed, args.budget)
    with Overview(console) as overview:
        found = tune(raw_of(args), names_in("METHOD", args.methods), tuning, args.out, overview.update)
    path = args.out / "tuned.toml"
    write_tuned(path, tuning, {method: values for method, (_, values) in found.items()})
    config = resolve(raw_of(args))
    score = scoring(config.problem, config.score).score
    for method, (best, values) in found.items():
        shown = ", ".join(f"{k} = {v:.3g}" if isinstance(v, float) else f"{k} = {v}" for k, v in values.items())
        console.print(f"{method:<10} {score.said(score.sign * best):>7}  {shown}", highlight=False)
    console.print(f"use it: cflag compare {args.preset} --tuned {path} ...", highlight=False, soft_wrap=True)


def _compare_figure(results: Sequence[Result], root: Path, name: str = "accuracy_after_each_task") -> list[Path]:
    from cflag.problems.score import common
    from cflag.results.figures import draw_accuracy, save

    return save(draw_accuracy(results), root / common([result.score for result in results]).named(name))[:1]
