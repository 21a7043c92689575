"""One client at a time: its scores, its data and what it took part in, for up to 200 clients.

Every client is a folded part of the page with plain tables of numbers, which can be read and linked to (#client-17)
without a script. The script shows one of them at a time and draws what it reads in those tables: no number is in the
page twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from cflag.data.benchmark import ClassCounts
from cflag.problems.score import Score, common
from cflag.report.parts import COLOURS, MOST_PAGES, Colours, client_id, none, swatch
from cflag.report.story import Groups
from cflag.results.folder import RunFolder
from cflag.results.result import Result

MOST_TESTS = 12
"""How many rows a client's matrix has; where clients have clocks of their own, there may be hundreds of tests."""


@dataclass
class Spent:
    """What a client took part in."""

    rounds: int = 0
    up: float = 0.0
    down: float = 0.0


def single_clients(groups: Groups, key: str, colours: Colours) -> str:
    """Return a part for each client, of each method's first seed; nothing where nobody knows of single clients."""
    runs = [results[0] for results in groups.values() if results[0].client_matrices]
    if not runs:
        return ""
    count = max(len(result.client_matrices) for result in runs)
    if count > MOST_PAGES:
        return none(f"{count:,} clients are too many for a part each: up to {MOST_PAGES} have one")
    score, spent = common([result.score for result in runs]), [_spent(result) for result in runs]
    counts = next((found for result in runs if (found := _class_counts(result)) is not None), None)
    parts = "".join(_client(key, k, [*zip(runs, spent, strict=True)], colours, counts) for k in range(count))
    worst, best = _colour_range(runs)
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(result.seed for result in runs))
    note = (
        f'<p class="lead">{score.title}{score.brackets} on the held-out samples that a client has of each task, and '
        f"its mean over the tasks begun by then; seed {seeds}. Traffic: an equal share of what all "
        "who took part in a round sent and were sent.</p>"
    )
    about = f'data-worst="{worst:g}" data-best="{best:g}" data-score="{escape(score.text + score.brackets)}"'
    return f'{note}<div class="clients" {about}>{parts}</div>'


def _colour_range(runs: Sequence[Result]) -> tuple[float, float]:
    """Return the worst and the best value, as they are shown, that colours are spread over."""
    rows = [row for result in runs for matrix in result.client_matrices for row in matrix]
    score = runs[0].score
    low, high = (score.factor * value for value in score.range_of(rows))
    return (low, high) if score.higher else (high, low)


def _class_counts(result: Result) -> ClassCounts | None:
    return None if result.folder is None else RunFolder(result.folder).class_counts()


def _spent(result: Result) -> list[Spent] | None:
    """Return what each client took part in; None where it is not known who was asked."""
    clients = len(result.client_matrices)
    spent = [Spent() for _ in range(clients)]
    for record in result.metrics:
        if "cohort" not in record and not record["clients"]:
            return None
        cohort: Sequence[int] = record.get("cohort", range(clients))
        for number in cohort:
            spent[number].rounds += 1
            spent[number].up += record["bytes_up"] / len(cohort)
            spent[number].down += record["bytes_down"] / len(cohort)
    return spent


def _client(
    key: str,
    number: int,
    runs: Sequence[tuple[Result, Sequence[Spent] | None]],
    colours: Colours,
    counts: ClassCounts | None,
) -> str:
    finals, blocks = [], []
    for result, spent in runs:
        if number >= len(result.client_matrices):
            continue
        lines = _lines(result, number)
        finals.append(f"{result.method} {result.score.said(_mean_of(lines[-1][1]) if lines else None)}")
        colour = colours[result.method]
        head = f"<h4>{swatch(colour)}{escape(result.method)}</h4>"
        scores = f"<pre>{_text(lines, result.rows[0], result.score)}</pre>" if lines else none("it never tested")
        took = "" if spent is None else _took_part(spent[number], len(result.metrics))
        blocks.append(f'<div class="run" data-colour="{colour % COLOURS}">{head}{scores}{took}</div>')
    title = f"client {number}: {', '.join(finals)}"
    inner = f'<div class="grid3">{"".join(blocks)}</div>{_samples(counts, number)}'
    return f'<details id="{client_id(key, number)}"><summary>{escape(title)}</summary>{inner}</details>'


Lines = list[tuple[int, list[float | None]]]
"""After which task or round a client was tested, and its scores on the tasks begun by then."""


def _lines(result: Result, number: int) -> Lines:
    """Return a client's tests: all, or some evenly, the last among them; without those in which it had no sample."""
    found: Lines = []
    for i, (name, row) in enumerate(zip(result.rows[1], result.client_matrices[number], strict=True)):
        begun = [value for j, value in enumerate(row) if result.begun(i, j)]
        if any(value is not None for value in begun):
            found.append((name, begun))
    if len(found) > MOST_TESTS:
        found = [found[round(k * (len(found) - 1) / (MOST_TESTS - 1))] for k in range(MOST_TESTS)]
    return found


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _text(lines: Lines, unit: str, score: Score) -> str:
    """Return a matrix as text in columns: after what, the mean, and each task; the script draws it."""
    cells = [[str(name), score.shown(_mean_of(row)), *map(score.shown, row)] for name, row in lines]
    tasks = max(len(row) for row in cells) - 2
    cells.insert(0, [unit, "mean", *(f"t{task}" for task in range(1, tasks + 1))])
    widths = [max(len(row[k]) for row in cells if k < len(row)) for k in range(tasks + 2)]
    return "\n".join(" ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=False)) for row in cells)


def _took_part(spent: Spent, rounds: int) -> str:
    return f"<p>{spent.rounds} of {rounds} rounds; {spent.up / 1e6:.3g} MB up, {spent.down / 1e6:.3g} MB down</p>"


def _samples(counts: ClassCounts | None, number: int) -> str:
    """Return how many training samples of which class a client has in each task."""
    if counts is None:
        return ""
    lines = []
    for task, classes in enumerate(counts, 1):
        own = {label: each[number] for label, each in classes.items() if each[number]}
        each = ", ".join(f"{label}: {count}" for label, count in own.items())
        lines.append(f"task {task}: {sum(own.values())}{f' ({each})' if own else ''}")
    text = escape("\n".join(lines))
    return f'<h4>training samples in each task (class: how many)</h4><pre class="samples">{text}</pre>'
