"""`cflag watch`, `report`, `transfer`, `list`, `show` and `data`: looking at what there is."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from cflag import registry
from cflag.commands.common import add_settings, configs_of
from cflag.errors import UserError, unknown
from cflag.process import import_later

if TYPE_CHECKING:
    from cflag.commands.common import Commands
    from cflag.config import Config

LIVE_PORT = 8737
"""Where `cflag watch --serve` listens unless someone says otherwise."""
KINDS = (*map(registry.plural, registry.KINDS), "presets", "protocols", "campaigns")


def add_watch_and_report(commands: Commands) -> None:
    """Add `cflag watch`, `cflag report` and `cflag transfer`."""
    watching = commands.add_parser(
        "watch",
        help="follow a running experiment or campaign",
        description="Show how far a run, or all runs in a folder, are, until they are finished.",
    )
    watching.add_argument("folder", type=Path, metavar="DIR")
    watching.add_argument("--wait", type=float, default=60.0, metavar="SECONDS",
                          help="for a run to appear, where there is none yet (default: 60)")  # fmt: skip
    watching.add_argument("--serve", nargs="?", type=int, const=LIVE_PORT, metavar="PORT",
                          help=f"as a page for a browser on this machine (default port: {LIVE_PORT})")  # fmt: skip
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

    transfer = commands.add_parser(
        "transfer",
        help="a finished run's total transfer, as Powder has it",
        description="Let every client of a finished run learn each of its tasks alone, and compare.",
    )
    transfer.add_argument("folder", type=Path, metavar="DIR")
    transfer.set_defaults(command=_transfer)


def add_lists(commands: Commands) -> None:
    """Add `cflag list`, `show` and `data`."""
    listing = commands.add_parser("list", help="what there is to choose from")
    listing.add_argument("kind", nargs="?", metavar="KIND", help=f"one of {', '.join(KINDS)}")
    listing.set_defaults(command=_list)

    show = commands.add_parser("show", help="a preset's or file's config with all defaults filled in")
    show.add_argument("preset", metavar="PRESET | FILE.toml")
    add_settings(show)
    show.add_argument("--picture", action="store_true", help="who learns which task when, instead of the config")
    show.add_argument("--out", type=Path, metavar="FILE.svg", help="with --picture: draw it into a file")
    show.set_defaults(command=_show)

    data = commands.add_parser("data", help="list or download data sets").add_subparsers(
        required=True, metavar="COMMAND"
    )
    data_list = data.add_parser("list", help="which data sets are here")
    data_list.set_defaults(command=_data_list)
    data_get = data.add_parser("get", help="download a data set from its official home")
    data_get.add_argument("name")
    data_get.set_defaults(command=_data_get)
    data_check = data.add_parser("check", help="what is in data of your own, and what is odd about it")
    data_check.add_argument("what", metavar="DIR | FILE", help="a folder of pictures, an .npz, a .csv or a .parquet")
    data_check.add_argument("--set", action="append", default=[], metavar="data.KEY=VALUE", help="as for cflag run")
    data_check.set_defaults(command=_data_check)
    for sub, otherwise in ((data_list, "a cache folder"), (data_get, "a cache folder"), (data_check, "this folder")):
        sub.add_argument("--data-dir", metavar="DIR", help=f"default: $CFLAG_DATA, or {otherwise}")


def _watch(args: argparse.Namespace) -> None:
    if args.serve is not None:
        from cflag.report.live import serve

        return serve(args.folder, args.serve)
    from cflag.results.display import PatientConsole
    from cflag.results.follow import watch

    watch(args.folder, PatientConsole(), patience=args.wait)


def _report(args: argparse.Namespace) -> None:
    from cflag.files import write_atomically
    from cflag.report.page import find_results, make_page

    write_atomically(args.out, make_page(find_results(args.folders), args.title).encode())
    print(args.out)


def _transfer(args: argparse.Namespace) -> None:
    from cflag.transfer import total_transfer

    print(f"total transfer {100 * total_transfer(args.folder):.2f} points")


def _list(args: argparse.Namespace) -> None:
    if args.kind is None:
        print("cflag list KIND, where KIND is one of:", *KINDS, sep="\n  ")
        return
    if args.kind not in KINDS:
        raise unknown("kind", args.kind, KINDS)
    choices = _choices(args.kind)
    width = max(15, *(len(name) for name, _ in choices))
    for name, about in choices:
        print(f"{name:<{width}} {about}")


def _choices(kind: str) -> list[tuple[str, str]]:
    if kind == "campaigns":
        import_later("torch")
        from cflag.paper.campaigns import CAMPAIGNS

        return [(name, campaign.title) for name, campaign in CAMPAIGNS.items()]
    if kind in ("presets", "protocols"):
        from cflag.presets import describe_preset, preset_names, protocol_names

        names = preset_names() if kind == "presets" else protocol_names()
        return [(name, describe_preset(name)) for name in names]
    (part,) = (part for part in registry.KINDS if registry.plural(part) == kind)
    return [(name, registry.about(part, name)) for name in registry.names(part)]


def _show(args: argparse.Namespace) -> None:
    import_later("torch")  # takes a second, and what a config says needs none of it
    config = configs_of(args, [None], [None])[0]
    if args.picture:
        _picture(config, args.out)
    elif args.out:
        raise UserError("--out is for the picture of a schedule: add --picture")
    else:
        print(config.to_toml(), end="")


def _picture(config: Config, out: Path | None) -> None:
    """Show the schedule, which follows from the config alone."""
    from cflag.data.schedules.base import make_schedule
    from cflag.files import write_atomically
    from cflag.report.timetable import as_text, standalone

    schedule = make_schedule(config)
    plan = schedule.plan
    print(f"{config.schedule.kind}: {config.clients} clients, {config.tasks} tasks, {plan.total} rounds")
    if out is None:
        print(
            "\n".join(
                ["", *as_text(plan), "", "1, 2, ...: the task that a client is in; . absent; ^ someone leaves one"]
            )
        )
    print("Not shown: who has no samples of a task sits it out; the data decide that, and\nwere not looked at.")
    if schedule.streams:
        print("Nor this: who has few samples of a task is absent once they have passed.")
    if out is not None:
        write_atomically(out, standalone(plan).encode())
        print(out)


def _data_list(args: argparse.Namespace) -> None:
    from cflag.data.download import status
    from cflag.data.load import data_dir_or_default

    folder = data_dir_or_default(args.data_dir)
    print(f"data folder: {folder}")
    for name in registry.names("source"):
        print(f"{name:<15} {status(name, folder):<10} {registry.about('source', name)}")


def _data_check(args: argparse.Namespace) -> None:
    from cflag.config import parse_setting
    from cflag.data.examine import examine
    from cflag.data.options import DataOptions
    from cflag.data.sources.base import Reading
    from cflag.values import options

    given = dict(parse_setting(text) for text in args.set)
    problem = str(given.pop("problem", "classes"))
    registry.get("problem", problem)
    for key in given:
        if not key.startswith("data."):
            raise UserError(f"--set {key}: 'cflag data check' takes problem, and keys of [data] such as data.label")
    chosen = options(DataOptions, {key.removeprefix("data."): value for key, value in given.items()}, "data")
    folder = Path(args.data_dir or os.environ.get("CFLAG_DATA") or ".").expanduser()  # as a run looks for it
    for line in examine(args.what, folder, Reading(chosen, problem=problem)):
        print(line)


def _data_get(args: argparse.Namespace) -> None:
    from cflag.data.download import fetch
    from cflag.data.load import data_dir_or_default

    path = fetch(args.name, data_dir_or_default(args.data_dir))
    print(f"{args.name} is ready in {path}")
