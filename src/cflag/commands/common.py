"""What the commands have in common: settings, names, seeds."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflag.errors import UserError
from cflag.process import cores

if TYPE_CHECKING:
    from cflag.config import Config

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add --set and --data-dir."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--data-dir", metavar="DIR", help="where data sets are (default: $CFLAG_DATA)")


def add_state_key(parser: argparse.ArgumentParser) -> None:
    """Add --state-key."""
    about = "encrypts clients' states; 'cflag memory key' makes it (default: $CFLAG_STATE_KEY_FILE)"
    parser.add_argument("--state-key", type=Path, metavar="FILE", help=about)


def configs_of(args: argparse.Namespace, methods: Sequence[str | None], seeds: Sequence[int | None]) -> list[Config]:
    """Resolve one config for each method and seed."""
    from cflag.config import merge, resolve

    raw = raw_of(args)
    return [
        resolve(merge(raw, [(k, v) for k, v in (("method", m), ("seed", s)) if v is not None]))
        for m in methods
        for s in seeds
    ]


def raw_of(args: argparse.Namespace, tuned: Iterable[tuple[str, Any]] = ()) -> dict[str, Any]:
    """Return the preset's values with tuned ones and, above all, those of --set and --data-dir."""
    from cflag.config import absolute_plugins, load_raw, merge, parse_setting
    from cflag.registry import load_plugins

    settings = [*tuned, *(parse_setting(text) for text in args.set)]
    if args.data_dir:
        settings.append(("data_dir", absolute(args.data_dir)))
    for key in ("engine", "workers", "clients"):
        if getattr(args, key, None) is not None:
            settings.append((key, getattr(args, key)))
    raw = load_raw(args.preset or "digits")
    here = [value for key, value in settings if key == "plugins"]
    plugins = [file for given in (*here, args.plugin) for file in absolute_plugins(given, Path.cwd())]
    settings.append(("plugins", [*raw.get("plugins", []), *plugins]))
    load_plugins(dict(settings)["plugins"])
    return merge(raw, settings)


def absolute(folder: str) -> str:
    """A run may be resumed from another folder than it was begun in."""
    return str(Path(folder).expanduser().absolute())


def names_in(option: str, text: str) -> list[str]:
    """Split a list with commas; each name may stand in it once."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name or names.count(name) > 1:
            raise UserError(f"{option} {text}: write each name once, with commas between")
    return names


def seed_of(text: str) -> int:
    """Return a seed."""
    if not text.strip().isdecimal():
        raise UserError(f"--seeds: '{text}' is not a whole number")
    return int(text)


def jobs_at_once(jobs: int) -> int:
    """Return how many runs go on at once: one per core unless it is said."""
    if jobs < 0:
        raise UserError(f"--jobs {jobs}: 0 (one per core) or more")
    return jobs or cores()
