"""The parts of the page that show the runs of one benchmark."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import PurePath
from statistics import fmean
from typing import Any

import tomli_w

from cflag.config import CUSTOM
from cflag.problems.score import Score, common
from cflag.report.plots import Dots, Strip, scatter, strips
from cflag.report.story import Groups, gradients, leader, traffic
from cflag.report.svg import Line, Rows, Shade, curves, heat
from cflag.report.timetable import drawing
from cflag.results import table
from cflag.results.colours import COLOURS as PALETTE
from cflag.results.colours import dashed, numbers
from cflag.results.folder import RunFolder
from cflag.results.measures import plan_from_dict
from cflag.results.result import Result

COLOURS = len(PALETTE)
"""How many the page has."""
MOST_CLIENTS, MOST_CLASSES = 60, 200
"""How many can have a row each."""
MOST_COLUMNS = 1000
"""How many clients can have a column each."""
MOST_PAGES = 200
"""How many clients have a part of their own."""


def by_method(results: Sequence[Result]) -> Groups:
    """Return the runs of each method."""
    groups: Groups = {}
    for result in results:
        groups.setdefault(result.method, []).append(result)
    return groups


Colours = Mapping[str, int]
"""Each method's number on the page: it has the same colour everywhere, and dashed lines where colours come again."""


def colours_of(results: Sequence[Result]) -> dict[str, int]:
    """Number the methods of a page."""
    return numbers(by_method(results))


def figure(key: str, caption: str, inner: str) -> str:
    """Return a drawing with its caption, under a name of its own."""
    head = f"<h3>{escape(caption)}</h3>" if caption else ""
    place = re.sub(r"[^\w.-]+", "-", key)  # names of methods may have settings in them
    return f'<figure id="{place}">{head}{inner}</figure>'


def none(text: str) -> str:
    """Return a line that says why there is nothing to see."""
    return f'<p class="none">{escape(text)}</p>'


def scenario(config: Mapping[str, Any]) -> str:
    """Say how tasks differ."""
    kind = str(config["scenario"])
    return f"{kind}-incremental" if kind in ("task", "class") else kind


def cards(results: Sequence[Result]) -> str:
    """Say in a few numbers what was run and what came out."""
    config, groups = results[0].config, by_method(results)
    score = common([r.score for r in results])
    best = leader(groups)
    mean = fmean(r.average_score for r in groups[best])
    seeds = len({r.seed for r in results})
    values = [
        (score.said(mean), f"best {score.text}: {best}"),
        *_measured_cards(groups[best], best),
        (str(len(groups)), "methods" if len(groups) > 1 else "method"),
        (str(seeds), "seeds" if seeds > 1 else "seed"),
        (source_name(results[0]), scenario(config)),
        (str(config["tasks"]), "tasks" if config["tasks"] > 1 else "task"),
        (str(config["clients"]), f"clients, {dealt(config)}"),
        *_made(results),
    ]
    shown = "".join(f'<div class="card"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in values)
    missing = sum("missing" in record for result in results for record in result.metrics)
    note = f"<p>In {missing} rounds some client was missing; the metrics say who and why.</p>" if missing else ""
    return f'<div class="cards">{shown}</div>{note}'


def source_name(result: Result) -> str:
    """Return what people call the data: a file's name without its place, or what a source of one's own says."""
    source = str(result.config["source"])
    if source == CUSTOM and result.folder is not None:
        return RunFolder(result.folder).source_name() or source
    kind, _, place = source.partition(":")
    return PurePath(place).name or kind


EVEN = 1000
"""From this ζ on clients' shares of a class differ by a few per cent; the number alone tells a newcomer nothing."""


def dealt(config: Mapping[str, Any]) -> str:
    """Say how samples were dealt to clients; results of the first versions knew only Dirichlet draws."""
    kind = config.get("partition", "dirichlet")
    if kind == "dirichlet":
        even = " (nearly even)" if config["zeta"] >= EVEN else ""
        return f"Dirichlet ζ = {config['zeta']:g}{even}"
    return f"{config['classes_per_client']} classes each" if kind == "classes" else f"partition {kind}"


def _made(results: Sequence[Result]) -> list[tuple[str, str]]:
    """Return when the last run was finished, as its file has it, and from which commits all are."""
    files = [r.folder / "result.json" for r in results if r.folder is not None]
    if not files:
        return []
    when = datetime.fromtimestamp(max(file.stat().st_mtime for file in files), UTC)
    commits = sorted({r.versions["commit"] for r in results if "commit" in r.versions})
    which = f"commit {commits[0]}" if len(commits) == 1 else f"{len(commits)} commits" if commits else "no commit known"
    return [(f"{when:%Y-%m-%d}", f"last run finished; {which}")]


def _measured_cards(results: Sequence[Result], method: str) -> list[tuple[str, str]]:
    """Return what the worst clients have of a method, and what everybody had on the way; results may not know."""
    names = (("worst_tenth", "worst tenth of the clients"), ("anytime_accuracy", "mean over rounds"))
    values = [([r.measured(name) for r in results], about) for name, about in names]
    known = [([v for v in found if v is not None], about) for found, about in values]
    score = results[0].score
    return [(score.said(fmean(found)), f"{about}: {method}") for found, about in known if found]


def methods_table(results: Sequence[Result], colours: Colours) -> str:
    """Return the table of methods with scores, forgetting and costs."""
    score = common([r.score for r in results])
    ends = ("a<sub>ii</sub>", "a<sub>Si</sub>")
    order = " − ".join(ends if score.higher else ends[::-1])
    forget = f"how much worse a task is at the end than right after it, mean of {order}"
    if not results[0].together:
        forget = "from each client's own moment of leaving a task to its last test, mean over clients"
    note = (
        f'<p class="lead">{score.label}: mean {score.text} over all tasks after the last. Forget: {forget}. worst: '
        f"{score.text} of the worst tenth of the clients on the tasks they have begun. any: {score.text} so far, mean "
        "over rounds. other: the same runs read class- instead of task-incrementally, or the reverse. learn: "
        f"{score.text} right after learning. "
        "Click a heading to sort.</p>"
    )
    return note + sortable(table.heads(results), table.rows(results), colours)


def sortable(heads: Sequence[str], rows: Sequence[Sequence[str]], colours: Colours | None = None, to: str = "") -> str:
    """Return a table that the page's script sorts; cells that name a method have its colour, words begin at the left.

    With `to`, each row's first cell leads there: to a place with its text at the end of its name.
    """
    words = {k for k, column in enumerate(zip(*rows, strict=True)) if k and all(text[:1].isalpha() for text in column)}
    looks = [' class="word"' if k in words else "" for k in range(len(heads))]

    def cell(k: int, text: str) -> str:
        colour = (colours or {}).get(text)
        shown = f'<a href="#{to}{escape(text)}">{escape(text)}</a>' if to and not k else escape(text)
        return f"<td{looks[k]}>{'' if colour is None else swatch(colour)}{shown}</td>"

    head = "".join(f"<th{look}>{escape(text)}</th>" for look, text in zip(looks, heads, strict=True))
    body = "".join(f"<tr>{''.join(cell(k, text) for k, text in enumerate(row))}</tr>" for row in rows)
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="sort">{inner}</table></div>'


def on_axis(score: Score, of: str = "") -> str:
    """Return what an axis says: the score, of what, its unit, and which way is better where that is not up."""
    return f"{score.text}{of}{score.brackets}{'' if score.higher else ', less is better'}"


def swatch(colour: int) -> str:
    """Return a small square of a method's colour; a striped one where its lines are dashed."""
    return f'<i class="swatch b{colour % COLOURS}{" dash" * dashed(colour)}"></i>'


def accuracy(groups: Groups, key: str, colours: Colours) -> str:
    """Draw the score on the tasks begun so far, after each milestone: the mean over seeds, a band over all of them."""
    lines, score = [], common([r.score for runs in groups.values() for r in runs])
    for method, results in groups.items():
        k = colours[method]
        seen = [[score.factor * value for value in r.score_so_far] for r in results]
        across = list(zip(results[0].rows[1], zip(*seen, strict=False), strict=False))
        points = [(float(t), fmean(values)) for t, values in across]
        band = [(float(t), min(values), max(values)) for t, values in across] if len(seen) > 1 else []
        lines.append(Line(method, points, k % COLOURS, dash=dashed(k), band=band))
    together = next(iter(groups.values()))[0].together
    x, on = ("tasks learned", "so far") if together else ("round", "on tasks begun")
    drawn = curves(lines, x, on_axis(score, f" {on}"))
    return figure(f"{key}{score.named('accuracy-after-each-task')}", "", drawn)


def costs(groups: Groups, key: str, colours: Colours) -> str:
    """Draw the final score against what it cost: gradients, and bytes both ways; a dot for each run."""
    score = common([r.score for runs in groups.values() for r in runs])
    drawn = []
    for name, of, unit, size in (("gradients", gradients, "thousand", 1e3), ("traffic", traffic, "MB", 1e6)):
        dots = [
            Dots(method, k % COLOURS, [(of(r) / size, score.factor * r.average_score) for r in runs], dashed(k))
            for method, runs in groups.items()
            for k in [colours[method]]
        ]
        picture = scatter(dots, f"{name} ({unit})", on_axis(score))
        drawn.append(figure(f"{key}{score.name}-against-{name}", f"{score.title} against {name}", picture))
    return f'<div class="grid2">{"".join(drawn)}</div>'


def matrices(groups: Groups, key: str, colours: Colours) -> str:
    """Draw the matrix of each method's score, the mean over seeds; what was not learned yet is faint."""
    drawn = []
    for method, results in groups.items():
        result, (unit, numbers) = results[0], results[0].rows
        alike = [r for r in results if r.rows == result.rows]  # with clocks of their own, seeds may have other rounds
        mean, spread = over_seeds([r.score_matrix for r in alike], result.score)
        picture = heat(mean, "tested on task", f"after {unit}", Shade.of(result.score), (numbers, 1),
                       faint=lambda i, j, run=result: not run.begun(i, j),  # type: ignore[misc]
                       note=spread, colour=colours[method] % COLOURS)  # fmt: skip
        whose = f"seed {result.seed}" if len(alike) == 1 else f"mean over {len(alike)} seeds"
        drawn.append(figure(f"{key}matrix-{method}", f"{method}, {whose}{result.score.brackets}", picture))
    return f'<div class="grid3">{"".join(drawn)}</div>'


def over_seeds(matrices: Sequence[Rows], score: Score) -> tuple[Rows, Callable[[int, int], str]]:
    """Return the mean of matrices, of the values there are, and what says from where to where those go."""
    cells = [[[v for v in values if v is not None] for values in zip(*rows, strict=True)]
             for rows in zip(*matrices, strict=True)]  # fmt: skip

    def spread(i: int, j: int) -> str:
        values = cells[i][j]
        if len(values) < 2:
            return ""
        return f" ({score.shown(min(values))} to {score.shown(max(values))} over {len(values)} seeds)"

    return [[fmean(values) if values else None for values in row] for row in cells], spread


def spread(groups: Groups, key: str, colours: Colours) -> str:
    """Draw each client's final score on the tasks it has begun, a strip for each method; clients of all seeds."""
    score = common([r.score for runs in groups.values() for r in runs])
    rows = []
    for method, results in groups.items():
        each = [value for r in results for value in r.measures.get("clients", {}).get("accuracy_seen", [])]
        known = [score.factor * value for value in each if value is not None]
        if known:
            rows.append(Strip(method, colours[method] % COLOURS, known))
    if not rows:
        return ""
    count = max(len(runs) for runs in groups.values())
    caption = f"each client's final {score.text} on its own tasks" + (f", {count} seeds" if count > 1 else "")
    return figure(f"{key}clients-spread", caption, strips(rows, on_axis(score)))


def clients(groups: Groups, key: str, colours: Colours) -> str:
    """Draw how well the final model does at each client, task by task; of one seed, as each deals other clients."""
    drawn, many = [], False
    for method, results in groups.items():
        rows = [_last_test(matrix) for matrix in results[0].client_matrices]
        if rows and len(rows) <= MOST_COLUMNS:
            score, colour = results[0].score, colours[method] % COLOURS
            picture = by_client(rows, "task", Shade.of(score), range(1, len(rows[0]) + 1), colour)
            caption = f"{method}, seed {results[0].seed}: final {score.text}{score.brackets}"
            drawn.append(figure(f"{key}clients-{method}", caption, picture))
            many = many or len(rows) > MOST_CLIENTS
    nothing = none("nothing is known of single clients, or there are too many to draw")
    tables = "".join(_client_table(method, results[0], key) for method, results in groups.items())
    maps = f'<div class="{"rows" if many else "grid3"}">{"".join(drawn)}</div>' if drawn else nothing
    return spread(groups, key, colours) + maps + tables


def by_client(rows: Rows, what: str, shade: Shade, names: Sequence[int], colour: int = 0) -> str:
    """Draw a row for each client, or a column where there are many: these are narrow, and the map scrolls sideways."""
    if len(rows) <= MOST_CLIENTS:
        return heat(rows, what, "client", shade, (0, names), colour=colour)
    turned = [list(column) for column in zip(*rows, strict=True)]
    return heat(turned, "client", what, shade, (names, 0), colour=colour)


def _last_test(matrix: Sequence[Sequence[float | None]]) -> Sequence[float | None]:
    """Return what a client found when it last tested: who is gone for good tests no more."""
    return next((row for row in reversed(matrix) if any(value is not None for value in row)), matrix[-1])


CLIENT_COLUMNS = {
    "accuracy_seen": "own tasks",
    "accuracy_anyone": "anyone's tasks",
    "learning_accuracy": "learn",
    "forgetting": "Forget",
    "forward_transfer": "forward",
}
"""What the table of clients shows."""


def client_id(key: str, number: int | str = "") -> str:
    """Return the name by which a client's own part of the page is linked to."""
    return f"{key}client-{number}"


def _client_table(method: str, result: Result, key: str) -> str:
    """Return each client's own measures, folded; nothing where they are not known."""
    each = result.measures.get("clients")
    if not each:
        return ""
    columns = [[result.score.shown(v) for v in each[name]] for name in CLIENT_COLUMNS]
    rows = [[str(k), *row] for k, row in enumerate(zip(*columns, strict=True))]
    heads = ["client", *(f"{name} {result.score.unit}".strip() for name in CLIENT_COLUMNS.values())]
    inner = sortable(heads, rows, to=client_id(key) if 0 < len(result.client_matrices) <= MOST_PAGES else "")
    return f"<details><summary>{escape(method)}, seed {result.seed}: each client</summary>{inner}</details>"


def schedule(result: Result, key: str) -> str:
    """Draw who was in which task when; nothing where everybody always was in the same."""
    if result.plan is None:
        return ""
    kind = result.config["schedule"]["kind"]
    return figure(f"{key}schedule-picture", f"{kind}, seed {result.seed}", drawing(plan_from_dict(result.plan), key))


def partition(result: Result, key: str) -> str:
    """Draw how many training samples of each class each client has; nothing where the run folder does not say."""
    tasks = RunFolder(result.folder).class_counts() if result.folder is not None else None
    if tasks is None:
        return ""
    classes = dict.fromkeys(label for task in tasks for label in task)
    clients = len(next(iter(tasks[0].values())))
    if clients > MOST_COLUMNS or len(classes) > MOST_CLASSES:
        return none("too many clients or classes to draw")
    rows = [[float(sum(task[c][k] for task in tasks if c in task)) for c in classes] for k in range(clients)]
    caption = f"seed {result.seed}: training samples of each class, classes in the order of the tasks"
    return figure(f"{key}partition", caption, by_client(rows, "class", Shade.counts(rows), [*classes]))


def configs(groups: Groups) -> str:
    """Return the config of each method, folded."""
    parts = []
    for method, results in groups.items():
        text = tomli_w.dumps(results[0].config)
        parts.append(f"<details><summary>{escape(method)}</summary><pre>{escape(text)}</pre></details>")
    return "".join(parts)
