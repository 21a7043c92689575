"""What memories hold, counted and told: nothing here changes anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cflag.data.samples import NOBODY, Samples
from cflag.memory.forgotten import Forgotten, hashes
from cflag.memory.homes import Holding, Store, age_in_days, age_in_rounds, homes, stores, today


@dataclass(frozen=True)
class Held:
    """What the clients of one store hold, each as of its newest state."""

    home: Path
    store: Store
    done: int
    holdings: tuple[Holding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON values, for each client and in all."""
        clients = [{"client": h.client, **count(self, [h])} for h in self.holdings]
        forgotten = Forgotten(self.home)
        lists = {"samples": len(forgotten.samples), "subjects": len(forgotten.subjects)}
        disk = sum(path.stat().st_size for path in self.store.files())
        return {"folder": str(self.store.path), "rounds_done": self.done, "clients": clients,
                "all": count(self, self.holdings), "bytes_on_disk": disk, "forgotten": lists}  # fmt: skip


def inventory(folder: Path) -> list[Held]:
    """Read what all memories in a folder hold."""
    return [
        Held(home, store, store.done(), tuple(h for h in store.newest() if h.samples is not None))
        for home in homes(folder)
        for store in stores(home)
    ]


def count(held: Held, holdings: Sequence[Holding]) -> dict[str, Any]:
    """Count samples, tasks (from 1), classes, people and bytes, and say how old the oldest sample is."""
    parts = [(h, h.samples) for h in holdings if h.samples is not None]
    tasks = Counter(int(t) + 1 for _, s in parts for t in s.task.tolist())
    classes = Counter(int(y) for _, s in parts if s.classified for y in s.y.tolist())
    people = {p for _, s in parts if s.subject is not None for p in s.subject.tolist() if p != NOBODY}
    ages = [(_rounds(held, h, s), _days(h, s)) for h, s in parts]
    return {
        "samples": sum(len(s) for _, s in parts),
        "tasks": dict(sorted(tasks.items())),
        "classes": dict(sorted(classes.items())),
        "subjects": len(people) if any(s.subject is not None for _, s in parts) else None,
        "oldest_rounds": max((max(r) for r, _ in ages), default=None),
        "oldest_days": max((max(d) for _, d in ages if max(d) >= 0), default=None),
        "bytes": sum(h.nbytes() for h in holdings),
    }


def _rounds(held: Held, holding: Holding, samples: Samples) -> list[int]:
    ages: list[int] = age_in_rounds(samples.task, held.store.ends(holding.client), held.done).tolist()
    return ages


def _days(holding: Holding, samples: Samples) -> list[int]:
    ages: list[int] = age_in_days(samples.task, holding.dates, today()).tolist()
    return ages


def rows_of(held: Held) -> Iterable[dict[str, Any]]:
    """Yield each sample of the newest states: its hash, and what is known of it."""
    for holding in held.holdings:
        samples = holding.samples
        assert samples is not None
        people = [NOBODY] * len(samples) if samples.subject is None else samples.subject.tolist()
        ages = zip(_rounds(held, holding, samples), _days(holding, samples), strict=True)
        known = zip(hashes(samples), samples.task.tolist(), samples.y.tolist(), people, ages, strict=True)
        for sha256, task, label, person, (rounds, days) in known:
            yield {"sample": sha256, "client": holding.client, "task": task + 1, "class": label,
                   "subject": None if person == NOBODY else person, "rounds": rounds,
                   "taken": holding.dates.get(str(task)), "days": None if days < 0 else days,
                   "file": str(holding.path)}  # fmt: skip


def list_table(held: Held) -> str:
    """Return the counts of one store as a table of at most 80 columns."""
    raw = held.to_dict()
    rows = [{**row, "client": str(row["client"])} for row in raw["clients"]] + [{**raw["all"], "client": "all"}]
    heads = ("client", "samples", "tasks", "classes", "people", "oldest", "memory")
    lines = [
        [
            row["client"],
            str(row["samples"]),
            ranges(row["tasks"]),
            ranges(row["classes"]),
            _or_dash(row["subjects"]),
            _age(row["oldest_rounds"], row["oldest_days"]),
            size(row["bytes"]),
        ]
        for row in rows
    ]
    forgotten = raw["forgotten"]
    return "\n".join([
        f"{held.store.path}: after {held.done} rounds",
        *table(heads, lines, left={2, 3}),
        f"on disk {size(raw['bytes_on_disk'])}; forgotten: {forgotten['subjects']} people, "
        f"{forgotten['samples']} samples",
        "",
    ])  # fmt: skip


def show_table(rows: Sequence[Mapping[str, Any]], limit: int) -> str:
    """Return samples as a table of at most 80 columns, each by the first 16 digits of its hash."""
    heads = ("sample", "client", "task", "class", "subject", "rounds", "taken", "days")
    lines = [[row["sample"][:16], *(_or_dash(row[head]) for head in heads[1:])] for row in rows[:limit]]
    more = [f"... and {len(rows) - limit} more; see them with --all"] if len(rows) > limit else []
    return "\n".join([*table(heads, lines), *more])


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: set[int] = frozenset()) -> list[str]:  # type: ignore[assignment]
    """Return plain lines in columns, numbers to the right."""
    widths = [max(len(line[k]) for line in [heads, *rows]) for k in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        sides = ["<" if k in left else ">" for k in range(len(cells))]
        return "  ".join(f"{c:{s}{w}}" for c, s, w in zip(cells, sides, widths, strict=True)).rstrip()

    return [line(heads), "  ".join("-" * width for width in widths), *map(line, rows)]


def ranges(numbers: Iterable[int], longest: int = 16) -> str:
    """Return whole numbers in short: 1-3,7; how many where that is too long."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][-1] + 1:
            runs[-1][1:] = [n]
        else:
            runs.append([n])
    text = ",".join("-".join(map(str, run)) for run in runs) or "-"
    return text if len(text) <= longest else f"{len(list(numbers))} of them"


def size(count: int) -> str:
    """Return bytes as people read them."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _age(rounds: int | None, days: int | None) -> str:
    if rounds is None:
        return "-"
    return f"{rounds} rounds" + ("" if days is None else f", {days} days")
