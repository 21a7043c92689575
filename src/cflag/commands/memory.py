"""`cflag memory`: what memories hold, and how it leaves them again."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflag.commands.common import add_state_key
from cflag.errors import UserError, one_line

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from cflag.commands.common import Commands
    from cflag.memory.erase import Erased

AUDIT_KEY = "CFLAG_AUDIT_KEY"
"""The environment variable that names the key of audit logs."""
WARNING = "the model has not unlearned it: what it learned from these samples stays in its parameters"


def add_memory(commands: Commands) -> None:
    """Add `cflag memory` and its commands."""
    memory = commands.add_parser(
        "memory",
        help="what memories hold of people's data: list, show, forget, expire",
        description="Look at the memories in a run folder or in a client's --state folder, and take samples out.",
    ).add_subparsers(required=True, metavar="COMMAND")
    listing = _command(memory, "list", "how much each client holds, of what, and for how long", _list)
    showing = _command(memory, "show", "each sample: its hash, task, class, subject and age", _show)
    showing.add_argument("--client", type=int, metavar="N", help="of this client alone")
    showing.add_argument("--subject", type=int, metavar="S", help="of this person alone")
    showing.add_argument("--all", action="store_true", help="all lines, not the first 40")
    for parser in (listing, showing):
        parser.add_argument("--json", action="store_true", help="as JSON, with whole hashes")

    forgetting = _command(memory, "forget", "take a person's or a sample's data out, for good", _forget)
    forgetting.add_argument("--subject", type=int, action="append", default=[], metavar="S", help="all that is theirs")
    forgetting.add_argument("--sample", action="append", default=[], metavar="HASH", help="as 'show' prints it")
    forgetting.add_argument("--sample-file", type=Path, action="append", default=[], metavar="FILE",
                            help="a .npy file with one sample, or .npz with several as x")  # fmt: skip

    forgetting.add_argument("--again", action="store_true", help="all that the audit log says was forgotten")

    expiring = _command(memory, "expire", "take out what is kept for too long", _expire)
    expiring.add_argument("--rounds", type=int, default=0, metavar="N", help="kept for N rounds or more")
    expiring.add_argument("--days", type=float, default=0.0, metavar="N", help="kept for N days or more")
    for parser in (forgetting, expiring):
        about = f"signs the audit log; made if missing (default: ${AUDIT_KEY}, or DIR/audit.key)"
        parser.add_argument("--audit-key", type=Path, metavar="FILE", help=about)

    key = memory.add_parser("key", help="make a key that encrypts clients' states")
    key.add_argument("file", type=Path, metavar="FILE")
    key.set_defaults(command=_key)
    _command(memory, "encrypt", "encrypt states that were written without a key", _encrypt)

    auditing = _command(memory, "audit", "check the log of what was taken out, and that it is still out", _audit)
    auditing.add_argument("--public-key", default="", metavar="KEY", help="the key that must have signed it")
    auditing.add_argument("--receipt", action="append", default=[], metavar="HASH", help="a line that must be in it")
    auditing.add_argument("--json", action="store_true", help="the lines as JSON")


def _command(memory: Commands, name: str, about: str, command: Any) -> argparse.ArgumentParser:
    parser = memory.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a run folder, or a client's --state folder")
    add_state_key(parser)
    parser.set_defaults(command=command)
    return parser


def _key(args: argparse.Namespace) -> None:
    from cflag.cipher import make_key

    make_key(args.file)
    print(f"{args.file}: keep a copy elsewhere; without it, what it encrypts is lost")


def _encrypt(args: argparse.Namespace) -> None:
    from cflag.cipher import HOW, VARIABLE
    from cflag.memory.erase import rewrite_all

    if not os.environ.get(VARIABLE):
        raise UserError(f"encrypt with what? {HOW}")
    print(f"{rewrite_all(args.folder, _waiting)} states are encrypted")


def _list(args: argparse.Namespace) -> None:
    from cflag.files import strict_json
    from cflag.memory.inventory import inventory, list_table

    held = inventory(args.folder)
    if args.json:
        print(strict_json({"stores": [store.to_dict() for store in held]}, indent=1))
        return
    for store in [store for store in held if store.holdings] or held[:1]:
        print(list_table(store))


def _show(args: argparse.Namespace) -> None:
    from cflag.files import strict_json
    from cflag.memory.inventory import inventory, rows_of, show_table

    rows = [
        row
        for store in inventory(args.folder)
        for row in rows_of(store)
        if args.client in (None, row["client"]) and args.subject in (None, row["subject"])
    ]
    if args.json:
        print(strict_json({"samples": rows}, indent=1))
        return
    print(show_table(rows, len(rows) if args.all else 40))


def _forget(args: argparse.Namespace) -> None:
    from cflag.data.samples import NOBODY
    from cflag.memory.erase import Request, find_sample, forget

    named = [find_sample(args.folder, _digits(given)) for given in args.sample]
    named += [known for path in args.sample_file for known in _hashes_in(path)]
    asked = _asked(args.folder) if args.again else []
    named += [known for request in asked for known in request["samples"]]
    people = tuple(known for request in asked for known in request["subjects"])
    request = Request(tuple(args.subject), tuple(named), people)
    if not any(request.hashed().values()):
        raise UserError("say what to forget: --subject S, --sample HASH or --sample-file FILE")
    if NOBODY in request.subjects:
        raise UserError(f"--subject {NOBODY} stands for samples of which nobody knows whose they are")
    with _signing(args, "forget", request.hashed()) as erased:
        forget(args.folder, request, erased, _waiting)
        _tell("forgotten", erased)
    if erased.nameless:
        print(f"kept: {len(erased.nameless)} samples of which nobody knows whose they are")
    for home in erased.untold:
        print(f"note: {args.folder / home} held no sample yet, so nobody can tell whether its source knows subjects; "
              "if not, the run stops before it learns")  # fmt: skip
    print(f"note: {WARNING}")


def _asked(folder: Path) -> list[dict[str, list[str]]]:
    """Return what a folder's audit log says was forgotten, if the log can be trusted."""
    from cflag.memory.audit import AuditLog

    log = AuditLog(folder)
    log.verify()
    return log.asked()


def _expire(args: argparse.Namespace) -> None:
    from cflag.memory.erase import expire
    from cflag.memory.homes import MOST, is_between

    for name in ("rounds", "days"):
        if not is_between(getattr(args, name), 0):
            raise UserError(f"--{name} {getattr(args, name)}: give a number from 0 to {MOST}")
    with _signing(args, "expire", {"rounds": args.rounds, "days": args.days}) as erased:
        expire(args.folder, (args.rounds, args.days), erased, _waiting)
        _tell("expired", erased)


def _audit(args: argparse.Namespace) -> None:
    from cflag.files import strict_json
    from cflag.memory.audit import AuditLog
    from cflag.memory.erase import broken_promises, unsigned

    lines = AuditLog(args.folder).verify(args.public_key, tuple(args.receipt))
    if args.json:
        print(strict_json({"lines": lines}, indent=1))
    for line in [] if args.json else lines:
        deleted = line["deleted"]
        print(f"{line['number']:>4}  {line['when']}  {line['act']}: {len(deleted['samples'])} samples in "
              f"{len(deleted['files'])} files{', unfinished' if line.get('unfinished') else ''}")  # fmt: skip
    if not lines and (listed := unsigned(args.folder)):
        raise UserError(f"{listed} says that something was forgotten, and there is no audit log of it in "
                        f"{args.folder}; put back a copy, or name the folder that 'forget' was given")  # fmt: skip
    if broken := broken_promises(args.folder, [line["asked"] for line in lines if line["act"] == "forget"]):
        raise UserError(f"{args.folder}: {broken}; put that right with: cflag memory forget {args.folder} --again")
    if lines and not args.json:
        print(f"{len(lines)} lines, each signed by {lines[0]['key']}; nothing that was forgotten is held")
    elif not args.json:
        print(f"{args.folder}: nothing was ever taken out: there is no audit log")


def _audit_key(args: argparse.Namespace) -> Ed25519PrivateKey:
    from cflag.memory.audit import KEY, AuditLog
    from cflag.memory.homes import homes

    homes(args.folder)  # no key is made in a folder that is none of ours
    own = os.environ.get(AUDIT_KEY)
    return AuditLog(args.folder).key(args.audit_key or (Path(own).expanduser() if own else args.folder / KEY))


@contextmanager
def _signing(args: argparse.Namespace, act: str, asked: dict[str, Any]) -> Iterator[Erased]:
    """Sign what is taken out in here, also where that ends half-way; what cannot be signed is not begun."""
    from cflag.memory.audit import AuditLog
    from cflag.memory.erase import Erased

    key, log, erased = _audit_key(args), AuditLog(args.folder), Erased()

    def sign(**more: bool) -> None:
        line = {"act": act, "asked": asked, "deleted": erased.to_dict(), **more}
        print(f"signed in {log.path}; receipt {log.append(key, line)}")

    try:
        yield erased
    except BaseException:
        if erased.begun:
            _tell("unfinished, repeat the command; so far", erased)
            sign(unfinished=True)
        raise
    sign()


def _tell(what: str, erased: Erased) -> None:
    clients = f" of {len(erased.clients)} clients" if erased.clients else ""
    print(f"{what}: {len(erased.samples)} samples{clients}, in {len(erased.files)} files")
    for path in erased.removed:
        print(f"removed: {path}, which was left half written")


def _waiting(home: Path) -> None:
    print(f"{home} is in use; waiting for the end of the round", file=sys.stderr, flush=True)


def _digits(given: str) -> str:
    if not given or set(given.lower()) - set("0123456789abcdef") or len(given) > 64:
        raise UserError(f"--sample {given}: a hash is up to 64 digits, as 'cflag memory show' prints it")
    return given.lower()


def _hashes_in(path: Path) -> list[str]:
    """Return the hashes of the samples in a file: one in an .npy file, several as `x` in an .npz file."""
    import hashlib
    import zlib
    from zipfile import BadZipFile

    import numpy as np

    try:
        with open(path, "rb") as file:
            found = np.load(file, allow_pickle=False)
            arrays = [found] if isinstance(found, np.ndarray) else list(found["x"])
            return [hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for array in arrays]
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (KeyError, ValueError, TypeError, OSError, EOFError, MemoryError, BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: neither one sample (.npy) nor several as x (.npz): {one_line(error)}") from None
