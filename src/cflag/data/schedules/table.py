"""A table of one's own: which client is in which task, from which round to which."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from cflag.data.options import ScheduleOptions
from cflag.data.schedules.base import NEVER, Plan, Rounds, Schedule
from cflag.errors import UserError
from cflag.registry import register

COLUMNS = ("client", "first", "last", "task")
MOST_ROUNDS = 10**9
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
    """Return the lines of a CSV file as the config keeps them: in the order of COLUMNS, whatever its own is.

    Spreadsheets separate by semicolons or tabs in some places; lines that are empty or begin with # are passed over.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        numbered = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip(' ,;\t"')]
        numbered = [(n, line) for n, line in numbered if not line.lstrip(' "').startswith("#")]
        separator = max(",;\t", key=numbered[0][1].count) if numbered else ","
        reader = csv.reader((line for _, line in numbered), delimiter=separator, skipinitialspace=True)
        cells = [(numbered[reader.line_num - 1][0], row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"schedule.file = '{path}' cannot be read: {error}") from None
    header = [cell.strip().lower() for cell in cells[0][1]] if cells else []
    if len(cells) < 2 or any(header.count(name) != 1 for name in COLUMNS):
        raise UserError(f"schedule.file = '{path}' has no lines below a header {','.join(COLUMNS)}; {WANTED}")
    places, lines = [header.index(name) for name in COLUMNS], []
    for number, row in cells[1:]:
        line = ",".join(row[k].strip() if k < len(row) else "" for k in places)
        _row(line, f"{path}, line {number}, '{line}'")
        lines.append(line)
    return lines


def rows(lines: Iterable[str]) -> list[tuple[int, int, int, int]]:
    """Return lines as numbers, all from 0."""
    return [_row(line, f"schedule, line {number}, '{line}'") for number, line in enumerate(lines, 1)]


def _row(line: str, where: str) -> tuple[int, int, int, int]:
    try:
        client, first, last, task = (int(cell) for cell in line.split(","))
    except ValueError:
        raise UserError(f"{where}: four whole numbers wanted; {WANTED}") from None
    if client < 0 or first < 1 or task < 1:
        raise UserError(f"{where}: clients are numbered from 0, rounds and tasks from 1")
    if last < first:
        raise UserError(f"{where}: the last round is before the first")
    if last > MOST_ROUNDS:
        raise UserError(f"{where}: a round must be at most {MOST_ROUNDS:,}")
    return client, first - 1, last - 1, task - 1


@register("schedule", "table", "a CSV of client, first round, last round, task")
class Table(Schedule):
    """Whatever else one may want, such as what was exported from a real fleet. A client is gone after its last line."""

    Settings: ClassVar[type[ScheduleOptions]] = TableOptions
    settings: TableOptions

    def planned(self) -> Plan:
        """Enter line by line; where a client has several for a task, it is absent in between."""
        frame, lines = self.frame, self.settings.lines
        first = np.full((frame.clients, frame.tasks), NEVER)
        last, breaks = first.copy(), []
        entries = sorted(zip(rows(lines), lines, strict=True), key=lambda entry: entry[0][1])
        for (client, begin, end, task), line in entries:
            if client >= frame.clients or task >= frame.tasks:
                raise UserError(
                    f"schedule, line '{line}': there are {frame.clients} clients (from 0) and {frame.tasks} tasks"
                )
            if first[client, task] < 0:
                first[client, task] = begin
            elif begin <= last[client, task]:
                raise UserError(f"schedule, line '{line}': client {client} is in task {task + 1} then already")
            elif begin > last[client, task] + 1:
                breaks.append((client, int(last[client, task]) + 1, begin - 1))
            last[client, task] = end
        for client in np.flatnonzero((first < 0).all(1))[:1]:
            raise UserError(f"schedule: client {client} has no line; give it one, or take fewer clients")
        _refuse_return(first, last, breaks)
        return Plan.of(first, last, last.max(1) + 1, tuple(breaks))


def _refuse_return(first: Rounds, last: Rounds, breaks: Sequence[tuple[int, int, int]]) -> None:
    """Say so where a client comes back to a task after another one: what it left is in its memory by then."""
    for client, begin, end in breaks:
        during = (first[client] >= begin) & (first[client] <= end)
        if during.any():
            other = int(during.argmax())
            task = int(np.flatnonzero((first[client] < begin) & (last[client] > end))[0])
            raise UserError(
                f"schedule: client {client} comes back to task {task + 1} after task {other + 1}; a client that has "
                "begun another task is done with the one before"
            )
