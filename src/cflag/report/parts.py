"""The parts of the page that show the runs of one benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from cflag.config import resolve
from cflag.data.benchmark import Benchmark
from cflag.errors import CflagError
from cflag.report.svg import Line, Rug, curves, heat
from cflag.results import table
from cflag.results.result import Result

COLOURS = 8
MOST_CLIENTS, MOST_CLASSES = 60, 200
INTERFERENCE, TRANSFERENCE = 1, 2
"""Their colours."""

Groups = dict[str, list[Result]]
"""The runs of each method, in the order in which methods appear."""


def by_method(results: Sequence[Result]) -> Groups:
    """Return the runs of each method."""
    groups: Groups = {}
    for result in results:
        groups.setdefault(result.method, []).append(result)
    return groups


def figure(key: str, caption: str, inner: str) -> str:
    """Return a drawing with its caption, under a name of its own."""
    head = f"<h3>{escape(caption)}</h3>" if caption else ""
    return f'<figure id="{escape(key)}">{head}{inner}</figure>'


def _none(text: str) -> str:
    return f'<p class="none">{escape(text)}</p>'


def scenario(config: Mapping[str, Any]) -> str:
    """Say how tasks differ."""
    kind = str(config["scenario"])
    return f"{kind}-incremental" if kind in ("task", "class") else kind


def cards(results: Sequence[Result]) -> str:
    """Say in a few numbers what was run and what came out."""
    config, groups = results[0].config, by_method(results)
    best = max(groups, key=lambda m: fmean(r.average_accuracy for r in groups[m]))
    mean = fmean(r.average_accuracy for r in groups[best])
    values = [
        (f"{100 * mean:.1f} %", f"best accuracy: {best}"),
        (str(len(groups)), "methods" if len(groups) > 1 else "method"),
        (str(len({r.seed for r in results})), "seeds"),
        (config["source"], scenario(config)),
        (str(config["tasks"]), "tasks"),
        (str(config["clients"]), f"clients, ζ = {config['zeta']:g}"),
    ]
    shown = "".join(f'<div class="card"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in values)
    missing = sum("missing" in record for result in results for record in result.metrics)
    note = f"<p>In {missing} rounds some client was missing; the metrics say who and why.</p>" if missing else ""
    return f'<div class="cards">{shown}</div>{note}'


def methods_table(results: Sequence[Result]) -> str:
    """Return the table of methods with accuracy, forgetting and costs."""
    note = (
        '<p class="lead">Acc: mean accuracy over all tasks after the last. Forget: mean of a<sub>ii</sub> − '
        "a<sub>Si</sub>. other: the same runs read class- instead of task-incrementally, or the reverse. learn: "
        "accuracy right after learning. Click a heading to sort.</p>"
    )
    return note + sortable(table.heads(), table.rows(results))


def sortable(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that the page's script sorts."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="sort">{inner}</table></div>'


def accuracy(groups: Groups, key: str) -> str:
    """Draw accuracy on the tasks learned so far, after each: the mean over seeds, and a band from worst to best."""
    lines = []
    for k, (method, results) in enumerate(groups.items()):
        seen = [[100 * fmean(row[: i + 1]) for i, row in enumerate(r.accuracy_matrix)] for r in results]
        across = list(enumerate(zip(*seen, strict=False), 1))
        points = [(float(t), fmean(values)) for t, values in across]
        band = [(float(t), min(values), max(values)) for t, values in across] if len(seen) > 1 else []
        lines.append(Line(method, points, k % COLOURS, band=band))
    return figure(f"{key}accuracy-after-each-task", "", curves(lines, "tasks learned", "accuracy on them (%)"))


def matrices(groups: Groups, key: str) -> str:
    """Draw each method's accuracy matrix; what was not learned yet is faint."""
    drawn = []
    for method, results in groups.items():
        picture = heat(results[0].accuracy_matrix, "tested on task", "after task", faint=lambda i, j: j > i)
        drawn.append(figure(f"{key}matrix-{method}", f"{method}, seed {results[0].seed} (%)", picture))
    return f'<div class="grid3">{"".join(drawn)}</div>'


def gamma(groups: Groups, key: str) -> str:
    """Draw Γ(t) of each method that measures it."""
    lines, marks = [], list[tuple[float, str]]()
    for k, (method, results) in enumerate(groups.items()):
        records = results[0].metrics
        points = [(float(t), float(r["gamma"])) for t, r in enumerate(records, 1) if r.get("gamma") is not None]
        lines.append(Line(method, points, k % COLOURS, dots=False))
        if points and not marks:
            marks = _task_marks(records)
    return figure(f"{key}gamma", "", curves(lines, "round", "Γ(t)", marks))


def _task_marks(records: Sequence[dict[str, Any]]) -> list[tuple[float, str]]:
    return [(t - 0.5, f"task {r['task']}") for t, r in enumerate(records, 1) if r["round"] == 1 and t > 1]


def rates(groups: Groups, key: str) -> str:
    """Draw α_i and β_i as means over clients, with the rounds marked in which clients interfere or agree."""
    drawn = []
    for method, results in groups.items():
        records = results[0].metrics
        if not any("alpha" in r["clients"] for r in records):
            continue
        marks, what = _task_marks(records), f"{method}, seed {results[0].seed}"
        shares = {case: _share(records, case) for case in ("interference", "transference")}
        lines = [Line(name, _column_mean(records, column), colour, dots=False)
                 for column, name, colour in (("alpha", "mean α_i", 0), ("beta", "mean β_i", 3))]  # fmt: skip
        rugs = [Rug(f"{case} in most clients", [t for t, share in shares[case] if share > 50], colour)
                for case, colour in (("interference", INTERFERENCE), ("transference", TRANSFERENCE))]  # fmt: skip
        drawn.append(figure(f"{key}rates-{method}", f"{what}: rates", curves(lines, "round", "rate", marks, rugs)))
        cases = [Line("interference", shares["interference"], INTERFERENCE, dots=False),
                 Line("transference", shares["transference"], TRANSFERENCE, dots=False)]  # fmt: skip
        picture = curves(cases, "round", "clients (%)", marks)
        drawn.append(figure(f"{key}cases-{method}", f"{what}: how current and memory gradients meet", picture))
    return f'<div class="grid2">{"".join(drawn)}</div>' if drawn else _none("no method here adapts its rates")


def _column_mean(records: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    points = []
    for t, record in enumerate(records, 1):
        values = [v for v in record["clients"].get(key, []) if v is not None]
        if values:
            points.append((float(t), fmean(values)))
    return points


def _share(records: Sequence[dict[str, Any]], case: str) -> list[tuple[float, float]]:
    rows = [(t, r["clients"]["case"]) for t, r in enumerate(records, 1) if r["clients"].get("case")]
    return [(float(t), 100 * cases.count(case) / len(cases)) for t, cases in rows]


def clients(groups: Groups, key: str) -> str:
    """Draw how well the final model does at each client, task by task."""
    drawn = []
    for method, results in groups.items():
        rows = [matrix[-1] for matrix in results[0].client_matrices]
        if rows and len(rows) <= MOST_CLIENTS:
            picture = heat(rows, "tested on task", "client", first=(0, 1))
            caption = f"{method}, seed {results[0].seed}: final accuracy (%)"
            drawn.append(figure(f"{key}clients-{method}", caption, picture))
    nothing = _none("nothing is known of single clients, or there are too many to draw")
    return f'<div class="grid3">{"".join(drawn)}</div>' if drawn else nothing


def partition(result: Result, key: str) -> str:
    """Draw how many training samples of each class each client has; needs the data."""
    try:
        config = resolve(result.config)
        from cflag.data.load import data_dir_or_default, load_source

        benchmark = Benchmark(load_source(config.source, data_dir_or_default(config.data_dir)), config)
    except CflagError as error:
        return _none(str(error).partition(";")[0])
    if benchmark.clients > MOST_CLIENTS or benchmark.source.classes > MOST_CLASSES:
        return _none("too many clients or classes to draw")
    order = list(dict.fromkeys(label for task in benchmark.tasks for label in task.classes))
    rows: list[list[float | None]] = []
    for client in range(benchmark.clients):
        counts = dict.fromkeys(order, 0)
        for task in range(len(benchmark.tasks)):
            for label in benchmark.train(client, task).y.tolist():
                counts[label] += 1
        rows.append([float(counts[label]) for label in order])
    top = max(max(c for c in row if c is not None) for row in rows)
    caption = f"seed {result.seed}: training samples of each class, classes in the order of the tasks"
    return figure(f"{key}partition", caption, heat(rows, "class", "client", "", top, (0, order)))


def configs(groups: Groups) -> str:
    """Return the config of each method, folded."""
    parts = []
    for method, results in groups.items():
        folder = results[0].folder
        text = (folder / "config.toml").read_text(encoding="utf-8") if folder is not None else ""
        parts.append(f"<details><summary>{escape(method)}</summary><pre>{escape(text)}</pre></details>")
    return "".join(parts)
