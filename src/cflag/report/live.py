"""How far runs are, as a page that a browser on this machine shows and that refreshes itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cflag.config import Config
from cflag.data.schedules.base import total_rounds
from cflag.errors import UserError
from cflag.problems.base import scoring
from cflag.problems.score import Score, common
from cflag.report.page import document, find_results, make_page
from cflag.report.parts import COLOURS, Colours, figure, on_axis, sortable
from cflag.report.svg import Line, curves
from cflag.results.colours import numbers
from cflag.results.folder import RunFolder, runs_in
from cflag.results.metrics import read_line, task_starts

HOST = "127.0.0.1"
EVERY = 2
"""Seconds between two looks."""
IDLE = "not running"
MOST_LINES = 24
"""Of how many runs, those that came last, there are curves."""


@dataclass(frozen=True)
class Progress:
    """What a run's folder says at the moment."""

    name: str
    config: Config
    state: str
    total: int
    records: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, folder: RunFolder, root: Path) -> Progress:
        """Look at a run."""
        config = folder.config()
        state = "finished" if folder.finished else "given up" if folder.ended else "running" if folder.in_use() else ""
        name = str(folder.path.relative_to(root)) if folder.path != root else folder.path.name
        return cls(name, config, state or IDLE, total_rounds(config), _whole_lines(folder.metrics))

    @property
    def score(self) -> Score:
        """What its records hold under `accuracy`."""
        return scoring(self.config.problem, self.config.score).score

    @property
    def points(self) -> list[tuple[float, float]]:
        """The score so far, round by round, where it was measured."""
        known = [(t, record.get("accuracy")) for t, record in enumerate(self.records, 1)]
        return [(float(t), self.score.factor * value) for t, value in known if value is not None]

    def row(self) -> list[str]:
        """Return its line of the table."""
        done = len(self.records)
        last = f"{self.points[-1][1]:,.{self.score.digits}f}" if self.points else "–"
        share = f"{100 * done / self.total:.0f} %" if self.total else "–"
        return [self.name, self.config.method, str(self.config.seed), self.state, f"{done}/{self.total}", share, last]


def _whole_lines(metrics: Path) -> list[dict[str, Any]]:
    """Return the rounds that are written; the last line may be under way."""
    text = metrics.read_bytes() if metrics.exists() else b""
    return [read_line(line, metrics) for line in text[: text.rfind(b"\n") + 1].splitlines()]


def live_page(root: Path) -> str:
    """Return the page of all runs in a folder, as they are now; it refreshes itself while something is left to do."""
    runs = [Progress.of(RunFolder(folder), root) for folder in runs_in(root)]
    if not runs:
        return document(str(root), "<p>No run yet; this page looks again by itself.</p>", refresh=EVERY)
    if any(run.state == "running" for run in runs) or RunFolder(root).in_use():
        runs = [replace(run, state="waiting") if run.state == IDLE and not run.records else run for run in runs]
    over = all(run.state in ("finished", "given up") for run in runs) and not RunFolder(root).in_use()
    ended = sum(run.state == "finished" for run in runs)
    done, total = sum(len(run.records) for run in runs), sum(run.total for run in runs)
    score = common([run.score for run in runs])
    colours = numbers(run.config.method for run in runs)
    heads = ["run", "method", "seed", "state", "rounds", "done", f"{score.label} {score.unit}".strip()]
    report = '<p><a href="/report">The report of the finished runs</a></p>' if ended else ""
    body = (
        f'<header><h1>{escape(str(root))}</h1><p class="story">{ended} of {len(runs)} runs finished, {done} of {total} '
        f'rounds done.</p><progress max="{total}" value="{done}"></progress>{report}</header>'
        f"{sortable(heads, [run.row() for run in runs], colours)}"
        f"<section><h2>{escape(score.title)} so far</h2>{_curves(runs[-MOST_LINES:], score, colours)}</section>"
    )
    return document(str(root), body, refresh=None if over else EVERY)


def _curves(runs: Sequence[Progress], score: Score, colours: Colours) -> str:
    """Draw a line for each run, up to the last round that any has reached; a method's further seeds are dashed."""
    lines, first = [], {run.config.method: run.name for run in reversed(runs)}
    for run in runs:
        colour, again = colours[run.config.method], first[run.config.method] != run.name
        lines.append(Line(run.name, run.points, colour % COLOURS, dots=len(run.points) == 1, dash=again))
    planned = max(run.total for run in runs)
    x = "round" if all(len(run.records) >= run.total for run in runs) else f"round so far, {planned} are planned"
    return figure("live", "", curves(lines, x, on_axis(score, " so far"), _task_starts(runs), ends=False))


def _task_starts(runs: Sequence[Progress]) -> list[tuple[int, str]]:
    """Return where tasks begin, where all runs agree on that as far as they are."""
    starts = sorted((task_starts(run.records) for run in runs), key=len)
    return starts[-1] if all(starts[-1][: len(one)] == one for one in starts) else []


class _Handler(BaseHTTPRequestHandler):
    """Answers with the page, or with the report of what is finished."""

    root: Path
    server_version = "cflag"

    def do_GET(self) -> None:  # the name is http.server's
        """Answer."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if host not in (HOST, "localhost"):  # another site's page, whose name now leads here
            return self._answer(403, "this page is for this machine alone\n", "text/plain")
        try:
            if self.path == "/":
                return self._answer(200, live_page(self.root))
            if self.path == "/report":
                return self._answer(200, make_page(_finished(self.root), str(self.root)))
        except (UserError, OSError) as error:  # such as a run that was deleted just now: the next look may succeed
            return self._answer(503, f"{error}\n", "text/plain")
        return self._answer(404, "there is / and /report\n", "text/plain")

    def _answer(self, status: int, text: str, kind: str = "text/html") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a page that refreshes itself would fill the terminal."""


def _finished(root: Path) -> list[Any]:
    return find_results([folder for folder in runs_in(root) if RunFolder(folder).finished] or [root])


def make_server(root: Path, port: int) -> ThreadingHTTPServer:
    """Return a server of the page, on this machine alone; with port 0 the system chooses one."""
    if not root.is_dir():
        raise UserError(f"{root} is no folder; start a run in it, then watch it")
    try:
        return ThreadingHTTPServer((HOST, port), type("Handler", (_Handler,), {"root": root}))
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen on {HOST}:{port} ({error}); choose another port: --serve PORT") from None


def serve(root: Path, port: int) -> None:
    """Show the page until Ctrl-C, which ends only the watching."""
    with make_server(root, port) as server:
        print(f"http://{HOST}:{server.server_port}/ shows {root}; Ctrl-C ends this, not the runs", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
