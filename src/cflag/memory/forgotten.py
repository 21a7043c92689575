"""What was forgotten, as hashes: whoever is on the list is not learned from and not taken into a memory again.

The list is `forgotten.json` in a run folder, or in the state folder of a fleet's client, where it holds for all its
experiments. It is a list of hashes because the data are gone. A hash of a small number can be guessed, so the list and
the audit log hide samples well and the numbers of subjects hardly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from cflag.data.samples import Samples
from cflag.errors import UserError
from cflag.files import WHAT_TO_DO, read_json, write_sealed_json

NAME = "forgotten.json"


def hashes(samples: Samples) -> list[str]:
    """Return the hash (SHA-256) of each sample's bytes as they are stored: those of `x`, without its label."""
    return [hashlib.sha256(x.numpy().tobytes()).hexdigest() for x in samples.stored().x.detach().cpu().contiguous()]


def subject_hash(subject: int) -> str:
    """Return the hash under which a subject is on the list."""
    return hashlib.sha256(f"subject {subject}".encode()).hexdigest()


class Forgotten:
    """The list of one home; a running process looks at it before every question. Without a home it is empty."""

    def __init__(self, home: Path | None = None) -> None:
        self.path = None if home is None else home / NAME
        self.samples: frozenset[str] = frozenset()
        self.subjects: frozenset[str] = frozenset()
        self.revision = 0
        """How often memories were changed from outside: a process that has them in its own memory reads them again."""
        self._seen: tuple[int, ...] | None = None
        self.look()

    def look(self) -> bool:
        """Read the list again where its file was replaced; say whether it was."""
        if self.path is None:
            return False
        try:
            about = self.path.stat()
        except FileNotFoundError:
            return False
        seen = (about.st_ino, about.st_mtime_ns, about.st_size)
        if seen == self._seen:
            return False
        raw = read_json(self.path)
        try:
            self.samples, self.subjects = frozenset(raw["samples"]), frozenset(raw["subjects"])
            self.revision, self._seen = int(raw["revision"]), seen
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{self.path} is damaged: it holds no list of what was forgotten; {WHAT_TO_DO}") from None
        return True

    def add(self, samples: Iterable[str] = (), subjects: Iterable[str] = ()) -> None:
        """Put hashes on the list; with none, only tell a running process that memories were changed."""
        assert self.path is not None
        self.look()
        lists = {"samples": sorted({*self.samples, *samples}), "subjects": sorted({*self.subjects, *subjects})}
        write_sealed_json(self.path, {"revision": self.revision + 1, **lists})
        self.look()

    def has(self, request: Mapping[str, Iterable[str]]) -> bool:
        """Whether all hashes of a request, as the audit log has it, are on the list."""
        return self.samples.issuperset(request["samples"]) and self.subjects.issuperset(request["subjects"])

    def covers(self, samples: Samples) -> Tensor:
        """Return, for each sample, whether it is on the list or its subject is."""
        gone = torch.zeros(len(samples), dtype=torch.bool)
        if self.subjects and samples.subject is not None:
            people = [s for s in samples.subject.unique().tolist() if subject_hash(s) in self.subjects]
            gone |= torch.isin(samples.subject, torch.tensor(people, dtype=torch.long))
        if self.samples:
            gone |= torch.tensor([known in self.samples for known in hashes(samples)], dtype=torch.bool)
        return gone

    def without(self, samples: Samples) -> Samples:
        """Return the samples that are not on the list: the very same where it is empty."""
        if not self.samples and not self.subjects:
            return samples
        if self.subjects and samples.subject is None and len(samples):
            raise UserError(
                f"{self.path}: people are to be forgotten, but these data do not say whose each sample is; start anew "
                "on data without those people, in another folder (a client: another --state)"
            )
        gone = self.covers(samples)
        return samples[~gone] if bool(gone.any()) else samples
