"""The page: finished runs as one HTML file, with its style, script and drawings inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from cflag import registry
from cflag.config import ELSEWHERE, flatten
from cflag.data.options import ScheduleOptions
from cflag.errors import UserError
from cflag.files import checksum
from cflag.problems.score import common
from cflag.report import measured, parts
from cflag.report.single import single_clients
from cflag.report.story import stories, story
from cflag.results import table
from cflag.results.folder import RunFolder, runs_in
from cflag.results.result import Result

BENCHMARK = ("source", "problem", "score", "scenario", "schedule", "zeta", "clients", "tasks", "partition", "model",
             "width", "image_size", "samples_per_class", "memory.kind", "memory.per_task", "memory.sample")  # fmt: skip
"""What makes two runs comparable: all of these are equal."""


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
    """Return the whole page; runs of several benchmarks get a part for each, below one table of all."""
    benchmarks = {name: apart(runs) for name, runs in by_benchmark(results).items()}
    results = [result for runs in benchmarks.values() for result in runs]
    colours = parts.colours_of(results)
    if len(benchmarks) == 1:
        said = story(parts.by_method(results))
        sections = _sections(results, "", colours)
        links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name, _ in sections)
        body = "".join(f'<section id="{key}"><h2>{escape(name)}</h2>{html}</section>' for key, name, html in sections)
    else:
        said = stories(parts.by_method(runs) for runs in benchmarks.values())
        links = "".join(f'<a href="#b{k}">{escape(name)}</a>' for k, name in enumerate(benchmarks))
        body = _overview(benchmarks, colours) + "".join(
            _benchmark(k, name, runs, colours) for k, (name, runs) in enumerate(benchmarks.items())
        )
    many = f"{len(results)} run{'s' if len(results) > 1 else ''}"
    lead = f"{many}, made with cflag {escape(results[0].versions['cflag'])}"
    head = f'<h1>{escape(title)}</h1>{_told(said)}<p class="lead">{lead}</p><nav>{links}</nav>'
    return document(title, f"<header>{head}</header>{body}")


def _told(said: str) -> str:
    """Return what happened; its first sentence, who leads, is what everybody reads."""
    first, stop, rest = said.partition(". ")
    return f'<p class="story"><strong>{escape(first)}{stop.strip()}</strong> {escape(rest)}</p>'


def document(title: str, body: str, refresh: int | None = None) -> str:
    """Return a page with its style and script inside; a browser loads it again after `refresh` seconds, if given."""
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{again}'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_text("page.css")}</style></head>'
        f"<body><main>{body}</main><script>{_text('page.js')}</script></body></html>\n"
    )


def _sections(results: Sequence[Result], key: str, colours: parts.Colours) -> list[tuple[str, str, str]]:
    """Return the parts for one benchmark: a key, a heading, what is below it; those without content are left out."""
    groups = parts.by_method(results)
    sections = [
        (f"{key}summary", "Summary", parts.cards(results)),
        (f"{key}methods", "Methods and costs", parts.methods_table(results, colours)),
        (f"{key}costs", f"{common([r.score for r in results]).title} against cost", parts.costs(groups, key, colours)),
        (f"{key}schedule", "Who learns which task when", parts.schedule(results[0], key)),
        (f"{key}curves", _curves_head(results[0]), parts.accuracy(groups, key, colours)),
        (
            f"{key}matrices",
            f"{common([r.score for r in results]).title} matrices",
            parts.matrices(groups, key, colours),
        ),
        *measured.sections(groups, key, colours),
        (f"{key}clients", "Clients", parts.clients(groups, key, colours)),
        (f"{key}client", "One client at a time", single_clients(groups, key, colours)),
        (f"{key}classes", "Who has which classes", parts.partition(results[0], key)),
        (f"{key}config", "Config", parts.configs(groups)),
    ]
    return [section for section in sections if section[2]]


def _curves_head(result: Result) -> str:
    return f"{result.score.title} {'after each task' if result.together else 'whenever someone leaves a task'}"


def by_benchmark(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the runs of each benchmark, under a name that says in what it differs from others of its data set."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        kin = [r for r in results if all(r.config[key] == result.config[key] for key in ("source", "scenario"))]
        differing = [key for key in BENCHMARK if len({str(_value(r.config, key)) for r in kin}) > 1]
        details = [f"{key} = {_shown(_value(result.config, key))}" for key in differing]
        name = ", ".join([result.config["source"], parts.scenario(result.config), *details])
        groups.setdefault(name, []).append(result)
    return groups


def apart(results: Sequence[Result]) -> list[Result]:
    """Give a method's runs names that say in what their settings differ: such runs are no seeds of each other."""
    groups, named = parts.by_method(results), dict[int, Result]()
    for method, runs in groups.items():
        configs = [_settings(run) for run in runs]
        values = {key: {repr(config.get(key)) for config in configs} for key in dict.fromkeys(chain(*configs))}
        differing = [key for key, found in values.items() if len(found) > 1]
        for run, config in zip(runs, configs, strict=True):
            said = [f"{key.removeprefix(f'{method}.')} = {_shown(config.get(key))}" for key in differing]
            named[id(run)] = replace(run, method=", ".join([method, *said]))
    return [named[id(result)] for result in results]


def _settings(result: Result) -> dict[str, Any]:
    """Return the settings that a run's numbers depend on, but for its seed; other methods' tables are not used."""
    others = {*registry.names("method"), *ELSEWHERE, "seed", "eval_every"} - {result.method}
    return {key: value for key, value in flatten(result.config) if key.partition(".")[0] not in others}


def _value(config: Any, name: str) -> Any:
    if name == "schedule":
        return _schedule(config.get("schedule", {}))
    config = {"problem": "classes", "score": "", **config}  # results of earlier versions do not say
    for part in name.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def _schedule(table: dict[str, Any]) -> str:
    """Return a schedule's kind and settings in a few words; results of earlier versions have none: all are together."""
    usual = {**vars(ScheduleOptions()), "lines": []}
    others = {key: value for key, value in table.items() if key != "kind" and value != usual.get(key)}
    if lines := others.get("lines"):
        others["lines"] = f"{len(lines)}, {checksum(repr(lines).encode())[:6]}"
    words = ", ".join(f"{key} {value}" for key, value in others.items())
    return f"{table.get('kind', ScheduleOptions.kind)}{f' ({words})' if words else ''}"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _overview(benchmarks: dict[str, list[Result]], colours: parts.Colours) -> str:
    everything = [run for runs in benchmarks.values() for run in runs]
    rows = [[name, *row] for name, runs in benchmarks.items() for row in table.rows(runs, everything)]
    inner = parts.sortable(["benchmark", *table.heads(everything)], rows, colours)
    return f'<section id="overview"><h2>All benchmarks</h2>{inner}</section>'


def _benchmark(number: int, name: str, results: Sequence[Result], colours: parts.Colours) -> str:
    inner = _told(story(parts.by_method(results)))
    inner += "".join(f"<h3>{escape(head)}</h3>{html}" for _, head, html in _sections(results, f"b{number}-", colours))
    return f'<section id="b{number}"><details class="part"><summary>{escape(name)}</summary>{inner}</details></section>'


def _text(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
