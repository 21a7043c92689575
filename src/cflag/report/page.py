"""The page: finished runs as one HTML file, with its style, script and drawings inside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

from cflag.config import resolve
from cflag.data.benchmark import Benchmark
from cflag.errors import CflagError, UserError
from cflag.report.svg import Line, curves, heat
from cflag.results import table
from cflag.results.folder import RunFolder, runs_in
from cflag.results.result import Result

COLOURS = 8


def find_results(folders: Sequence[Path]) -> list[Result]:
    """Return the finished runs in these folders, or in folders in them."""
    results = []
    for root in folders:
        found = [root, *runs_in(root)] if root.is_dir() else []
        finished = [folder for folder in dict.fromkeys(found) if RunFolder(folder).finished]
        if not finished:
            raise UserError(f"{root} holds no finished run")
        results += [Result.load(folder) for folder in finished]
    return results


def make_page(results: Sequence[Result], title: str) -> str:
    """Return the whole page."""
    groups = by_method(results)
    sections = [
        ("summary", "Summary", _cards(results)),
        ("methods", "Methods and costs", _table(results)),
        ("curves", "Accuracy after each task", _figure("accuracy-after-each-task", "", _accuracy(groups))),
        ("matrices", "Accuracy matrices", _matrices(groups)),
        ("gamma", "Forgetting term Γ(t)", _figure("gamma", "", _gamma(groups))),
        ("rates", "Adaptive rates", _rates(groups)),
        ("clients", "Clients", _clients(groups)),
        ("partition", "Who has which classes", _partition(results[0])),
        ("config", "Config", _configs(groups)),
    ]
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name, _ in sections)
    body = "".join(f'<section id="{key}"><h2>{escape(name)}</h2>{html}</section>' for key, name, html in sections)
    lead = (
        f"{len(results)} run{'s' if len(results) > 1 else ''}, made with cflag {escape(results[0].versions['cflag'])}"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_text("page.css")}</style></head>'
        f'<body><main><header><h1>{escape(title)}</h1><p class="lead">{lead}</p><nav>{links}</nav></header>'
        f"{body}</main><script>{_text('page.js')}</script></body></html>\n"
    )


def by_method(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the runs of each method, in the order in which methods appear."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.method, []).append(result)
    return groups


def _cards(results: Sequence[Result]) -> str:
    config, groups = results[0].config, by_method(results)
    best = max(groups, key=lambda m: fmean(r.average_accuracy for r in groups[m]))
    mean = fmean(r.average_accuracy for r in groups[best])
    setting = {"task": "task-incremental", "class": "class-incremental"}.get(config["scenario"], config["scenario"])
    values = [
        (f"{100 * mean:.1f} %", f"best accuracy: {best}"),
        (str(len(groups)), "methods"),
        (str(len({r.seed for r in results})), "seeds"),
        (config["source"], setting),
        (str(config["tasks"]), "tasks"),
        (str(config["clients"]), f"clients, ζ = {config['zeta']:g}"),
    ]
    cards = "".join(f'<div class="card"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in values)
    missing = sum("missing" in record for result in results for record in result.metrics)
    note = f"<p>In {missing} rounds some client was missing; the metrics say who and why.</p>" if missing else ""
    return f'<div class="cards">{cards}</div>{note}'


def _table(results: Sequence[Result]) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads())
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows(results))
    note = (
        "<p class='lead'>Acc: mean accuracy over all tasks after the last. Forget: mean of a<sub>ii</sub> − "
        "a<sub>Si</sub>. "
        "other: the same runs read class- instead of task-incrementally, or the reverse. learn: accuracy right after "
        "learning. Click a heading to sort.</p>"
    )
    inner = f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>"
    return f'{note}<div class="scroll"><table class="sort">{inner}</table></div>'


def _accuracy(groups: dict[str, list[Result]]) -> str:
    lines = []
    for k, (method, results) in enumerate(groups.items()):
        seen = [[100 * fmean(row[: i + 1]) for i, row in enumerate(r.accuracy_matrix)] for r in results]
        means = [fmean(column) for column in zip(*seen, strict=True)] if len({len(s) for s in seen}) == 1 else seen[0]
        lines.append(Line(method, list(enumerate(means, 1)), k % COLOURS))
    return curves(lines, "tasks learned", "accuracy on them (%)")


def _matrices(groups: dict[str, list[Result]]) -> str:
    drawn = []
    for method, results in groups.items():
        picture = heat(results[0].accuracy_matrix, "tested on task", "after task")
        drawn.append(_figure(f"matrix-{method}", f"{method}, seed {results[0].seed} (%)", picture))
    return f'<div class="grid3">{"".join(drawn)}</div>'


def _gamma(groups: dict[str, list[Result]]) -> str:
    lines, marks = [], list[tuple[float, str]]()
    for k, (method, results) in enumerate(groups.items()):
        records = results[0].metrics
        points = [(float(t), float(r["gamma"])) for t, r in enumerate(records, 1) if r.get("gamma") is not None]
        lines.append(Line(method, points, k % COLOURS, dots=False))
        if points and not marks:
            marks = _task_marks(records)
    return curves(lines, "round", "Γ(t)", marks)


def _task_marks(records: Sequence[dict[str, Any]]) -> list[tuple[float, str]]:
    return [(t - 0.5, f"task {r['task']}") for t, r in enumerate(records, 1) if r["round"] == 1 and t > 1]


def _rates(groups: dict[str, list[Result]]) -> str:
    """α_i and β_i as means over clients, and how many clients interfere or agree, round by round."""
    drawn = []
    for method, results in groups.items():
        records = results[0].metrics
        if not any("alpha" in r["clients"] for r in records):
            continue
        marks = _task_marks(records)
        rates = [Line(name, _column_mean(records, key), k, dots=False) for k, (key, name) in
                 enumerate((("alpha", "mean α_i"), ("beta", "mean β_i")))]  # fmt: skip
        cases = [Line(name, _share(records, name), k + 2, dots=False) for k, name in
                 enumerate(("interference", "transference"))]  # fmt: skip
        what = f"{method}, seed {results[0].seed}"
        drawn.append(_figure(f"rates-{method}", f"{what}: rates", curves(rates, "round", "rate", marks)))
        picture = curves(cases, "round", "clients (%)", marks)
        drawn.append(_figure(f"cases-{method}", f"{what}: how current and memory gradients meet", picture))
    return (
        f'<div class="grid2">{"".join(drawn)}</div>' if drawn else '<p class="none">no method here adapts its rates</p>'
    )


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


def _clients(groups: dict[str, list[Result]]) -> str:
    drawn = []
    for method, results in groups.items():
        rows = [matrix[-1] for matrix in results[0].client_matrices]
        if rows and len(rows) <= 60:
            picture = heat(rows, "tested on task", "client", first=(0, 1))
            drawn.append(_figure(f"clients-{method}", f"{method}, seed {results[0].seed}: final accuracy (%)", picture))
    some = '<p class="none">nothing is known of single clients, or there are too many to draw</p>'
    return f'<div class="grid3">{"".join(drawn)}</div>' if drawn else some


def _partition(result: Result) -> str:
    """Draw how many training samples of each class each client has; needs the data."""
    try:
        config = resolve(result.config)
        from cflag.data import sources

        benchmark = Benchmark(sources.load(config.source, sources.data_dir_or_default(config.data_dir)), config)
    except CflagError as error:
        return f'<p class="none">{escape(str(error).partition(";")[0])}</p>'
    if benchmark.clients > 60 or benchmark.source.classes > 60:
        return '<p class="none">too many clients or classes to draw</p>'
    rows: list[list[float | None]] = []
    for client in range(benchmark.clients):
        counts = [0] * benchmark.source.classes
        for task in range(len(benchmark.tasks)):
            for label in benchmark.train(client, task).y.tolist():
                counts[label] += 1
        rows.append([float(c) for c in counts])
    top = max(max(c for c in row if c is not None) for row in rows)
    return _figure(
        "partition", "training samples of each class, all tasks", heat(rows, "class", "client", "", top, (0, 0))
    )


def _configs(groups: dict[str, list[Result]]) -> str:
    parts = []
    for method, results in groups.items():
        folder = results[0].folder
        text = (folder / "config.toml").read_text(encoding="utf-8") if folder is not None else ""
        parts.append(f"<details><summary>{escape(method)}</summary><pre>{escape(text)}</pre></details>")
    return "".join(parts)


def _figure(key: str, caption: str, inner: str) -> str:
    head = f"<h3>{escape(caption)}</h3>" if caption else ""
    return f'<figure id="{escape(key)}">{head}{inner}</figure>'


def _text(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
