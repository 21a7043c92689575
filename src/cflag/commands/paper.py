"""`cflag reproduce`, `ledger` and `theory`: the paper, run and checked."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cflag.commands.common import absolute, jobs_at_once, names_in, seed_of
from cflag.errors import CflagError, UserError
from cflag.paper.scales import SCALES, SEEDS

if TYPE_CHECKING:
    from rich.console import Console

    from cflag.commands.common import Commands
    from cflag.jobs import Job
    from cflag.paper.cells import Campaign

USUAL_SEEDS = ",".join(map(str, SEEDS))


def add_reproduce(commands: Commands) -> None:
    """Add `cflag reproduce`."""
    reproduce = commands.add_parser(
        "reproduce",
        help="a table or figure of the paper, ours beside theirs",
        description="Run what is behind a table or figure of the paper, as far as it is not there yet, and show it. "
        "Names: cflag list campaigns.",
    )
    reproduce.add_argument("name", metavar="NAME", help="for example table-iid; 'all' for everything")
    reproduce.add_argument("--scale", choices=tuple(SCALES),
                           help="smoke: seconds a run, to try things out; small: the paper's protocol with a small "
                           "network, one to two minutes a run; cpu: a night; paper: the paper's own settings; "
                           "pretrained: on features, half a minute a run (default: small, or the only one "
                           "that NAME has)")  # fmt: skip
    reproduce.add_argument("--methods", metavar="NAME,NAME,...", help="only these (default: all of the table)")
    reproduce.add_argument("--sources", metavar="NAME,NAME,...", help="only these data sets (default: all)")
    reproduce.add_argument("--groups", metavar="NAME,NAME,...", help="only these columns of a table or panels of a "
                           "figure, for example cifar10-class-iid (default: all)")  # fmt: skip
    reproduce.add_argument("--at", metavar="X,X,...", help="only these points of a sweep, for example clients 5,10, or "
                           "budgets (default: all)")  # fmt: skip
    reproduce.add_argument("--seeds", default=USUAL_SEEDS, metavar="N,N,...")
    reproduce.add_argument("--jobs", type=int, default=0, metavar="N", help="runs at once (default: one per core)")
    reproduce.add_argument("--log", default="", metavar="NAME,NAME", help="log the runs: tensorboard, mlflow or both")
    reproduce.add_argument("--data-dir", metavar="DIR", help="where data sets are (default: $CFLAG_DATA)")
    reproduce.add_argument("--out", type=Path, metavar="DIR", help="repeat the command to go on "
                           "(default: runs/reproduce-SCALE)")  # fmt: skip
    reproduce.add_argument("--dry-run", action="store_true", help="say what would run, how long, how much disk")
    reproduce.add_argument("--so-far", action="store_true", help="run nothing; show what is finished")
    reproduce.set_defaults(command=_reproduce)


def add_ledger(commands: Commands) -> None:
    """Add `cflag ledger`."""
    ledger = commands.add_parser(
        "ledger",
        help="all that was reproduced, beside what the paper prints, as one document",
        description="Take in the summaries of campaigns, and write results.md from all that were ever taken in.",
    )
    ledger.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="where 'cflag reproduce' wrote")
    ledger.add_argument("--into", type=Path, default=Path("docs"), metavar="DIR",
                        help="holds results.md and results/ (default: docs)")  # fmt: skip
    ledger.set_defaults(command=_ledger)


def add_theory(commands: Commands) -> None:
    """Add `cflag theory`."""
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


def _reproduce(args: argparse.Namespace) -> None:
    from cflag.paper.campaigns import CAMPAIGNS, find_campaign
    from cflag.paper.cells import chosen
    from cflag.paper.output import as_text, write
    from cflag.paper.reproduce import carry_out, default_out, with_loggers
    from cflag.paper.summary import summarise
    from cflag.results.display import Overview, PatientConsole

    console, at_once = PatientConsole(), jobs_at_once(args.jobs)
    if args.data_dir:
        os.environ["CFLAG_DATA"] = absolute(args.data_dir)  # for the runs, which are processes of their own
    seeds = [seed_of(text) for text in names_in("--seeds", args.seeds)]
    methods = names_in("--methods", args.methods) if args.methods else []
    sources = names_in("--sources", args.sources) if args.sources else []
    groups = names_in("--groups", args.groups) if args.groups else []
    points = [_point(text) for text in names_in("--at", args.at)] if args.at else []
    named = list(CAMPAIGNS.values()) if args.name == "all" else [find_campaign(args.name)]
    args.scale = args.scale or _usual_scale(named)
    campaigns = [campaign for campaign in named if args.name != "all" or args.scale in campaign.scales]
    campaigns = [chosen(campaign, args.scale, methods, sources, groups, points) for campaign in campaigns]
    out = args.out or default_out(args.scale)
    if args.dry_run:
        for campaign in campaigns:  # said first: it is known without the data, which prices and timing need
            count = sum(len(cell.rows) for cell in campaign.cells)
            console.print(f"{campaign.name}: {campaign.title}; {count} cells", highlight=False)
    with console.status("pricing methods, where costs are to be equal"):
        jobs = list(dict.fromkeys(job for c in campaigns for job in c.jobs(args.scale, seeds, out)))
    jobs = with_loggers(jobs, args.log, [*map(absolute, args.plugin)])
    if args.dry_run:
        _estimate(console, jobs, at_once, out)
        return
    failed: dict[Path, str] = {}
    if not args.so_far:
        with Overview(console) as overview:
            failed = carry_out(jobs, at_once, overview.update)
    for campaign in campaigns:
        mine = [failed[job.folder] for job in campaign.jobs(args.scale, seeds, out) if job.folder in failed]
        summary = summarise(campaign, args.scale, seeds, out, _command(campaign.name, args), mine)
        for table in as_text(campaign, summary):
            console.print(table)
        for path in write(campaign, summary, out / campaign.name):
            console.print(str(path), highlight=False, soft_wrap=True)
    _complain(console, failed, len(jobs))


def _point(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--at takes numbers, not '{text}'") from None


def _complain(console: Console, failed: dict[Path, str], runs: int) -> None:
    """Say what failed; a data set that is not there fails in the same words many times over."""
    same = Counter(line.rpartition(" failed: ")[2] for line in failed.values())
    for error, times in same.items():
        first = next(line for line in failed.values() if line.endswith(error))
        more = f" (and {times - 1} more)" if times > 1 else ""
        console.print(f"failed: {first}{more}", highlight=False, soft_wrap=True, markup=False)
    if failed:
        raise CflagError(f"{len(failed)} of {runs} runs failed; the same command tries them again")


def _usual_scale(campaigns: Sequence[Campaign]) -> str:
    """Return the scale that is meant where none is named: that of a single study, or small."""
    scales = {scale for campaign in campaigns for scale in campaign.scales}
    return scales.pop() if len(scales) == 1 else "small"


def _estimate(console: Console, jobs: Sequence[Job], at_once: int, out: Path) -> None:
    from cflag.paper.reproduce import estimate
    from cflag.results.display import duration

    with console.status("timing a few gradients of each benchmark"):
        plan = estimate(jobs, at_once)
    console.print(
        f"{plan.runs} runs, {plan.finished} of them finished; about {duration(plan.seconds)} for the others with "
        f"{at_once} at once; {plan.disk_mb:,.0f} MB of disk, {plan.memory_mb:,.0f} MB of memory; in {out}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _command(name: str, args: argparse.Namespace) -> str:
    """Return the command that makes one table or figure again."""
    words = ["cflag reproduce", name, "--scale", args.scale]
    for option, value, default in (
        ("--methods", args.methods, None),
        ("--sources", args.sources, None),
        ("--groups", args.groups, None),
        ("--at", args.at, None),
        ("--seeds", args.seeds, USUAL_SEEDS),
    ):
        if value != default:
            words += [option, value]
    return " ".join(words)


def _ledger(args: argparse.Namespace) -> None:
    from cflag.paper.ledger import draw_anew, keep, write_ledger

    if args.folders:
        keep(args.folders, args.into / "results")
    else:
        draw_anew(args.into / "results")
    print(write_ledger(args.into))


def _theory(args: argparse.Namespace) -> None:
    from cflag.results.display import PatientConsole, RoundsBar

    console = PatientConsole()
    with console.status("loading torch"):
        from cflag.files import write_json
        from cflag.results.folder import new_folder, refuse_existing
        from cflag.theory import lab
        from cflag.theory.display import show
        from cflag.theory.figures import write_figures
        from cflag.theory.problems import problem_names
    names = [args.problem] if args.problem else problem_names()
    horizons = [_rounds(text) for text in names_in("--rounds", args.rounds)] if args.rounds else lab.HORIZONS
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


def _rounds(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"--rounds: '{text}' is not a whole number")
    return int(text)
