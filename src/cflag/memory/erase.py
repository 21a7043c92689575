"""Taking samples out of all that a folder keeps: on a person's request, or because they are too old."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cflag.data.samples import NOBODY, Samples
from cflag.errors import UserError
from cflag.files import file_checksum
from cflag.memory.audit import LOG, AuditLog
from cflag.memory.forgotten import Forgotten, hashes, subject_hash
from cflag.memory.gate import let_in
from cflag.memory.homes import (
    Holding,
    Limits,
    Store,
    age_in_days,
    age_in_rounds,
    homes,
    is_server,
    logged_in,
    stores,
    today,
    write,
)
from cflag.states import log

Choose = Callable[[Store, Holding, Samples], Tensor]
"""Says, for each sample of a part of a client's state, whether it goes."""


@dataclass(frozen=True)
class Request:
    """Whose and which samples are to be forgotten: subjects by number, samples by hash."""

    subjects: tuple[int, ...] = ()
    samples: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    """Subjects by hash, as an audit log has them."""

    def hashed(self) -> dict[str, list[str]]:
        """Return the request as it may be written down."""
        subjects = {*map(subject_hash, self.subjects), *self.again}
        return {"subjects": sorted(subjects), "samples": sorted(set(self.samples))}


@dataclass
class Erased:
    """What was taken out so far, as hashes, and which files were rewritten: checksums before and after."""

    samples: set[str] = field(default_factory=set)
    clients: set[int] = field(default_factory=set)
    files: dict[str, list[str]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    """What a killed process left half written: files, and the ends of logs."""
    nameless: set[str] = field(default_factory=set)
    """Samples in memories of which nobody knows whose they are, where a subject was asked for."""
    untold: list[str] = field(default_factory=list)
    """Homes without a sample yet, where a subject was asked for: nobody can tell whether their source knows any."""
    begun: bool = False
    """Whether all was read and found good, so that something may have been changed."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"samples": sorted(self.samples), "clients": sorted(self.clients), "files": self.files,
                "removed": self.removed, "untold": self.untold}  # fmt: skip


def forget(folder: Path, request: Request, erased: Erased, waiting: Callable[[Path], None]) -> None:
    """Take what a request names out of every state in a folder, and see that it does not come back."""
    found = homes(folder)
    for home in found:  # all before one is changed: who is refused half-way has no idea what was done
        holdings, _ = _read(home), Forgotten(home)
        if request.hashed()["subjects"]:
            _nameless(home, holdings)
    erased.begun = True
    for home in found:
        with let_in(home, waiting):
            _forget_at(home, folder, request, erased)


def _forget_at(home: Path, folder: Path, request: Request, erased: Erased) -> None:
    holdings = _read(home)
    forgotten, hashed = Forgotten(home), request.hashed()
    if hashed["subjects"]:
        erased.nameless |= _nameless(home, holdings)
        if all(holding.samples is None for _, holding in holdings) and not is_server(home):
            erased.untold.append(str(home.relative_to(folder)))
    forgotten.add(hashed["samples"], hashed["subjects"])  # first: whatever happens next, it does not come back
    _rewrite(folder, holdings, lambda _, __, samples: forgotten.covers(samples), erased)
    _remove_leftovers(folder, home, erased)


def expire(folder: Path, limits: Limits, erased: Erased, waiting: Callable[[Path], None]) -> None:
    """Take out what is kept for as many rounds or days as it may be; with no limits, those of each run's config."""
    found, day = homes(folder), today()

    def old(store: Store, holding: Holding, samples: Samples) -> Tensor:
        given = limits if any(limits) else store.limits
        age = age_in_rounds(samples.task, store.ends(holding.client), store.done())
        return too_old(samples, given, age, holding.dates, day)

    for home in found:
        Forgotten(home)
        for store, holding in _read(home):
            for _, samples in holding.parts():
                old(store, holding, samples)
    erased.begun = True
    for home in found:
        with let_in(home, waiting):
            before = len(erased.files)
            try:
                _rewrite(folder, _read(home), old, erased)
            finally:  # a running process must not write back what it has in its own memory
                if len(erased.files) > before:
                    Forgotten(home).add()
            _remove_leftovers(folder, home, erased)


def too_old(samples: Samples, limits: Limits, age: Tensor, dates: dict[str, str], day: date) -> Tensor:
    """Return, for each sample, whether it is kept for as many rounds, which are its age, or days as it may be."""
    old = torch.zeros(len(samples), dtype=torch.bool)
    if limits[0]:
        old |= age >= limits[0]
    if limits[1]:
        old |= age_in_days(samples.task, dates, day) >= limits[1]
    return old


def _read(home: Path) -> list[tuple[Store, Holding]]:
    """Read all states of a home before one is changed: a damaged one may hold anything, and is refused first."""
    return [(store, holding) for store in stores(home) for holding in store.holdings()]


def _rewrite(folder: Path, holdings: Sequence[tuple[Store, Holding]], choose: Choose, erased: Erased) -> None:
    """Rewrite the files with states that hold a sample that goes."""
    files: dict[Path, list[tuple[Holding, dict[str, Tensor]]]] = {}
    for store, holding in holdings:
        gone = {prefix: choose(store, holding, samples) for prefix, samples in holding.parts()}
        gone = {prefix: mask for prefix, mask in gone.items() if bool(mask.any())}
        if gone:
            files.setdefault(holding.where.file, []).append((holding, gone))
    for path, changed in files.items():
        before = file_checksum(path)
        try:
            write([holding.without(gone) for holding, gone in changed])
        finally:  # also where syncing the folder failed, after the file was replaced
            if (after := file_checksum(path)) != before:
                erased.files[str(path.relative_to(folder))] = [before, after]
                for holding, gone in changed:
                    _note(erased, holding, gone)


def _note(erased: Erased, holding: Holding, gone: dict[str, Tensor]) -> None:
    erased.clients.add(holding.client)
    for prefix, samples in holding.parts():
        erased.samples |= set(hashes(samples[gone[prefix]])) if prefix in gone else set()


def _remove_leftovers(folder: Path, home: Path, erased: Erased) -> None:
    for store in stores(home):
        for path in store.leftovers():
            path.unlink()
            erased.removed.append(str(path.relative_to(folder)))
        for path in store.torn():
            log.rewrite(path, {})
            erased.removed.append(f"the end of {path.relative_to(folder)}")


def _nameless(home: Path, holdings: Sequence[tuple[Store, Holding]]) -> set[str]:
    """Return the samples of which nobody knows whose they are; refuse memories that know it of none."""
    held = [holding.samples for _, holding in holdings if holding.samples is not None]
    if held and all(samples.subject is None for samples in held):
        raise UserError(
            f"{home}: these memories do not say whose their samples are (their source knows no subjects); forget them "
            "by --sample or --sample-file"
        )
    subjects = [(samples, samples.subject) for samples in held]
    unknown = [samples if of is None else samples[of == NOBODY] for samples, of in subjects]
    return {known for samples in unknown for known in hashes(samples)}


def find_sample(folder: Path, given: str) -> str:
    """Return the whole hash of a sample that is named by its first digits, at least eight."""
    if len(given) == 64:
        return given
    found = {
        known
        for home in homes(folder)
        for _, holding in _read(home)
        for _, part in holding.parts()
        for known in hashes(part)
        if known.startswith(given)
    }
    if len(given) < 8 or len(found) != 1:
        why = "no sample" if not found else f"{len(found)} samples"
        raise UserError(f"--sample {given}: {why} in {folder} begins so; give all 64 digits")
    return found.pop()


def list_of(home: Path) -> Forgotten:
    """Return a home's list, to go on with; refuse one that lacks what the audit log says was forgotten."""
    asked = [(folder, request) for folder in logged_in(home) for request in AuditLog(folder).asked()]
    forgotten = Forgotten(home)  # read after the log: a request is on the list before it is in the log
    for folder, request in asked:
        if not forgotten.has(request):
            raise UserError(
                f"{forgotten.path} lacks what {folder / LOG} says was forgotten; put it back with: cflag memory forget "
                f"{folder} --again"
            )
    return forgotten


def unsigned(folder: Path) -> str:
    """Return which list of a folder says that something was forgotten; nothing where none does."""
    lists = [Forgotten(home) for home in homes(folder)]
    return next((str(known.path) for known in lists if known.samples or known.subjects), "")


def broken_promises(folder: Path, asked: Sequence[dict[str, list[str]]]) -> str:
    """Return what is wrong where something that was forgotten is held, or could be taken again; nothing otherwise."""
    for home in homes(folder):
        forgotten = Forgotten(home)
        if not all(forgotten.has(request) for request in asked):
            return f"{forgotten.path} lacks what the audit log says was forgotten"
        for _, holding in _read(home):
            if any(bool(forgotten.covers(part).any()) for _, part in holding.parts()):
                return f"{holding.path} holds a sample that was forgotten"
    return ""


def rewrite_all(folder: Path, waiting: Callable[[Path], None]) -> int:
    """Write every state again, as states are written now; return how many there are."""
    written, found = 0, homes(folder)
    for home in found:
        _read(home)
    for home in found:
        with let_in(home, waiting):
            states = [holding for _, holding in _read(home)]
            for path in {holding.where.file for holding in states}:
                write([holding for holding in states if holding.where.file == path])
            written += len(states)
            _remove_leftovers(folder, home, Erased())
    return written
