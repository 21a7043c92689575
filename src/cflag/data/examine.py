"""What is in data of your own, in about ten lines, and what is odd about it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cflag.data.load import find_reader
from cflag.data.notes import about_labels
from cflag.data.source import Source
from cflag.data.sources.base import Reading
from cflag.data.sources.own import Array, OwnReader, Rows, as_numbers, as_source, in_order, words
from cflag.errors import DataError

FEW = 10
"""A class with fewer samples than this is odd."""
SHOWN = 5
NAMED = 3
"""Files that are named of those that cannot be read."""
ROOM = 60
"""What there is of a line of 80 columns for names."""


def source_name(what: str) -> str:
    """Return the source that a path is: `pictures:`, `npz:` or `table:`, or the `folder` that deployments have."""
    path = Path(what).expanduser()
    if what.partition(":")[0] in ("pictures", "npz", "table", "folder"):
        return what
    if path.suffix in (".npz", ".csv", ".parquet"):
        return f"{'npz' if path.suffix == '.npz' else 'table'}:{what}"
    return "folder" if (path / "source.toml").is_file() else f"pictures:{what}"


def examine(what: str, root: Path, reading: Reading) -> Iterator[str]:
    """Yield lines about a folder of pictures, an .npz or a table; `root` is the folder that relative places are in."""
    name = source_name(what)
    if name == "folder":
        source = find_reader(name).read(root / Path(what).expanduser())
        yield from _lines(_rows(source), source, name)
        return
    reader = find_reader(name, reading)
    assert isinstance(reader, OwnReader)
    reader.check(root)
    title, rows = reader.path(root).stem, reader.rows(root)
    source_or_none, refused = _tried(title, rows, reading)
    if refused:
        rows = rows.readable()
        source_or_none, refused = _tried(title, rows, reading)
    yield from _lines(rows, source_or_none, name)
    if rows.unreadable and not refused:
        refused = "repair or remove pictures that cannot be read"
    if refused:
        yield f"cannot be used: {refused}"


def _tried(title: str, rows: Rows, reading: Reading) -> tuple[Source | None, str]:
    """Return the source that rows are; or why they are none."""
    x = rows.x
    try:
        clean = replace(rows, x=_filled(x)) if isinstance(x, Tensor) and x.is_floating_point() else rows
        return as_source(title, clean, reading), ""
    except DataError as error:
        return None, str(error)


def _filled(x: Tensor) -> Tensor:
    """Return samples with the mean of the others where a value is missing, so that the rest can be looked at."""
    known = torch.where(x.isfinite(), x, torch.nan)
    return torch.where(x.isfinite(), x, known.nanmean(0).nan_to_num())


def _rows(source: Source) -> Rows:
    """Return a source's samples as rows."""

    halves, test = (source.train, source.test), np.repeat([0, 1], [len(source.train), len(source.test)])
    parts = {key: _cat([getattr(half, key) for half in halves]) for key in ("subject", "task", "y")}
    assert parts["y"] is not None
    return Rows(torch.cat([half.x for half in halves]), parts["y"], parts["subject"], parts["task"], test)


def _cat(parts: Sequence[Tensor | None]) -> Array | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there).numpy() if len(there) == len(parts) else None


def _lines(rows: Rows, source: Source | None, name: str) -> Iterator[str]:
    yield f"source     {name}"
    halves = f": {len(source.train)} to train, {len(source.test)} to test" if source else ""
    said = "" if rows.test is not None or source is None else " (held out by us)"
    yield f"samples    {len(rows)}{halves}{said}"
    parts = _parts(rows, source)
    shape = "x".join(map(str, parts[0].shape[1:]))
    kind = "bytes: pictures" if parts[0].dtype == torch.uint8 else "numbers"
    yield f"shape      {shape}, {kind}, {_range(parts)}"
    measured = source is not None and source.problem != "classes"
    yield f"labels     {_measured(rows.label)}" if measured else f"classes    {_counted(rows.label)}"
    yield f"users      {'not known' if rows.user is None else _counted(rows.user)}"
    yield f"tasks      {'not known' if rows.task is None else _counted(rows.task)}"
    if source is not None:
        of_labels = f"; labels: mean {_short(source.label_mean)}, std {_short(source.label_std)}" if measured else ""
        yield f"scale      mean {_short(source.mean)}, std {_short(source.std)}{of_labels}"
    odd = [*_odd_folders(rows), *_odd_samples(rows, parts)]
    odd += about_labels(source) if measured and source else _odd_labels(rows, source)
    yield f"odd        {odd[0] if odd else 'nothing'}"
    for line in odd[1:]:
        yield f"           {line}"


def _parts(rows: Rows, source: Source | None) -> list[Tensor]:
    """Return all samples: as they were found, or, where they were still in files, as the source has read them."""
    if isinstance(rows.x, Tensor):
        return [rows.x]
    return [source.train.x, source.test.x] if source else [rows.at(np.arange(len(rows)))]


def _range(parts: Sequence[Tensor]) -> str:
    if not sum(x.numel() for x in parts):
        return "no values"
    finite = [x[torch.isfinite(x)] if x.is_floating_point() else x for x in parts]
    ends = [float(end) for x in finite if x.numel() for end in x.aminmax()]
    return f"values {min(ends):g} to {max(ends):g}" if ends else "no finite values"


def _counted(found: Array) -> str:
    """Return how many there are, with their names and sizes, cut where there are many."""
    text = words(found)
    counts, order = Counter(text.tolist()), in_order(text) if len(text) else []
    line, shown = f"{len(order)}: ", [f"{word} ({counts[word]})" for word in order]
    while shown and len(line) + len(shown[0]) < ROOM:
        line += shown.pop(0) + (", " if shown else "")
    return line + ("..." if shown else "")


def _measured(found: Array) -> str:
    """Return the range of labels that are no single classes."""
    values = np.asarray(found, np.float64)
    return f"{values.min():g} to {values.max():g}, mean {values.mean():.3g}, std {values.std():.3g}"


def _odd_folders(rows: Rows) -> Iterator[str]:
    """Yield that clients' folders were taken for classes."""
    if rows.class_names and all(re.fullmatch(r"client-\d+", name) for name in rows.class_names):
        yield 'its folders look like clients, not like classes: partition = "own", and'
        yield "--data-dir this folder; check one alone: its client-0"


def _short(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values[:SHOWN]) + (", ..." if len(values) > SHOWN else "")


def _odd_samples(rows: Rows, parts: Sequence[Tensor]) -> Iterator[str]:
    """Yield what is odd about samples."""
    if rows.unreadable:
        yield f"{len(rows.unreadable)} pictures cannot be read{', such as' if len(rows.unreadable) > NAMED else ''}:"
        yield from rows.unreadable[:NAMED]
    if not len(rows):
        return
    if parts[0].is_floating_point():
        flat = parts[0].reshape(len(rows), -1)
        wrong = ~torch.isfinite(flat).all(1)
        if wrong.any():
            yield f"{int(wrong.sum())} samples hold values that are not finite, the first is {int(wrong.nonzero()[0])}"
        constant = int((flat == flat[0]).all(0).sum())
        if constant:
            yield f"{constant} of {flat.shape[1]} features are the same in all samples"
    digests = [hashlib.sha256(row.numpy().tobytes()).digest() for x in parts for row in x]
    twice = len(digests) - len(set(digests))
    if twice:
        yield f"{twice} samples are there more than once"


def _odd_labels(rows: Rows, source: Source | None) -> Iterator[str]:
    """Yield what is odd about classes and tasks."""
    text = words(rows.label)
    numbers = as_numbers(text)
    if len(text) and numbers is not None and (numbers != np.round(numbers)).any():
        yield f"labels are measured, not counted, such as {text[int(np.argmax(numbers != np.round(numbers)))]}"
    counts = Counter(dict.fromkeys(rows.class_names, 0))
    counts.update(text.tolist())
    few = [name for name, count in counts.items() if count < FEW]
    if few:
        yield f"{len(few)} classes have fewer than {FEW} samples: {', '.join(sorted(few)[:SHOWN])}"
    if source is None:
        return
    names = source.class_names or tuple(map(str, range(source.classes)))
    for half, other, what in ((source.test, source.train, "tests"), (source.train, source.test, "training")):
        lacking = sorted(set(other.y.tolist()) - set(half.y.tolist()))
        if lacking:
            yield f"{len(lacking)} classes have no sample for {what}: {', '.join(names[c] for c in lacking[:SHOWN])}"
    if source.train.subject is not None and source.test.subject is not None:
        untested = set(source.train.subject.tolist()) - set(source.test.subject.tolist())
        if untested:
            yield f"{len(untested)} users have no sample for tests"
