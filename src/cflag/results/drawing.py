"""Figures drawn beside a run, by a process of their own: loading matplotlib and drawing take as long as a short run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import current_process, get_context
from pathlib import Path
from shutil import rmtree
from typing import Any

from cflag.errors import CflagError
from cflag.process import end_with_parent
from cflag.results import figures
from cflag.results.result import Result

FOLDER = "figures"

_artist: ProcessPoolExecutor | None = None
_drawings: list[Future[None]] = []


@contextmanager
def beside() -> Iterator[None]:
    """Let one other process draw what `draw` is asked for; when this ends, all of it is there."""
    global _artist
    if current_process().daemon:  # such a process may have none of its own
        yield
        return
    with ProcessPoolExecutor(1, get_context("fork"), initializer=_begin) as _artist:  # forked when first needed
        try:
            yield
            wait()
        finally:
            _artist = None
            _drawings.clear()


def draw(function: Callable[..., None], *args: Any) -> None:
    """Call a function that draws: now, or beside where there is someone for it."""
    if _artist is None:
        function(*args)
    else:
        _drawings.append(_artist.submit(function, *args))


def wait() -> None:
    """Wait for what is drawn beside."""
    while _drawings:
        try:
            _drawings.pop(0).result()
        except BrokenExecutor:
            raise CflagError(
                "the process that draws figures was killed; is there enough memory? All else is written; "
                "repeat it with: cflag run --resume DIR"
            ) from None


def draw_run(result: Result, folder: Path) -> None:
    """Draw a run's figures; there are all of them or none."""
    made, place = folder / f"{FOLDER}.new", folder / FOLDER
    figures.write_figures(result, made)
    if made.exists():
        rmtree(place, ignore_errors=True)
        made.rename(place)


def draw_together(results: Sequence[Result], path: Path) -> None:
    """Draw several runs into one figure."""
    figures.save(figures.draw_accuracy(results), path)


def _begin() -> None:
    """Leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
