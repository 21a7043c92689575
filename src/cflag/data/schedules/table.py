"""A table of one's own: which client is in which task, from which round to which."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from cflag.data.options import ScheduleOptions
from cflag.data.schedules.base import NEVER, Plan, Schedule
from cflag.errors import UserError
from cflag.registry import register

COLUMNS = ("client", "first", "last", "task")
WANTED = "a table has the columns client (from 0), first, last (rounds, from 1) and task (from 1)"


@dataclass(frozen=True)
class TableOptions(ScheduleOptions):
    """A CSV file, or its lines."""

    file: str = ""
    """In a TOML file it is given relative to it. It is read once: the run folder's config has its lines."""
    lines: tuple[str, ...] = ()
    """`client,first,last,task`, whole numbers: the client from 0, rounds and tasks from 1."""

    def check(self, table: str) -> None:
        """Read the lines once, to refuse what is none."""
        if not self.lines:
            raise UserError(f"{table}.kind = 'table' wants {table}.file, a CSV file, or {table}.lines; {WANTED}")
        rows(self.lines)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a CSV file as the config keeps them: in the order of COLUMNS, whatever its own is."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            found = list(csv.DictReader(file, skipinitialspace=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"schedule.file = '{path}' cannot be read: {error}") from None
    if not found or not set(COLUMNS) <= {str(name).strip() for name in found[0]}:
        raise UserError(f"schedule.file = '{path}' has no lines below a header {','.join(COLUMNS)}; {WANTED}")
    clean = [{str(k).strip(): str(v or "").strip() for k, v in row.items()} for row in found]
    return [",".join(row[name] for name in COLUMNS) for row in clean]


def rows(lines: Iterable[str]) -> list[tuple[int, int, int, int]]:
    """Return lines as numbers, all from 0."""
    read = []
    for number, line in enumerate(lines, 1):
        try:
            client, first, last, task = (int(cell) for cell in line.split(","))
        except ValueError:
            raise UserError(f"schedule, line {number}, '{line}': four whole numbers wanted; {WANTED}") from None
        if client < 0 or first < 1 or task < 1:
            raise UserError(f"schedule, line {number}, '{line}': clients are numbered from 0, rounds and tasks from 1")
        if last < first:
            raise UserError(f"schedule, line {number}, '{line}': the last round is before the first")
        read.append((client, first - 1, last - 1, task - 1))
    return read


@register("schedule", "table", "a CSV of client, first round, last round, task")
class Table(Schedule):
    """Whatever else one may want, such as what was exported from a real fleet. A client is gone after its last line."""

    Settings: ClassVar[type[ScheduleOptions]] = TableOptions
    settings: TableOptions

    def planned(self) -> Plan:
        """Enter line by line."""
        frame = self.frame
        first = np.full((frame.clients, frame.tasks), NEVER)
        last = first.copy()
        for number, (client, begin, end, task) in enumerate(rows(self.settings.lines), 1):
            where = f"schedule, line {number}, '{self.settings.lines[number - 1]}'"
            if client >= frame.clients or task >= frame.tasks:
                raise UserError(f"{where}: there are {frame.clients} clients (from 0) and {frame.tasks} tasks")
            if first[client, task] >= 0:
                raise UserError(f"{where}: client {client} has task {task + 1} twice; a client has a task once")
            first[client, task], last[client, task] = begin, end
        for client in np.flatnonzero((first < 0).all(1))[:1]:
            raise UserError(f"schedule: client {client} has no line; give it one, or take fewer clients")
        return Plan.of(first, last, last.max(1) + 1)
